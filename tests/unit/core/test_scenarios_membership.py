"""Rows M of tests/unit/core/conformance.md: learners, promotion, removal, one change at a time."""

from __future__ import annotations

import pytest

from dledger.core.config import CoreConfig
from dledger.core.effects import MembershipChanged, Refused, RefusedReason
from dledger.core.events import Propose, Received
from dledger.core.messages import AppendRequest, AppendResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.types import EntryId, Membership, Role
from tests.unit.core.harness import (
    ELECTION_MS,
    HEARTBEAT_MS,
    Cluster,
    Disk,
    Node,
    ack,
    append,
    config_entry,
    ids,
    leader_by_hand,
    node_id,
    solo,
)
from tests.unit.core.safety import Safety


def reason(node: Node) -> RefusedReason | None:
    refusal = node.refused()
    return refusal.reason if refusal is not None else None


def test_M2_a_new_leader_changes_nothing_before_its_no_op_is_committed() -> None:
    node = leader_by_hand(solo([1]))
    node.change([1, 2])
    assert reason(node) is RefusedReason.NOT_READY
    node.receive(2, ack(2, 2, 2))
    node.change([1, 2])
    assert node.core.membership == Membership(ids(1, 2))


@pytest.mark.parametrize("seed", range(30))
def test_M3_the_2015_bug_never_makes_two_quorums(seed: int) -> None:
    """L1 of four adds a fifth that only itself hears of; L2 removes one; L1 comes back.  Safety watches for two histories."""
    cluster = Cluster([1, 2, 3, 4], seed=seed)
    safety = Safety(cluster)
    cluster.add_node(5)
    safety.restarted(cluster[5])
    cluster.elect(1).change([1, 2, 3, 4], [5])
    cluster.run(ELECTION_MS)
    cluster.isolate(1)
    cluster[1].change([1, 2, 3, 4, 5])
    for _ in range(seed % 7):
        cluster.run(ELECTION_MS // 2)
    cluster.run(5 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3, 4)))
    second = next(cluster[name] for name in (2, 3, 4) if cluster[name].core.is_confirmed_leader)
    second.change([voter for voter in (2, 3, 4) if voter != 1], [])
    second.propose()
    cluster.run((seed % 3) * HEARTBEAT_MS)
    cluster.heal()
    cluster.run(10 * ELECTION_MS)
    assert node_id(1) not in cluster.leader().core.membership.voters
    assert cluster.leader().commit == cluster.leader().last.index


@pytest.mark.parametrize("keep", [0, 1])
def test_M5_a_change_that_is_cut_counts_no_longer(keep: int) -> None:
    node = solo([1])
    before = node.core.membership
    changed = config_entry(2, [1, 2, 3, 4])
    request = append(2, (1, 1), [2])
    node.receive(2, AppendRequest(term=2, prev=request.prev, entries=(*request.entries[:keep], changed), commit=0))
    assert node.core.membership == changed.config
    node.receive(3, append(3, (1, 1), [3]))
    assert node.core.membership == before
    assert node.told(MembershipChanged)[-1] == MembershipChanged(before)
    node.timeout()
    assert len(node.sent(VoteRequest)) == 2, "4 is asked no more"


def test_M5_a_removal_that_is_cut_makes_the_removed_node_stand_again() -> None:
    cluster = Cluster([1, 2, 3])
    node = cluster[1]
    node.receive(2, AppendRequest(term=1, prev=EntryId(0, 0), entries=(config_entry(1, [2, 3]),), commit=0))
    node.receive(3, append(2, (0, 0), [2]))
    assert (node.role, node.core.membership) == (Role.FOLLOWER, cluster.membership)
    node.timeout()
    assert node.role is Role.PRE_CANDIDATE


def test_M6_a_change_of_an_older_term_is_in_flight_until_an_own_entry_commits_it() -> None:
    cluster = Cluster(3)
    cluster.add_node(4)
    pending = config_entry(1, [1, 2, 3, 4])
    for node in cluster.nodes.values():
        source = 3 if node.name == node_id(2) else 2
        if node.name != node_id(4):
            node.receive(source, AppendRequest(term=1, prev=EntryId(0, 0), entries=(pending,), commit=0))
    cluster.drop()
    cluster.now_ms += 3 * ELECTION_MS
    leader = cluster[1]
    leader.campaign()
    while leader.role is not Role.LEADER:
        assert cluster.deliver_all(kind=VoteRequest) + cluster.deliver_all(kind=VoteResponse)
    leader.change([1, 2, 3])
    assert reason(leader) is RefusedReason.NOT_READY
    assert leader.core.status().membership_index == 1
    cluster.settle()
    assert leader.commit == 2
    leader.change([1, 2, 3])
    assert leader.core.status().membership_index == 3


