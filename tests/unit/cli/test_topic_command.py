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
