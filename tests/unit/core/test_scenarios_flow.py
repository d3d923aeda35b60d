"""Rows F of tests/unit/core/conformance.md: progress of peers and flow control."""

from __future__ import annotations

import pytest

from dledger.core.config import CoreConfig
from dledger.core.effects import RefusedReason
from dledger.core.events import Applied
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse, SnapshotOffer
from dledger.core.status import PeerProgress
from dledger.core.types import EntryId
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Envelope, Node, ack, leader_by_hand, node_id, solo

ENTRY = 100_000  # about what the harness' proposals take


def peer(node: Node, name: object) -> PeerProgress:
    return next(found for found in node.core.status().peers if found.node == node_id(name))


def beat(node: Node, source: object = 2) -> None:
    """One heartbeat interval passes and ``source`` answers."""
    node.cluster.now_ms += HEARTBEAT_MS
    node.tick()
    rounds = [message.round for message in node.sent(Heartbeat, to=source) if isinstance(message, Heartbeat)]
    node.receive(source, HeartbeatResponse(term=node.term, round=rounds[-1]))


def requests(node: Node, to: object = 2) -> list[AppendRequest]:
    return [message for message in node.sent(AppendRequest, to=to) if isinstance(message, AppendRequest)]


def replicating(node: Node, *names: object) -> Node:
    """A fresh leader whose peers have acknowledged its no-op."""
    leader_by_hand(node)
    for name in names or (2, 3):
        node.receive(name, ack(node.term, node.last.index, node.term))
    node.cluster.drop()
    return node


def test_F2_one_probe_at_a_time() -> None:
    node = leader_by_hand(solo([1]))
    assert len(requests(node)) == 1
    node.propose(3)
    assert len(requests(node)) == 1
    node.cluster.drop()
    for _ in range(3):
        beat(node)
        assert len(requests(node)) == 1
        node.cluster.drop()


def test_F3_a_heartbeats_answer_lets_a_paused_probe_go_on() -> None:
    node = leader_by_hand(solo([1]))
    node.cluster.drop()
    node.propose()
    assert requests(node) == []
    beat(node)
    assert len(requests(node)) == 1


def test_F5_nothing_is_sent_to_a_peer_that_was_offered_a_copy() -> None:
    node = copying()
    node.propose(5)
    assert requests(node) == []
    beat(node)
    assert requests(node) == []
    assert node.sent(SnapshotOffer, to=2), "only the offer is repeated"


def copying() -> Node:
    """A leader that has trimmed what 2 needs and has offered it a copy."""
    node = Cluster(3, logs={1: [1] * 12}, commit=12)[1]
    leader_by_hand(node)
    node.receive(3, ack(2, 13, 2))
    node.trim(11)
    node.cluster.drop()
    node.receive(2, AppendResponse(term=2, success=False, match=EntryId(0, 0), rejected=12))
    assert peer(node, 2).state == "copy"
    return node


def test_F6_a_broken_stream_goes_back_to_what_is_acknowledged() -> None:
    node = replicating(solo([1, 1]))
    node.propose(2)
    assert (peer(node, 2).state, peer(node, 2).match, peer(node, 2).next) == ("replicate", 3, 6)
    node.lost(2)
    assert (peer(node, 2).state, peer(node, 2).match, peer(node, 2).next) == ("probe", 3, 4)


def windowed(count: int) -> Node:
    node = replicating(solo(config=CoreConfig(max_inflight_messages=count)))
    node.propose(count)
    assert len(requests(node)) == count
    node.cluster.drop()
    return node


def test_F8_a_full_window_blocks_and_an_acknowledgement_frees_all_up_to_it() -> None:
    node = windowed(8)
    node.propose(4)
    assert requests(node) == []
    node.receive(2, ack(1, 4, 1))  # three of eight
    assert [message.prev.index for message in requests(node)] == [9]
    assert len(requests(node)[0].entries) == 4, "what waits goes together"


def test_F8_a_stale_acknowledgement_frees_nothing() -> None:
    node = windowed(4)
    node.receive(2, ack(1, 3, 1))
    node.cluster.drop()
    node.propose(2)
    sent = len(requests(node))
    node.receive(2, ack(1, 2, 1))
    assert len(requests(node)) == sent


def test_F8_a_heartbeats_answer_lets_one_empty_request_out_of_a_full_window() -> None:
    node = windowed(4)
    node.propose(2)
    beat(node)
    beat(node)
    assert [len(message.entries) for message in requests(node)] in ([0], [0, 0])
    assert peer(node, 2).inflight_messages == 4


def test_F9_a_follower_that_stops_answering_costs_bounded_memory_and_catches_up() -> None:
    cluster = Cluster(3, config=CoreConfig(max_inflight_messages=3))
    leader = cluster.elect(1)
    cluster.cut(1, 3)
    for _ in range(50):
        leader.propose()
        cluster.run(20)
    assert leader.commit == 51, "the majority went on"
    assert peer(leader, 3).inflight_messages <= 3
    cluster.heal()
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].commit == 51)


