"""What ``dledger topic create`` and ``update`` say of the topic afterwards."""

from __future__ import annotations

import pytest

from dledger_cli.commands.topic import _show_change
from dledger_client.admin.topics import joined
from dledger_client.cluster.routes import TopicQueues


@pytest.mark.parametrize(
    ("perm", "said"),
    [
        (6, "topic t in replica groups g0, g1: 4 read queues, 4 write queues, perm 6 (g0 2, g1 2)"),
        (4, "topic t in replica groups g0, g1: 4 read queues, 4 write queues, perm 6 (g0 2, g1 2); g1 has perm 4, --perm 6 opens it"),
    ],
)
def test_a_part_that_a_broken_off_command_left_closed_is_named(perm: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    _show_change(joined([TopicQueues("t", "g0", 2, 2, 6, ""), TopicQueues("t", "g1", 2, 2, perm, "")], created=False), as_json=False)
    assert capsys.readouterr().err.strip() == said


def test_a_part_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """``create --if-not-exists`` of a topic whose creation was broken off leaves it as it is, and says so."""
    part = TopicQueues("t", "g0", 2, 2, 6, "", replica_groups=("g0", "g1"))
    _show_change(joined([part], created=False), as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        "topic t in replica group g0: 2 read queues, 2 write queues, perm 6",
        "topic t was not seen in g1: it does not answer, or the creation is under way, or was broken off; if it was, this creates the rest"
        ": dledger topic create t --replica-groups g0,g1 --if-not-exists",
    ]
    _show_change(joined([part, TopicQueues("t", "g1", 2, 2, 6, "", replica_groups=("g0", "g1"))], created=False), as_json=False)
    assert "not seen" not in capsys.readouterr().err