def test_M6_the_next_change_waits_for_the_one_before() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.change([1, 2])
    leader.change([1, 2, 3])
    assert reason(leader) is RefusedReason.CHANGE_IN_PROGRESS
    cluster.settle()
    leader.change([1])
    assert leader.core.membership == Membership(ids(1))


def test_M8_a_leader_does_not_step_down_because_the_new_voter_has_not_spoken() -> None:
    cluster = Cluster([1], learners=[2])
    leader = cluster.elect(1)
    leader.timeout()
    cluster.settle()
    leader.receive(2, ack(1, 1, 1))
    cluster.now_ms += ELECTION_MS - 1
    leader.change([1, 2])
    cluster.drop()
    cluster.now_ms += HEARTBEAT_MS
    leader.tick()
    assert leader.role is Role.LEADER, "an election timeout after it became a voter, not before"


def test_M9_removing_a_voter_shrinks_the_majority_and_the_last_one_stays() -> None:
    cluster = Cluster(2, learners=[3])
    leader = cluster.elect(1)
    leader.change([1], [3])
    cluster.settle()
    cluster.isolate(1)
    leader.propose()
    assert leader.commit == leader.last.index == 3
    leader.change([], [3])
    assert reason(leader) is RefusedReason.INVALID_CHANGE


def test_M9_removing_a_learner_changes_no_majority() -> None:
    cluster = Cluster(3, learners=[4])
    leader = cluster.elect(1)
    leader.change([1, 2, 3])
    cluster.settle()
    assert (leader.core.membership, leader.commit) == (Membership(ids(1, 2, 3)), 2)
    assert [peer.node for peer in leader.core.status().peers] == list(ids(2, 3))


@pytest.mark.parametrize("voters", [[1, 2, 3, 4, 5], [2, 3, 4], [3]])
def test_M11_more_than_one_voter_at_a_time_is_refused(voters: list[int]) -> None:
    """There are no joint configurations: neighbours that differ by one voter share one in every two majorities."""
    cluster = Cluster(3, learners=[4, 5])
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    leader.change(voters)
    assert reason(leader) is RefusedReason.INVALID_CHANGE


def test_M12_a_learner_stands_for_election_once_promoted_and_can_win() -> None:
    cluster = Cluster([1, 3], learners=[2])
    leader = cluster.elect(1)
    learner = cluster[2]
    learner.campaign()
    assert (learner.role, learner.sent(VoteRequest)) == (Role.LEARNER, [])
    cluster.run(HEARTBEAT_MS)
    leader.change([1, 3, 2])
    cluster.run(HEARTBEAT_MS)
    assert learner.role is Role.FOLLOWER
    leader.crash()
    cluster.drop()
    cluster.now_ms += 2 * ELECTION_MS
    learner.campaign()
    cluster.settle()
    assert learner.core.is_confirmed_leader


def test_M12_a_learner_that_lags_is_not_promoted() -> None:
    cluster = Cluster(3, learners=[4])
    leader = cluster.elect(1)
    cluster.isolate(4)
    for _ in range(100):
        leader.propose()
        cluster.settle()
    leader.change([1, 2, 3, 4])
    assert reason(leader) is RefusedReason.NOT_CAUGHT_UP
    cluster.heal()
    cluster.run(ELECTION_MS)
    leader.change([1, 2, 3, 4])
    cluster.settle()
    assert cluster[4].core.membership == Membership(ids(1, 2, 3, 4))


