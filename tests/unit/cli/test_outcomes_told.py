"""What commands say, and with which exit status they end, when a part is missing, wrong, or broken off."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.commands import dlq, topic, verify
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_client.cluster.routes import TopicQueues
from dledger_wire.errors import DeadlineExceededError

FILE = ("--config", "cluster-configs/local-3.yaml")


def test_a_topic_that_is_not_in_the_group_is_not_said_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "_described", lambda *_: ([TopicQueues("orders", "g0", 1, 1, 6, "")], []))
    result = CliRunner().invoke(app, ["topic", "delete", "orders", "--dry-run", "--group", "g9", *FILE])
    assert result.exit_code == 1
    assert str(result.exception) == "topic orders is not in replica group 'g9', it is in g0"


@pytest.mark.parametrize(
    ("replicas", "unreachable", "status", "said"),
    [
        (("n0", "n1", "n2"), (), 0, "n0, n1, n2 are equal"),
        (("n0", "n1"), ("n2",), 0, "n0, n1 are equal"),
        (("n0",), ("n1", "n2"), 1, "only n0 answered, nothing was compared"),
        (("n0",), (), 0, "n0 are equal"),
    ],
)
def test_a_replica_alone_is_not_said_to_be_equal(
    monkeypatch: pytest.MonkeyPatch, replicas: tuple[str, ...], unreachable: tuple[str, ...], status: int, said: str
) -> None:
    found = ReplicaComparison("g0", 4096, 4096, replicas, unreachable, "", {})
    monkeypatch.setattr(verify, "ask", lambda *_: ([found], []))
    result = CliRunner().invoke(app, ["verify", "--online", *FILE])
    assert (result.exit_code, said in result.output) == (status, True)


class LettersOf:
    """Dead letters in replica groups, each with so many that are sent again; ``ends`` comes behind those of the last one."""

    def __init__(self, counts: list[int], ends: BaseException | None) -> None:
        self._counts, self._ends = counts, ends

    async def dead_letters(self, name: str) -> list[DeadLetters]:
        return [DeadLetters(name, f"g{number}", f"%DLQ%{name}", 2, 0, count, 0) for number, count in enumerate(self._counts)]

    async def redrive(self, letters: DeadLetters, *, on_progress: Callable[[int], object], **_: Any) -> int:
        on_progress(letters.max_offset // 2)
        on_progress(letters.max_offset)
        if self._ends is not None and letters.replica_group == f"g{len(self._counts) - 1}":
            raise self._ends
        return letters.max_offset


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("ends", "status"), [(None, 0), (KeyboardInterrupt(), 130), (DeadlineExceededError("late"), 1)])
def test_a_redrive_that_is_broken_off_tells_how_many_were_sent(
    monkeypatch: pytest.MonkeyPatch, ends: BaseException | None, status: int, as_json: bool
) -> None:
    def ask(_config: str | None, _timeout_s: float, work: Callable[[Any], Any]) -> Any:
        coroutine = work(LettersOf([4, 7], ends))
        with pytest.raises(StopIteration):
            coroutine.send(None)

    monkeypatch.setattr(dlq, "ask", ask)
    result = CliRunner().invoke(app, ["dlq", "redrive", "audit", *FILE, *(["--json"] if as_json else [])])
    assert result.exit_code == status
    if as_json:
        assert json.loads(result.stdout) == {"consumer_group": "audit", "redriven": 11}
    else:
        assert "audit: 11 redriven" in result.output
    assert ("repeated, it goes on" in result.output) == (ends is not None and not as_json)
