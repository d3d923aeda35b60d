"""What commands say, and with which exit status they end, when a part is missing, wrong, or broken off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.commands import dlq, topic, verify
from dledger_cli.commands.produce import _Sending
from dledger_cli.output import use_json
from dledger_client.admin.calls import Listed, Sources
from dledger_client.admin.dead_letters import DeadLetters
from dledger_client.admin.directory import ClusterDirectory
from dledger_client.admin.replica_comparison import ReplicaComparison
from dledger_client.admin.topics import QueueRange
from dledger_client.cluster.routes import TopicQueues
from dledger_wire.errors import DeadlineExceededError, UnreachableError

FILE = ("--config", "cluster-configs/local-3.yaml")


def test_a_topic_that_is_not_in_the_group_is_not_said_to_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "_described", lambda *_: ([TopicQueues("orders", "g0", 1, 1, 6, "")], []))
    result = CliRunner().invoke(app, ["topic", "delete", "orders", "--dry-run", "--replica-group", "g9", *FILE])
    assert result.exit_code == 1
    assert str(result.exception) == "topic orders is not in replica group 'g9', it is in g0"


@pytest.mark.parametrize(
    ("replicas", "unreachable", "status", "said"),
    [
        (("n0", "n1", "n2"), (), 0, "n0, n1, n2 are equal"),
        (("n0", "n1"), ("n2",), 1, "n0, n1 are equal"),
        (("n0", "n1"), ("n2",), 1, "n2 did not answer and was not compared"),
        (("n0",), ("n1", "n2"), 1, "only n0 answered, nothing was compared"),
        (("n0",), (), 0, "n0 are equal"),
        ((), ("n0", "n1"), 1, "none of n0, n1 answered, nothing was compared"),
    ],
)
def test_a_replica_alone_is_not_said_to_be_equal(
    monkeypatch: pytest.MonkeyPatch, replicas: tuple[str, ...], unreachable: tuple[str, ...], status: int, said: str
) -> None:
    found = ReplicaComparison("g0", 4096, 4096, replicas, unreachable, "", {})
    monkeypatch.setattr(verify, "ask", lambda *_: ([found], []))
    result = CliRunner().invoke(app, ["verify", "--online", *FILE])
    assert (result.exit_code, said in result.output) == (status, True)


def test_replica_groups_are_compared_although_one_does_not_answer() -> None:
    class OneIsDown:
        async def directory(self) -> ClusterDirectory:
            raise UnreachableError("no name server")

        async def compare_replicas(self, nodes: Mapping[str, Mapping[str, str]]) -> list[ReplicaComparison]:
            ((name, of_group),) = nodes.items()
            if name == "g1":
                raise UnreachableError("no node reachable")
            return [ReplicaComparison(name, 4096, 4096, tuple(of_group), (), "", {})]

    nodes = {"g0": {"n0": "a:1", "n1": "a:2"}, "g1": {"m0": "a:3"}, "g2": {"k0": "a:4"}}
    found, _ = asyncio.run(verify._compared(OneIsDown(), nodes))  # type: ignore[arg-type]
    assert [(each.replica_group, each.replicas, each.unreachable) for each in found] == [
        ("g0", ("n0", "n1"), ()),
        ("g1", (), ("m0",)),
        ("g2", ("k0",), ()),
    ]


def test_messages_that_nobody_tells_are_not_shown_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [TopicQueues("orders", name, 1, 1, 6, "") for name in ("g0", "g1")]
    queues = Listed([QueueRange("g0", 0, 0, 7, 7)], {"g1": UnreachableError("no node reachable")}, Sources())
    monkeypatch.setattr(topic, "_described", lambda *_: (parts, queues))
    result = CliRunner().invoke(app, ["topic", "describe", "orders", *FILE])
    assert result.exit_code == 1
    rows = {row.split()[0]: row.split()[-1] for row in result.stdout.splitlines() if row.startswith(("g", "TOTAL"))}
    assert rows["g1"] == "-"
    assert rows["TOTAL"] == "7"


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
    def ask(work: Callable[[Any], Any]) -> Any:
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


def test_bytes_that_were_not_acknowledged_are_in_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    late = DeadlineExceededError("late")
    sending = _Sending("t", {}, None, 0, 0, 0)
    sending.sent, sending.took_s = 6, 1.0
    for size_bytes, error in ((100, None), (7, late)):
        sending._room.acquire()
        one: Future[None] = Future()
        one.set_exception(error) if error else one.set_result(None)
        sending._done(1, size_bytes, one)
    outcomes = [SimpleNamespace(first=0, count=1, error=late), SimpleNamespace(first=1, count=3, error=None)]
    sending._many_done(3, [b"lost", b"a", b"bc", b"def"], SimpleNamespace(outcomes=lambda: outcomes))
    use_json(True)
    sending.report()
    figures = json.loads(capsys.readouterr().out)
    assert figures == {"sent": 6, "acknowledged": 4, "failed": 2, "unknown": 0, "messages_per_s": 4.0, "bytes_per_s": 106.0}