def test_M12_a_learner_few_entries_but_many_bytes_behind_is_not_promoted() -> None:
    """Twelve entries of 4 MiB are within the window of messages: as a voter it would hold up commits for as long as they take."""
    config = CoreConfig()
    cluster = Cluster(3, learners=[4], config=config)
    leader = cluster.elect(1)
    cluster.run(2 * HEARTBEAT_MS)
    cluster.isolate(4)
    for _ in range(12):
        leader.step(Propose(4 << 20))
        cluster.settle()
    leader.change([1, 2, 3, 4])
    assert leader.commit == leader.last.index
    assert reason(leader) is RefusedReason.NOT_CAUGHT_UP
    cluster.heal()
    cluster.run(ELECTION_MS)
    cluster.isolate(4)
    for _ in range(6):
        leader.step(Propose(4 << 20))
        cluster.settle()
    leader.change([1, 2, 3, 4])
    assert leader.core.membership.voters == ids(1, 2, 3, 4), "what one window takes is no reason"


@pytest.mark.parametrize("membership", [Membership(ids(2, 3)), Membership(ids(2, 3), ids(1)), Membership(())])
def test_M14_an_order_to_take_over_means_nothing_to_who_is_no_voter(membership: Membership) -> None:
    cluster = Cluster([2, 3])
    node = Node(cluster, node_id(1), Disk(membership=membership), cluster.config)
    effects = node.receive(2, TimeoutNow(term=0))
    assert (effects, node.term, node.role) == ([], 0, Role.LEARNER)


def test_M15_a_removed_peer_elects_nobody_and_is_not_taken_back() -> None:
    node = solo()
    changed = config_entry(1, [1, 2])
    node.receive(2, AppendRequest(term=1, prev=EntryId(0, 0), entries=(changed,), commit=1))
    node.timeout()
    node.receive(3, VoteResponse(term=2, granted=True, pre_vote=True))
    assert node.role is Role.PRE_CANDIDATE
    node.receive(2, VoteResponse(term=2, granted=True, pre_vote=True))
    node.receive(3, VoteResponse(term=2, granted=True))
    assert node.role is Role.CANDIDATE  # type: ignore[comparison-overlap]  # changed by the calls between
    node.receive(2, VoteResponse(term=2, granted=True))
    assert node.role is Role.LEADER
    node.receive(3, ack(2, 2, 2))
    assert node.commit == 1
    assert [peer.node for peer in node.core.status().peers] == [node_id(2)]


def test_M15_a_removed_peer_with_a_newer_term_does_not_depose_the_leader() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.change([1, 2])
    cluster.settle()
    leader.receive(3, AppendResponse(term=99, success=False, match=EntryId(0, 0), rejected=2))
    leader.receive(3, VoteRequest(term=99, last=EntryId(9, 9)))
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    cluster.run(10 * ELECTION_MS)
    assert (leader.role, leader.term) == (Role.LEADER, 1)


@pytest.mark.parametrize("reached", [False, True])
def test_M17_the_next_leader_settles_a_change_its_predecessor_left_behind(reached: bool) -> None:
    cluster = Cluster(3, learners=[4])
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    cluster.cut(1, 3)
    if not reached:
        cluster.isolate(1)
    leader.change([1, 2, 3, 4])
    cluster.deliver_all(source=1, to=2)
    leader.crash()
    cluster.heal()
    assert cluster.run(10 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3, 4)))
    leader.restart()
    cluster.run(4 * ELECTION_MS)
    expected = Membership(ids(1, 2, 3, 4)) if reached else cluster.membership
    assert {node.core.membership for node in cluster.nodes.values()} == {expected}


def test_M18_adding_a_member_again_is_refused_and_harmless() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    assert Refused(RefusedReason.INVALID_CHANGE, node_id(1)) in leader.change([1, 2, 3])
    assert leader.last.index == 1
    leader.propose()
    cluster.settle()
    assert leader.commit == 2


def test_M20_removing_a_stuck_member_lets_the_others_go_on() -> None:
    cluster = Cluster(4)
    leader = cluster.elect(1)
    cluster.cut(1, 4)
    leader.propose(20)
    cluster.run(HEARTBEAT_MS)
    leader.change([1, 2, 3])
    cluster.run(HEARTBEAT_MS)
    cluster.isolate(3)
    leader.propose(5)
    cluster.run(HEARTBEAT_MS)
    assert leader.commit == leader.last.index == 27, "two of three"


@pytest.mark.parametrize(("size", "dead"), [(2, [2]), (4, [3, 4])])
def test_M23_an_even_group_without_its_majority_makes_no_progress(size: int, dead: list[int]) -> None:
    cluster = Cluster(size)
    leader = cluster.elect(1)
    for name in dead:
        cluster[name].crash()
    leader.propose()
    cluster.run(20 * ELECTION_MS)
    assert cluster.leaders() == []
    assert leader.commit == 1
    cluster[dead[0]].restart()
    assert cluster.run(20 * ELECTION_MS, until=lambda: bool(cluster.leaders()) and cluster.leader().commit > 1)


