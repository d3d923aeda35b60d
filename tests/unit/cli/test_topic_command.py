"""What ``dledger topic create`` and ``update`` say of the topic afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from typer.testing import CliRunner

from dledger_cli.app import app
from dledger_cli.commands.topic import _show_change
from dledger_client.admin.calls import Listed
from dledger_client.admin.topics import QueueRange, joined
from dledger_client.aio import Admin
from dledger_client.cluster.routes import TopicQueues
from dledger_wire.errors import DledgerError, NotLeaderError


@pytest.mark.parametrize(
    ("perm", "said"),
    [
        (6, "topic t in replica groups g0, g1: 4 read queues, 4 write queues, perm 6 (g0 2, g1 2)"),
        (4, "topic t in replica groups g0, g1: 4 read queues, 4 write queues, perm 6 (g0 2, g1 2); g1 has perm 4, --perm 6 opens it"),
    ],
)
def test_a_part_that_a_broken_off_command_left_closed_is_named(perm: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    _show_change(joined([TopicQueues("t", "g0", 2, 2, 6, ""), TopicQueues("t", "g1", 2, 2, perm, "")], created=False))
    assert capsys.readouterr().err.strip() == said


def test_a_topic_with_priorities_is_shown_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    _show_change(joined([TopicQueues("t", "g0", 2, 2, 6, "", priorities=True)], created=True))
    assert (
        capsys.readouterr().err.strip() == "created topic t in replica group g0: 2 read queues, 2 write queues, perm 6, queues by priority"
    )


def test_a_part_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """``create --if-not-exists`` of a topic whose creation was broken off leaves it as it is, and says so."""
    part = TopicQueues("t", "g0", 2, 2, 6, "", replica_groups=("g0", "g1"))
    _show_change(joined([part], created=False))
    assert capsys.readouterr().err.splitlines() == [
        "topic t in replica group g0: 2 read queues, 2 write queues, perm 6",
        "topic t was not seen in g1: it does not answer, or the creation is under way, or was broken off; if it was, this creates the rest"
        ": dledger topic create t --replica-groups g0,g1 --if-not-exists",
    ]
    _show_change(joined([part, TopicQueues("t", "g1", 2, 2, 6, "", replica_groups=("g0", "g1"))], created=False))
    assert "not seen" not in capsys.readouterr().err


NAMES = ("orders", "%RETRY%audit", "%DLQ%audit", "logs")


@pytest.mark.parametrize(("options", "names"), [((), ["orders", "logs"]), (("--all",), list(NAMES))])
def test_a_list_has_the_messages_and_retries_when_asked_for(
    options: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent: dict[str, DledgerError] = {"g1": NotLeaderError("replica group g1 has no leader now")}

    async def topics(_admin: Admin, **_how: bool) -> Listed[TopicQueues]:
        found = [TopicQueues(name, "g0", 2, 2, 6, "") for name in NAMES]
        return Listed([*found[:3], TopicQueues("logs", "g1", 2, 2, 6, "")], silent)

    async def offsets(_admin: Admin, wanted: Iterable[str], **_how: bool) -> dict[str, Listed[QueueRange]]:
        return {name: Listed([QueueRange("g0", 0, 2, 9, 9), QueueRange("g0", 1, 0, 1, 1)], silent) for name in wanted}

    async def reachable(*_: object) -> None: ...

    monkeypatch.setattr(Admin, "list_topics", topics)
    monkeypatch.setattr(Admin, "offsets_of_topics", offsets)
    monkeypatch.setattr("dledger_cli.context.check_reachable", reachable)
    asked = ["topic", "list", *options, "--bootstrap", "127.0.0.1:1"]
    result = CliRunner().invoke(app, asked)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [("TOPIC", "MESSAGES"), *((name, "-" if name == "logs" else "8") for name in names)]
    listed = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["topics"]
    assert [(each["name"], each["messages"]) for each in listed] == [(name, None if name == "logs" else 8) for name in names]
