"""What a core knows of disks, and that it hands over only where that helps."""

from __future__ import annotations

import pytest

from dledger.core.messages import HeartbeatResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.sync_times import KEPT_MS, MOST_MS
from dledger.core.types import EntryId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Node, ack, leader_by_hand, node_id, solo


def slow_leader(sync_ms: dict[int, int]) -> Node:
    """A leader whose disk does not come back; the voters answer, have all entries, and say how long their disks took."""
    node = leader_by_hand(solo(voters=len(sync_ms) + 1))
    node.cluster.auto_persist = False
    node.propose()
    for _ in range(2 * ELECTION_MS // HEARTBEAT_MS):
        node.cluster.now_ms += HEARTBEAT_MS
        for voter, each_ms in sync_ms.items():
            node.receive(voter, HeartbeatResponse(term=1, round=1, sync_ms=each_ms))
            node.receive(voter, ack(1, node.last.index, 1))
        node.tick()
    return node


@pytest.mark.parametrize(
    ("sync_ms", "hands_over"),
    [
        ({2: 0, 3: 0}, True),
        ({2: 5, 3: 150}, True),
        ({2: 700, 3: 800}, False),
        ({2: 1, 3: 800}, False),  # with 2 as the leader, 3 would be waited for as this node is now
        ({2: 1, 3: 1, 4: 900, 5: 900}, False),
        ({2: 1, 3: 1, 4: 1, 5: 900}, True),
    ],
)
def test_a_slow_leader_hands_over_where_a_majority_is_clearly_faster(sync_ms: dict[int, int], hands_over: bool) -> None:
    node = slow_leader(sync_ms)
    orders = node.sent(TimeoutNow)
    assert bool(orders) is hands_over
    assert {peer.node: peer.sync_ms for peer in node.core.status().peers} == {node_id(voter): each for voter, each in sync_ms.items()}
    assert node.role is Role.LEADER


def test_times_up_to_a_heartbeat_are_none_and_long_ones_are_bounded() -> None:
    node = leader_by_hand(solo())
    syncs = node.core._core.syncs
    syncs.reported(HEARTBEAT_MS)
    assert syncs.slow_ms == 0
    syncs.reported(1 << 32)
    assert syncs.slow_ms == syncs.others_slow_ms == MOST_MS
    node.cluster.now_ms += 2 * KEPT_MS
    node.tick()
    assert syncs.slow_ms == 0


def test_a_node_asks_for_no_other_vote_while_its_own_is_not_on_its_disk() -> None:
    node = solo(auto_persist=False)
    node.campaign()
    node.receive(2, VoteResponse(term=1, granted=True, pre_vote=True))
    assert node.role is Role.CANDIDATE
    term = node.term
    for _ in range(20):
        node.timeout()
    assert (node.role, node.term) == (Role.CANDIDATE, term)
    node.persist()
    assert node.sent(VoteRequest, to=2)[-1] == VoteRequest(term=term, last=EntryId(0, 0))
    assert node.core.vote == node_id(1)