@pytest.mark.parametrize(("size", "dead"), [(2, 2), (4, 4)])
def test_M23_a_leader_that_still_leads_may_remove_the_dead_member(size: int, dead: int) -> None:
    """The new group's majority and the old one's share a voter, so this is no shortcut."""
    cluster = Cluster(size)
    Safety(cluster)
    leader = cluster.elect(1)
    cluster[dead].crash()
    leader.propose()
    leader.change(range(1, size))
    cluster.run(5 * ELECTION_MS)
    assert leader.commit == leader.last.index == 3
    cluster[dead].restart()
    cluster.run(10 * ELECTION_MS)
    assert (leader.role, leader.term) == (Role.LEADER, 1)


def test_M23_a_change_whose_group_would_have_no_live_majority_is_refused() -> None:
    """n3 is dead: without n2, n1 could never commit again, nor could anybody mend it."""
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(2 * HEARTBEAT_MS)
    cluster[3].crash()
    leader.lost(3)
    for voters in ([1, 3], [2, 3]):
        leader.change(voters)
        assert reason(leader) is RefusedReason.NO_LIVE_MAJORITY
    assert leader.core.membership.voters == ids(1, 2, 3)
    cluster.add_node(4)
    leader.change([1, 2, 3], [4])
    cluster.run(2 * HEARTBEAT_MS)
    assert leader.core.membership.learners == ids(4), "a learner changes no majority"
    leader.change([1, 2])
    cluster.run(2 * HEARTBEAT_MS)
    assert leader.core.membership.voters == ids(1, 2), "the dead one may go"
    assert leader.commit == leader.last.index


def test_M23_a_voter_silent_for_an_election_timeout_does_not_count_nor_one_not_heard_since_the_election() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(2 * HEARTBEAT_MS)
    cluster[3].crash()
    cluster.run(HEARTBEAT_MS)
    leader.change([1, 3])
    leader.change([1, 2, 3])
    assert reason(leader) is RefusedReason.CHANGE_IN_PROGRESS, "silent for a moment only"
    cluster = Cluster(3)
    cluster[3].crash()
    leader = cluster.elect(1)
    leader.change([1, 3])
    assert reason(leader) is RefusedReason.NO_LIVE_MAJORITY
    cluster[3].restart()
    cluster.run(2 * HEARTBEAT_MS)
    cluster[3].crash()
    cluster.run(ELECTION_MS + HEARTBEAT_MS)
    leader.change([1, 3])
    assert reason(leader) is RefusedReason.NO_LIVE_MAJORITY


def test_M2_a_leader_removes_itself_and_leads_until_that_is_committed() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.change([2, 3])
    leader.propose()
    assert reason(leader) is RefusedReason.TRANSFERRING
    cluster.settle()
    assert leader.role is Role.LEARNER
    cluster.run(3 * ELECTION_MS)
    assert cluster.leader().name in ids(2, 3)
    assert cluster.leader().core.membership == Membership(ids(2, 3))


def test_M21_a_late_answer_of_the_folder_before_binds_no_learner() -> None:
    """n4 was removed and added again on an empty folder; what its old one had acknowledged arrives only now."""
    leader = leader_by_hand(solo())
    leader.receive(2, ack(1, 1, 1))
    four = node_id(4)
    for learners in ([4], [], [4]):
        leader.change([1, 2, 3], learners)
        leader.receive(2, ack(1, leader.last.index, 1))
        assert leader.commit == leader.last.index
        if leader.last.index == 2:
            leader.step(Received(four, ack(1, 2, 1), "old"))
            assert leader.core.answers_from(four) == "old"
    assert leader.core.answers_from(four) == ""
    leader.step(Received(four, ack(1, 2, 1), "old"))
    leader.step(Received(four, AppendResponse(term=1, success=False, match=EntryId(1, 1), rejected=2), "old"))
    assert leader.core.answers_from(four) == ""
    leader.step(Received(four, AppendResponse(term=1, success=False, match=EntryId(0, 0), rejected=leader.last.index), "new"))
    assert leader.core.answers_from(four) == "new"
