"""What ``dledger top`` makes of one look after the other: rates, changes of leader, lag that grows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger_cli.top.history import History
from dledger_cli.top.model import LeaderChange, View
from dledger_client.admin.cluster_status import NodeStatus, judge_group
from dledger_client.admin.consumer_groups import ConsumerGroupDescription, QueueLag
from tests.unit.cli.test_status_command import gone, leader, other


def counted(node: NodeStatus, messages_in: int, messages_out: int = 0, started_at_ms: int = 1) -> NodeStatus:
    return replace(
        node,
        messages_in_total=messages_in,
        bytes_in_total=messages_in * 100,
        messages_out_total=messages_out,
        bytes_out_total=messages_out * 100,
        started_at_ms=started_at_ms,
    )


def look(history: History, at_s: float, *nodes: NodeStatus) -> View:
    return history.look([judge_group("g0", nodes)], at_s, int(at_s * 1000))


def test_rates_are_those_since_the_look_before() -> None:
    history = History("shop")
    first = look(history, 10.0, counted(leader("n0", "n2"), 1000), counted(other("n0"), 0), other("n2"))
    assert first.groups[0].rates.messages_in is None  # nothing to compare with
    second = look(history, 12.0, counted(leader("n0", "n2"), 1500, 100), counted(other("n0"), 0, 40), other("n2"))
    rates = second.groups[0].rates
    assert (rates.messages_in, rates.bytes_in, rates.messages_out, rates.bytes_out) == (250.0, 25_000.0, 70.0, 7000.0)
    assert [node.rates.messages_out for node in second.groups[0].nodes] == [50.0, 20.0, 0.0]


def test_a_process_that_has_started_since_counts_from_zero() -> None:
    history = History("shop")
    look(history, 10.0, counted(leader("n0", "n2"), 1000), other("n0"), other("n2"))
    again = look(history, 11.0, counted(leader("n0", "n2"), 30, started_at_ms=2), other("n0"), other("n2"))
    assert again.groups[0].rates.messages_in == 30.0


def test_a_node_that_does_not_answer_has_no_rates_and_counts_on_when_it_is_back() -> None:
    history = History("shop")
    look(history, 10.0, counted(leader("n0", "n2"), 1000), other("n0"), counted(other("n2"), 0, 100))
    silent = look(history, 11.0, counted(leader("n0"), 1000), other("n0"), gone("n2"))
    assert silent.groups[0].nodes[2].rates.messages_out is None
    remedy = "start it: dledger up, or on its host: dledger node --id n2"
    assert silent.groups[0].nodes[2].note == f"unreachable: connection refused, {remedy}"
    back = look(history, 20.0, counted(leader("n0", "n2"), 1000), other("n0"), counted(other("n2"), 0, 200))
    assert back.groups[0].nodes[2].rates.messages_out == 10.0


def test_a_change_of_leader_and_how_long_there_was_none() -> None:
    history = History("shop")
    assert look(history, 10.0, leader("n0", "n2"), other("n0"), other("n2")).changes == ()
    without = look(history, 11.0, gone("n1"), other("n0", knows=""), other("n2", knows=""))
    assert (without.groups[0].leader, without.changes) == ("", ())
    look(history, 11.5, gone("n1"), other("n0", knows=""), other("n2", knows=""))
    taken = replace(leader("n1", "n2"), id="n0", leader="n0", term=2)
    after = look(history, 12.2, gone("n1"), taken, other("n2", knows="n0"))
    assert [(change.old, change.new, change.term) for change in after.changes] == [("n1", "n0", 2)]
    assert after.changes[0].without_ms == pytest.approx(1200.0)
    assert look(history, 13.0, gone("n1"), taken, other("n2", knows="n0")).changes == after.changes
    # The nodes know it better than somebody who looks once a second.
    told = LeaderChange(11_600, "g0", "n1", "n0", 2, 540.0, "no heartbeat for 500 ms")
    history.remember([LeaderChange(1000, "g0", "", "n1", 1), told])
    assert look(history, 14.0, gone("n1"), taken, other("n2", knows="n0")).changes == (told, LeaderChange(1000, "g0", "", "n1", 1))


def queue(offset: int | None, end: int, queue_id: int = 0) -> QueueLag:
    return QueueLag("orders", "g0", queue_id, offset, 0, end)


def test_consumer_groups_that_catch_up_or_fall_back() -> None:
    history = History("shop")
    history.see_consumers([ConsumerGroupDescription("audit", (), (queue(10, 100), queue(None, 50, 1)))], 5.0)
    (row,) = look(history, 5.0, leader("n0", "n2")).consumers
    assert (row.name, row.members, row.topics, row.lag, row.consumed, row.lag_change) == ("audit", 0, ("orders",), 140, None, None)
    history.see_consumers([ConsumerGroupDescription("audit", (), (queue(30, 160), queue(None, 50, 1)))], 7.0)
    (row,) = look(history, 7.0, leader("n0", "n2")).consumers
    assert (row.lag, row.consumed, row.lag_change) == (180, 10.0, 20.0)
    history.see_consumers([ConsumerGroupDescription("audit", (), (queue(0, 160), queue(None, 50, 1)))], 8.0)  # it was reset
    (row,) = look(history, 8.0, leader("n0", "n2")).consumers
    assert (row.consumed, row.lag_change) == (0.0, 30.0)
    history.see_consumers([], 9.0)
    assert look(history, 9.0, leader("n0", "n2")).consumers == ()


def test_queues_that_were_not_told_at_one_look_are_no_progress() -> None:
    history = History("shop")
    both, one = (queue(10, 100), queue(1_000_000, 1_000_050, 1)), (queue(20, 100),)
    history.see_consumers([ConsumerGroupDescription("audit", (), both)], 1.0)
    history.see_consumers([ConsumerGroupDescription("audit", (), one)], 2.0)
    (row,) = look(history, 2.0, leader("n0", "n2")).consumers
    assert (row.consumed, row.lag_change) == (10.0, -10.0)
    history.see_consumers([ConsumerGroupDescription("audit", (), both)], 3.0)
    (row,) = look(history, 3.0, leader("n0", "n2")).consumers
    assert (row.consumed, row.lag_change) == (0.0, 10.0)