def test_F11_a_leader_cut_off_takes_only_so_much() -> None:
    cluster = Cluster(3, config=CoreConfig(max_uncommitted_bytes=5 * ENTRY + 10_000))
    leader = cluster.elect(1)
    cluster.isolate(1)
    leader.propose(100)
    refusal = leader.refused()
    assert refusal is not None
    assert refusal.reason is RefusedReason.BUSY
    assert leader.core.status().uncommitted_bytes <= 5 * ENTRY + 10_000
    assert leader.last.index == 6
    cluster.heal()
    cluster.run(HEARTBEAT_MS * 4)
    assert leader.core.status().uncommitted_bytes == 0
    assert leader.commit == 6
    leader.propose()
    assert leader.last.index == 7


def test_F12_entries_go_out_in_pages_complete_and_in_order() -> None:
    cluster = Cluster(3, config=CoreConfig(max_append_bytes=3 * ENTRY + 5_000, max_inflight_bytes=12 * ENTRY, max_inflight_messages=4))
    leader = cluster.elect(1)
    cluster.cut(1, 3)
    leader.propose(40)
    cluster.run(HEARTBEAT_MS)
    cluster.heal()
    leader.lost(3)
    pages: list[tuple[int, int]] = []

    def note(envelope: Envelope) -> bool:
        message = envelope.message
        if isinstance(message, AppendRequest) and message.entries and envelope.to == node_id(3):
            pages.append((message.prev.index + 1, len(message.entries)))
        return False

    cluster.dropping = note
    cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].commit == leader.last.index)
    assert cluster[3].terms == leader.terms
    assert max(count for _first, count in pages) <= 3
    fresh = sorted(set(pages))
    assert sum(count for first, count in fresh) >= 40


def test_F14_what_is_not_applied_yet_does_not_touch_the_quorum() -> None:
    """Back-pressure of slow applying is the node's (test_node: BUSY); the core commits on, and applied never passes commit."""
    node = replicating(solo())
    node.propose(20)
    node.receive(2, ack(1, node.last.index, 1))
    assert node.commit == node.last.index
    node.step(Applied(3))
    assert node.core.status().applied == 3
    assert node.core.status().uncommitted_bytes == 0


def test_F15_a_slow_learner_neither_holds_commits_up_nor_takes_the_others_window() -> None:
    cluster = Cluster(3, learners=[4], config=CoreConfig(max_inflight_messages=4))
    leader = cluster.elect(1)
    cluster.cut(4, 1, both=False)  # gets everything, answers nothing
    for _ in range(30):
        leader.propose()
        cluster.run(10)
    assert leader.commit == 31
    assert peer(leader, 4).inflight_messages <= 4
    assert peer(leader, 2).match == 31


def test_F17_a_follower_far_behind_catches_up_in_few_rounds_under_load() -> None:
    behind = 100_000
    per_message = 1000
    config = CoreConfig(max_append_bytes=per_message * 2000, max_inflight_bytes=64 * per_message * 2000)
    cluster = Cluster(3, config=config)
    leader = cluster.elect(1)
    cluster.isolate(3)
    for _ in range(behind // 1000):
        for _ in range(1000):
            cluster._size = 1000  # small entries
            leader.propose()
        cluster.run(1)
    cluster.run(HEARTBEAT_MS)
    assert leader.commit == behind + 1
    cluster.heal()
    sent = 0

    def count(envelope: Envelope) -> bool:
        nonlocal sent
        message = envelope.message
        sent += isinstance(message, AppendRequest) and envelope.to == node_id(3)
        return False

    cluster.dropping = count
    assert cluster.run(3 * ELECTION_MS, until=lambda: cluster[3].last.index > behind)
    assert sent <= behind / 500 + 20


def test_F18_a_follower_that_lost_what_it_had_acknowledged_is_sent_it_again_and_counted() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.propose(3)
    cluster.settle()
    loser = cluster[3]
    loser.crash()
    del loser.disk.entries[2:]  # a disk that lied, or ASYNC_FLUSH
    loser.restart()
    leader.propose()
    cluster.run(6 * HEARTBEAT_MS)
    assert loser.terms == leader.terms
    assert leader.core.status().ack_regressions == 1


@pytest.mark.parametrize("gone", [True, False])
def test_F3_lost_requests_are_found_by_the_next_heartbeats(gone: bool) -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.dropping = lambda envelope: gone and isinstance(envelope.message, AppendRequest) and envelope.to == node_id(3)
    leader.propose(3)
    cluster.settle()
    cluster.heal()
    assert cluster.run(4 * HEARTBEAT_MS, until=lambda: cluster[3].last == leader.last)
