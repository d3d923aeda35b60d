"""Rows P of tests/unit/core/conformance.md: pre-vote, check-quorum, stickiness; liveness cases C1 to C6 (row P20)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.core.effects import ReadFailed, RoleChanged, SaveHardState, TransferEnded
from dledger.core.messages import Heartbeat, HeartbeatResponse, SnapshotOffer, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.types import EntryId, HardState, Membership, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Disk, Node, ids, leader_by_hand, node_id, solo


def terms(cluster: Cluster) -> list[int]:
    return [node.term for node in cluster.nodes.values()]


def elections(cluster: Cluster) -> list[tuple[str, int]]:
    """Every leadership there was, in order."""
    return [
        (node.name, effect.term)
        for node in cluster.nodes.values()
        for effect in node.told(RoleChanged)
        if isinstance(effect, RoleChanged) and effect.role is Role.LEADER and not effect.confirmed
    ]


def forget_history(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.effects.clear()


def test_P2_a_stale_candidate_raises_the_term_and_still_loses() -> None:
    cluster = Cluster(3)
    cluster.cut(1, 3)
    cluster.elect(1)
    cluster.drop()
    stale = cluster[3]
    stale.disk.entries.clear()  # 3 has heard of the new term by the votes only
    stale.disk.hard_state = HardState(1)
    stale.restart()
    cluster.cut(2, 3)
    cluster.drop()
    cluster.heal()
    stale.receive(1, TimeoutNow(term=1))  # a campaign without a pre-vote
    cluster.deliver_all(kind=VoteRequest)
    cluster.deliver_all(kind=VoteResponse)
    assert terms(cluster) == [2, 2, 2]
    assert [node.role for node in cluster.nodes.values()] == [Role.FOLLOWER] * 3
    assert [node.last.index for node in cluster.nodes.values()] == [1, 1, 0]


def test_P3_with_pre_vote_the_stale_node_falls_back_and_the_leader_stays() -> None:
    cluster = Cluster(3)
    cluster.cut(1, 3)
    cluster.cut(2, 3)
    leader = cluster.elect(1)
    cluster[3].campaign()
    cluster.heal()
    cluster[3].campaign()
    cluster.settle()
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    assert cluster[3].role is not Role.LEADER
    assert terms(cluster)[:2] == [1, 1]


def test_P5_others_elect_once_the_lease_of_an_isolated_leader_is_over() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster[2].campaign()
    cluster.settle()
    assert not [node for node in (cluster[2], cluster[3]) if node.role is Role.LEADER], "within the lease nobody helps"
    cluster.now_ms += 2 * ELECTION_MS
    cluster[2].campaign()
    cluster.settle()
    assert (cluster[2].role, cluster[2].term) == (Role.LEADER, 2)
    cluster[2].crash()
    cluster[1].timeout()  # finds that nobody answers any more
    cluster.heal()
    cluster.now_ms += 2 * ELECTION_MS
    cluster[3].campaign()
    cluster.settle()
    assert cluster[3].role is Role.LEADER


@pytest.mark.parametrize("leader_dies", [False, True])
def test_P6_a_node_with_a_newer_term_and_an_old_log_is_taken_back(leader_dies: bool) -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.propose(3)
    cluster.settle()
    stuck = cluster[3]
    stuck.disk.hard_state = HardState(7, node_id(3))
    stuck.disk.entries.clear()
    stuck.restart()
    if leader_dies:
        leader.crash()
    assert cluster.run(20 * ELECTION_MS, until=lambda: bool(cluster.leaders()) and cluster.leader().term > 7)
    cluster.run(ELECTION_MS)
    assert stuck.terms == cluster.leader().terms


def test_P8_a_leader_that_is_answered_stays() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    forget_history(cluster)
    cluster.run(10 * ELECTION_MS)
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    assert elections(cluster) == []


def test_P9_a_leader_nobody_answers_steps_down_and_keeps_its_vote() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.read(1)
    cluster.isolate(1)
    leader.transfer(2)
    leader.read(2)
    began_ms = cluster.now_ms
    assert cluster.run(2 * ELECTION_MS, until=lambda: leader.role is Role.FOLLOWER)
    assert cluster.now_ms - began_ms <= ELECTION_MS
    assert (leader.core.leader, leader.core.vote, leader.term) == (None, node_id(1), 1)
    assert ReadFailed(2) in leader.effects
    cluster.run(2 * ELECTION_MS)
    assert [effect.done for effect in leader.effects if isinstance(effect, TransferEnded)] == [False]


def test_P11_a_leader_cut_off_is_replaced_after_its_lease_and_not_before() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    cluster.run(5 * HEARTBEAT_MS)
    cluster.settle()
    cluster.isolate(1)
    began_ms = cluster.now_ms
    assert cluster.run(10 * ELECTION_MS, until=lambda: any(cluster[name].role is Role.LEADER for name in (2, 3)))
    # The last heartbeat may be one interval old when the cable is cut.
    assert ELECTION_MS - HEARTBEAT_MS <= cluster.now_ms - began_ms <= 4 * ELECTION_MS


def test_P12_a_stuck_node_with_a_newer_term_is_freed() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    stuck = cluster[3]
    stuck.disk.hard_state = HardState(3, node_id(3))
    stuck.restart()
    cluster.now_ms += HEARTBEAT_MS
    leader.tick()
    cluster.deliver_all(source=1, to=3, kind=Heartbeat)
    assert [answer.term for answer in stuck.sent(HeartbeatResponse, to=1)] == [3]
    cluster.deliver_all(source=3, to=1, kind=HeartbeatResponse)
    assert (leader.role, leader.term) == (Role.FOLLOWER, 3)
    cluster.drop()
    leader.campaign()
    cluster.settle()
    assert leader.core.is_confirmed_leader
    assert terms(cluster) == [4, 4, 4]


def learner() -> Node:
    return Cluster([2, 3], learners=[1])[1]


def stranger() -> Node:
    cluster = Cluster([2, 3, 4])
    return cluster.add_node(1, cluster.membership)


def awaiting_copy() -> Node:
    node = solo()
    node.receive(2, SnapshotOffer(term=1, first_available=50, last=EntryId(60, 1)))
    assert node.core.snapshot_wanted is not None
    return node


@pytest.mark.parametrize("make", [learner, stranger, awaiting_copy])
def test_P14_who_may_not_lead_never_asks_but_follows(make: Callable[[], Node]) -> None:
    node = make()
    node.cluster.drop()
    for _ in range(10):
        node.timeout()
        node.campaign()
    assert node.sent(VoteRequest) == []
    node.receive(2, Heartbeat(term=5, commit=0, round=0))
    assert (node.term, node.core.leader) == (5, node_id(2))


def test_P15_a_granted_pre_vote_leaves_the_vote_alone_in_memory_and_on_disk() -> None:
    node = solo([1], term=2, vote=3)
    effects = node.receive(2, VoteRequest(term=3, last=EntryId(1, 1), pre_vote=True))
    assert node.sent(VoteResponse) == [VoteResponse(term=3, granted=True, pre_vote=True)]
    assert (node.core.vote, node.term, node.disk.hard_state) == (node_id(3), 2, HardState(2, node_id(3)))
    assert not [effect for effect in effects if isinstance(effect, SaveHardState)]


def test_P17_pre_votes_are_refused_within_the_lease_and_two_of_three_suffice_behind_it() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster[2].campaign()
    cluster.settle()
    assert (leader.role, cluster[2].term) == (Role.LEADER, 1)
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    cluster.now_ms += ELECTION_MS
    cluster[2].campaign()
    cluster.settle()
    assert cluster[2].role is Role.LEADER


def test_P18_a_follower_whose_leaders_stream_broke_grants_at_once_without_a_new_term() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    follower = cluster[2]
    follower.lost(1)
    effects = follower.receive(3, VoteRequest(term=2, last=follower.last, pre_vote=True))
    assert follower.sent(VoteResponse, to=3) == [VoteResponse(term=2, granted=True, pre_vote=True)]
    assert follower.term == 1
    assert not [effect for effect in effects if isinstance(effect, SaveHardState)]


def test_P18_broken_streams_do_not_depose_a_leader_that_lives() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster[2].lost(1)
    cluster.run(5 * ELECTION_MS)
    assert (leader.role, leader.term) == (Role.LEADER, 1)


def clique_with_tails(cluster: Cluster) -> None:
    """C1: {1,2,3} hear each other; 4 only 2, 5 only 3."""
    for one, other in ((1, 4), (3, 4), (1, 5), (2, 5), (4, 5)):
        cluster.cut(one, other)


def leader_cannot_receive(cluster: Cluster) -> None:
    """C2."""
    for other in range(2, len(cluster.nodes) + 1):
        cluster.cut(other, 1, both=False)


def leader_cannot_send(cluster: Cluster) -> None:
    """C3."""
    for other in range(2, len(cluster.nodes) + 1):
        cluster.cut(1, other, both=False)


def chain(cluster: Cluster) -> None:
    """C4: 1 - 2 - 3."""
    cluster.cut(1, 3)


def isolated(cluster: Cluster) -> None:
    """C6, before the healing."""
    cluster.isolate(len(cluster.nodes))


TOPOLOGIES = [
    (5, clique_with_tails),
    *[(size, cut) for size in (3, 5) for cut in (leader_cannot_receive, leader_cannot_send, isolated)],
    (3, chain),
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("size", "cut"), TOPOLOGIES)
def test_P20_every_topology_settles_on_one_leader(size: int, cut: Callable[[Cluster], None], seed: int) -> None:
    cluster = Cluster(size, seed=seed)
    cluster.elect(1)
    cut(cluster)
    before = max(terms(cluster))
    cluster.run(10 * ELECTION_MS)
    settled = max(terms(cluster))
    assert settled - before <= 3
    forget_history(cluster)
    leader = cluster.leader()
    leader.propose()
    cluster.run(90 * ELECTION_MS)
    assert leader.commit == leader.last.index, "writes go on"
    assert len(elections(cluster)) <= 1
    assert max(terms(cluster)) - settled <= 1


@pytest.mark.parametrize("seed", range(5))
def test_P20_C5_only_the_old_leader_is_reachable_by_those_with_a_stale_log(seed: int) -> None:
    """4 and 5 lag; the only node that connects a majority has the newest log and can lead, whatever the others try."""
    cluster = Cluster(5, seed=seed)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    for lagging in (4, 5):
        cluster.isolate(lagging)
    leader.propose(5)
    cluster.run(HEARTBEAT_MS)
    cluster.heal()
    for one, other in ((2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)):
        cluster.cut(one, other)
    before = max(terms(cluster))
    cluster.run(20 * ELECTION_MS)
    assert cluster.leader().name == node_id(1)
    assert cluster[4].commit == cluster[5].commit == cluster.leader().commit
    assert max(terms(cluster)) - before <= 3


def test_P20_C6_an_hour_alone_and_back_without_an_election() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    cluster.run(3_600_000)
    forget_history(cluster)
    cluster.heal()
    cluster.run(10 * ELECTION_MS)
    assert (leader.role, terms(cluster), elections(cluster)) == (Role.LEADER, [1, 1, 1], [])
    assert cluster[3].core.leader == node_id(1)


def test_P21_a_leader_that_hears_nothing_steps_down_and_others_elect() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader_cannot_receive(cluster)
    began_ms = cluster.now_ms
    assert cluster.run(2 * ELECTION_MS, until=lambda: leader.role is not Role.LEADER)
    assert cluster.now_ms - began_ms <= ELECTION_MS
    leader.cluster.drop()
    assert cluster.run(3 * ELECTION_MS, until=lambda: any(cluster[name].role is Role.LEADER for name in (2, 3)))
    assert cluster.now_ms - began_ms <= 4 * ELECTION_MS
    assert not leader.sent(Heartbeat)


@pytest.mark.parametrize(("rate", "offset_ms"), [(2.0, 0), (0.0, 0), (1.0, 3_600_000), (1.0, -3_600_000), (0.1, 0)])
def test_P23_a_follower_with_a_wrong_clock_harms_nobody(rate: float, offset_ms: int) -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(ELECTION_MS)
    cluster[3].clock_rate, cluster[3].clock_offset_ms = rate, offset_ms
    for _ in range(20):
        cluster.run(HEARTBEAT_MS)
        leader.propose()
    cluster.run(2 * ELECTION_MS)
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    assert {node.commit for node in cluster.nodes.values()} == {leader.last.index}


def test_P23_no_read_is_ever_confirmed_by_a_clock() -> None:
    node = leader_by_hand(solo())
    node.cluster.drop()
    node.receive(2, HeartbeatResponse(term=1, round=1))
    node.read(7)
    assert node.reads == {}, "a majority has to answer a question asked after the read"


def test_a_group_without_this_node_starts_as_learner() -> None:
    node = Node(Cluster([2, 3]), node_id(9), Disk(membership=Membership(ids(2, 3))), Cluster(1).config)
    assert node.role is Role.LEARNER
