"""Rows D of tests/unit/core/conformance.md: asynchronous storage and completions that come late."""

from __future__ import annotations

import pytest

from dledger.core.causes import Cause
from dledger.core.effects import Append, CutTail, RefusedReason
from dledger.core.events import (
    Applied,
    Deprioritize,
    HardStateStored,
    LowOnSpace,
    StorageFailed,
    StorageRecovered,
    Stored,
    TransferRequested,
)
from dledger.core.messages import AppendRequest, AppendResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.own_disk import LOW_SETTLES_BEATS, LOW_SETTLES_MS
from dledger.core.types import EntryId, Role
from dledger_wire.check import InvariantBrokenError
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Node, ack, append, leader_by_hand, node_id, solo
from tests.unit.core.safety import Safety

SETTLES_MS = LOW_SETTLES_MS + LOW_SETTLES_BEATS * HEARTBEAT_MS


def test_D1_a_follower_acknowledges_when_it_is_on_disk() -> None:
    node = solo([1], auto_persist=False)
    node.receive(2, append(2, (1, 1), [2, 2]))
    assert node.sent(AppendResponse) == []
    node.persist(1)  # the term
    assert node.sent(AppendResponse) == []
    node.persist()
    assert node.sent(AppendResponse) == [ack(2, 3, 2)]


@pytest.mark.parametrize("granted", [True, False])
def test_D1_votes_and_refusals_that_raise_the_term_wait_for_the_disk(granted: bool) -> None:
    node = solo([1, 1], auto_persist=False)
    node.receive(2, VoteRequest(term=5, last=EntryId(2 if granted else 1, 1)))
    assert node.sent(VoteResponse) == []
    node.persist()
    assert node.sent(VoteResponse) == [VoteResponse(term=5, granted=granted)]


def test_D1_a_refusal_of_entries_that_raised_the_term_waits_for_the_disk() -> None:
    node = solo([1], auto_persist=False)
    node.receive(2, append(5, (9, 4)))
    assert node.sent(AppendResponse) == []
    node.persist()
    assert [message.success for message in node.sent(AppendResponse) if isinstance(message, AppendResponse)] == [False]


def test_D1_a_leader_sends_before_its_own_sync_and_commits_by_a_durable_majority() -> None:
    node = leader_by_hand(solo())
    node.cluster.drop()
    node.receive(2, ack(1, 1, 1))
    node.cluster.auto_persist = False
    node.propose()
    assert node.sent(AppendRequest, to=2)
    node.receive(2, ack(1, 2, 1))
    assert node.commit == 1
    node.persist()
    assert node.commit == 2


def test_D3_a_self_acknowledgement_from_before_a_change_of_term_is_void() -> None:
    node = leader_by_hand(solo())
    node.cluster.auto_persist = False
    node.propose()
    late = node.sync()
    node.receive(2, append(2, (0, 0), [2]))  # another leader, another entry 1
    node.persist()
    assert node.core.durable == 1
    for event in (*late, Stored(EntryId(2, 1)), Stored(EntryId(1, 1))):
        node.step(event)
    assert (node.core.durable, node.last) == (1, EntryId(1, 2))


def test_D3_an_old_completion_does_not_make_a_re_elected_leader_count_itself() -> None:
    node = leader_by_hand(solo(voters=2))
    node.cluster.auto_persist = False
    node.propose()
    node.receive(2, append(3, (1, 1), [3, 3]))
    node.persist()
    node.cluster.auto_persist = True
    node.cluster.now_ms += 3 * ELECTION_MS
    node.campaign()
    node.receive(2, VoteResponse(term=4, granted=True, pre_vote=True))
    node.cluster.auto_persist = False
    node.persist()
    node.receive(2, VoteResponse(term=4, granted=True))
    assert (node.role, node.last) == (Role.LEADER, EntryId(4, 4))
    node.receive(2, ack(4, 4, 4))
    node.step(Stored(EntryId(4, 1)))
    assert node.commit == 0
    node.persist()
    assert node.commit == 4


def test_D4_a_completion_under_a_new_leader_confirms_only_what_that_one_verified() -> None:
    node = solo([1, 1, 1, 1], term=2, auto_persist=False)
    node.receive(2, append(2, (4, 1), [2, 2, 2]))
    assert node.sent(AppendResponse) == []
    node.receive(3, append(3, (4, 1)))
    node.persist()
    to_new = [message.match for message in node.sent(AppendResponse, to=3) if isinstance(message, AppendResponse)]
    assert to_new == [EntryId(4, 1)], "5 to 7 may be cut"


def test_D6_the_watermark_is_the_prefix_that_is_on_disk_in_whatever_order_completions_come() -> None:
    node = solo([1])
    node.cluster.auto_persist = False
    node.receive(2, append(1, (1, 1), [1, 1, 1]))
    node.receive(2, append(1, (4, 1), [1]))
    node.sync()
    node.step(Stored(EntryId(5, 1)))
    node.step(Stored(EntryId(3, 1)))
    assert node.core.durable == 5


def test_D6_a_flush_that_overlaps_a_cut_raises_nothing_that_is_gone_and_the_node_does_not_stall() -> None:
    cluster = Cluster(3)
    Safety(cluster)
    leader = cluster.elect(1)
    follower = cluster[2]
    cluster.auto_persist = False
    stray = append(1, (1, 1), [1, 1])
    follower.receive(1, stray)
    late = follower.sync()
    follower.receive(3, append(2, (1, 1), [2, 2, 2]))
    assert CutTail(2) in follower.effects
    for event in late:
        follower.step(event)
    assert follower.core.durable == 1
    follower.persist()
    assert follower.core.durable == 4
    assert leader.role is Role.LEADER


def test_D7_a_follower_whose_disk_is_full_acknowledges_nothing_and_recovers_by_being_sent_again() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    follower = cluster[2]
    follower.step(StorageFailed(fatal=False))
    leader.propose(5)
    cluster.run(3 * HEARTBEAT_MS)
    assert (leader.commit, follower.last.index) == (6, 1), "the others go on"
    follower.step(StorageRecovered())
    assert cluster.run(6 * HEARTBEAT_MS, until=lambda: follower.commit == 6)


def test_D7_a_leader_whose_disk_is_full_refuses_and_hands_over() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    leader.step(StorageFailed(fatal=False))
    leader.propose()
    refusal = leader.refused()
    assert refusal is not None
    assert refusal.reason is RefusedReason.STORAGE
    assert cluster.run(2 * ELECTION_MS, until=lambda: bool(cluster.leaders()) and cluster.leader().name != leader.name)
    cluster.leader().propose()
    cluster.run(HEARTBEAT_MS)
    assert cluster.leader().commit == cluster.leader().last.index


def test_a_leader_whose_disk_is_full_leads_on_while_the_others_are_no_majority_without_it() -> None:
    """It could neither vote for another one nor acknowledge its entries: nobody would lead, and nothing could be read."""
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    cluster.isolate(3)
    leader.propose(5)
    cluster.run(2 * ELECTION_MS)
    leader.step(StorageFailed(fatal=False))
    cluster.run(10 * ELECTION_MS)
    assert leader.core.is_confirmed_leader
    assert not leader.sent(TimeoutNow)
    cluster.heal()
    assert cluster.run(2 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3)))


def test_a_leader_whose_disk_is_full_and_that_one_voter_cannot_reach_hands_over_to_who_hears_that_one() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    cluster.cut(1, 3)
    leader.propose(5)
    leader.step(StorageFailed(fatal=False))
    assert cluster.run(10 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3)))
    cluster.leader().propose()
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster.leader().commit == cluster.leader().last.index)
    assert cluster.leader().commit >= 7


def test_a_leader_whose_disk_is_full_counts_nobody_who_asked_for_votes_long_ago() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    cluster.cut(1, 3)
    assert cluster.run(10 * ELECTION_MS, until=lambda: bool(leader.core._core.replication.peers[node_id(2)].seekers))
    cluster.isolate(3)
    cluster.run(4 * ELECTION_MS)
    leader.step(StorageFailed(fatal=False))
    cluster.run(10 * ELECTION_MS)
    assert leader.core.is_confirmed_leader
    assert not leader.sent(TimeoutNow)


def test_a_leader_whose_disk_is_full_leads_on_while_those_of_others_are_too() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    for name in (2, 3):
        cluster[name].step(StorageFailed(fatal=False))
    leader.propose(5)
    leader.step(StorageFailed(fatal=False))
    cluster.run(10 * ELECTION_MS)
    assert leader.core.is_confirmed_leader
    assert not leader.sent(TimeoutNow)
    for name in (2, 3):
        cluster[name].step(StorageRecovered())
    assert cluster.run(5 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3)))
    assert cluster.leader().commit >= 6


def test_a_leader_low_on_space_hands_over_to_the_voter_with_room_though_another_has_more_of_the_log() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    for name in (1, 2, 3):
        cluster[name].step(LowOnSpace(on=True))
    cluster.run(SETTLES_MS + ELECTION_MS)
    cluster.dropping = lambda envelope: envelope.to == node_id(3) and isinstance(envelope.message, AppendRequest)
    leader.propose(5)
    cluster.run(2)
    assert (cluster[2].last.index, cluster[3].last.index) == (6, 1)
    cluster[3].step(LowOnSpace(on=False))
    assert cluster.run(ELECTION_MS // 2, until=lambda: leader.core._core.transfers.target == node_id(3))
    cluster.dropping = lambda _envelope: False
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].core.is_confirmed_leader)
    assert cluster[3].last.index > 6


def test_a_leader_low_on_space_first_hears_from_voters_whose_disks_fill_at_the_same_time() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.step(LowOnSpace(on=True))
    cluster.run(LOW_SETTLES_MS)
    cluster[2].step(LowOnSpace(on=True))
    cluster[3].step(StorageFailed(fatal=False))
    cluster.run(20 * ELECTION_MS)
    assert leader.core.is_confirmed_leader
    assert not leader.sent(TimeoutNow)
    cluster[3].step(StorageRecovered())
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].core.is_confirmed_leader)


def test_a_leader_low_on_space_hands_over_as_soon_as_it_knows_that_another_has_room() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    leader.step(LowOnSpace(on=True))
    assert cluster.run(SETTLES_MS + 2 * HEARTBEAT_MS, until=lambda: leader.sent(TimeoutNow) != [])


def test_leadership_is_given_to_a_voter_that_is_able_to_lead() -> None:
    for against in (LowOnSpace(on=True), Deprioritize("certificate")):
        cluster = Cluster(3)
        leader = cluster.elect(1)
        cluster[2].step(against)
        cluster.run(2 * HEARTBEAT_MS)
        leader.step(TransferRequested(None))
        assert cluster.run(2 * ELECTION_MS, until=lambda cluster=cluster: cluster[3].core.is_confirmed_leader)


def test_a_replica_learns_what_another_one_keeps() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    for _ in range(5):
        leader.propose(1)
    cluster.run(3 * HEARTBEAT_MS)
    last = leader.last.index
    kept = {name: cluster[name].core.status().kept for name in (1, 2, 3)}
    assert kept == dict.fromkeys((1, 2, 3), (1, last))
    for name in (1, 2, 3):
        cluster[name].step(LowOnSpace(on=False, sheds=name != 3))
    cluster.run(3 * HEARTBEAT_MS)
    assert [cluster[name].core.status().kept for name in (1, 2, 3)] == [(1, last), (1, last), (0, 0)]
    cluster[3].step(LowOnSpace(on=False, sheds=True))
    cluster.run(3 * HEARTBEAT_MS)
    assert [cluster[name].core.status().kept for name in (1, 2, 3)] == [(0, 0)] * 3, "the last copy is kept"
    cluster[3].step(LowOnSpace(on=False))
    cluster.run(3 * HEARTBEAT_MS)
    cluster.dropping = lambda envelope: envelope.to == node_id(2)
    assert cluster[2].core.status().kept == (1, last)
    assert cluster.run(3 * ELECTION_MS, until=lambda: cluster[2].sent(VoteRequest) != [])
    assert cluster[2].core.status().kept == (0, 0), "what was known long ago is no reason to delete"


def test_a_leader_low_on_space_leads_on_while_no_voter_has_room() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    for name in (1, 2, 3):
        cluster[name].step(LowOnSpace(on=True))
    cluster.run(20 * ELECTION_MS)
    assert leader.core.is_confirmed_leader
    assert not cluster[2].sent(TimeoutNow)
    cluster[2].step(LowOnSpace(on=False))
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[2].core.is_confirmed_leader)


def test_D7_a_leader_whose_sync_failed_says_nothing_any_more_and_others_lead() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    leader.step(StorageFailed(fatal=True))
    assert leader.role is not Role.LEADER
    assert leader.propose()[-1].reason is RefusedReason.STORAGE  # type: ignore[union-attr]
    began_ms = cluster.now_ms
    assert cluster.run(4 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3)))
    assert cluster.now_ms - began_ms < ELECTION_MS, "the best voter is told to take over"


def test_D9_a_disk_that_lied_is_seen_by_the_leader() -> None:
    """Losing what was acknowledged may lose data, no protocol can help; it must be seen."""
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.propose(3)
    cluster.run(HEARTBEAT_MS)
    liar = cluster[2]
    liar.crash()
    del liar.disk.entries[1:]
    liar.restart()
    leader.propose()
    cluster.run(6 * HEARTBEAT_MS)
    assert leader.core.status().ack_regressions == 1
    assert liar.terms == leader.terms


def test_D10_an_entry_is_committed_nowhere_before_a_majority_holds_it() -> None:
    cluster = Cluster(3)
    Safety(cluster)
    leader = cluster.elect(1)
    cluster.cut(2, 1, both=False)
    cluster.cut(3, 1, both=False)
    leader.propose(3)
    cluster.settle()
    assert cluster[2].last.index == cluster[3].last.index == 4
    assert [node.commit for node in cluster.nodes.values()] == [1, 1, 1]


def test_D12_applied_never_passes_commit_and_never_goes_back() -> None:
    node = solo([1] * 5, commit=3)
    with pytest.raises(InvariantBrokenError):
        node.step(Applied(4))
    node.step(Applied(3))
    node.step(Applied(2))
    assert node.core.status().applied == 3


def test_D13_what_a_deposed_leader_had_proposed_is_committed_or_cut_and_it_learns_which() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.isolate(1)
    leader.propose(2)
    cluster.run(10 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3)))
    cluster.heal()
    cluster.run(ELECTION_MS)
    assert CutTail(2) in leader.effects
    assert leader.terms == cluster.leader().terms


def test_D15_a_group_goes_on_while_its_leaders_disk_stands_still_and_loses_nothing_with_it() -> None:
    cluster = Cluster(3, auto_persist=False)
    Safety(cluster)

    leader = cluster[1]
    leader.campaign()
    while leader.role is not Role.LEADER:
        leader.persist()
        cluster.deliver_all()
        for name in (2, 3):
            cluster[name].persist()
    leader.persist()
    began_ms = cluster.now_ms
    for _ in range(3):
        leader.propose()
        for _ in range(8):
            cluster.run(3)
            for name in (2, 3):
                cluster[name].persist()
    assert leader.commit == 4, "by the other two"
    assert leader.core.durable == 1
    for _ in range(60):
        cluster.run(HEARTBEAT_MS // 2)
        for name in (2, 3):
            cluster[name].persist()
    others = [cluster[name] for name in (2, 3) if cluster[name].role is Role.LEADER]
    assert others, "a disk that stands still for an election timeout makes the leader hand over"
    assert cluster.now_ms - began_ms <= 10 * ELECTION_MS
    leader.crash()
    leader.restart()
    cluster.auto_persist = True
    cluster.run(2 * ELECTION_MS)
    assert leader.terms == cluster.leader().terms
    assert leader.terms[:4] == [1, 1, 1, 1]


def writing() -> Node:
    """A leader with a write under way, at the time of its next heartbeat."""
    node = leader_by_hand(solo())
    for voter in (2, 3):
        node.receive(voter, ack(1, 1, 1))
    node.cluster.auto_persist = False
    node.propose()
    node.timeout()
    return node


def beat_on(node: Node, heartbeats: int) -> None:
    """Time passes; 2 and 3 answer, and have everything."""
    for _ in range(heartbeats):
        node.cluster.now_ms += HEARTBEAT_MS
        for voter in (2, 3):
            node.receive(voter, ack(1, node.last.index, 1))
        node.tick()


def test_D15_a_leader_that_was_paused_does_not_count_the_pause_as_time_of_its_disk() -> None:
    node = writing()
    node.cluster.now_ms += 5 * ELECTION_MS
    beat_on(node, 1)  # what had come meanwhile is read first, then timers are seen to, then writes that ended
    assert node.role is Role.LEADER
    assert not node.core._core.transfers.pending
    node.persist()
    beat_on(node, 2 * ELECTION_MS // HEARTBEAT_MS)
    assert not node.sent(TimeoutNow)


@pytest.mark.parametrize("begins", ["before", "after"])
def test_D15_a_write_that_lasts_on_after_a_pause_makes_the_leader_hand_over(begins: str) -> None:
    node = writing()
    if begins == "after":
        node.persist()
    node.cluster.now_ms += 5 * ELECTION_MS
    if begins == "after":
        node.propose()
    beat_on(node, ELECTION_MS // HEARTBEAT_MS)
    assert not node.sent(TimeoutNow)
    beat_on(node, 2)
    assert node.sent(TimeoutNow, to=2)[0] == TimeoutNow(term=1, cause=Cause.DISK_SLOW)


def test_D3_a_promise_stored_late_counts_only_for_itself() -> None:
    node = solo(voters=5, auto_persist=False)
    node.campaign()
    for voter in (2, 3):
        node.receive(voter, VoteResponse(term=1, granted=True, pre_vote=True))
    assert node.role is Role.CANDIDATE
    for voter in (2, 3):
        node.receive(voter, VoteResponse(term=1, granted=True))
    node.step(HardStateStored(1, node_id(2)))
    node.step(HardStateStored(0, None))
    assert node.role is Role.CANDIDATE, "two votes; the own one is not on disk"
    node.persist()
    assert node.role is Role.LEADER  # type: ignore[comparison-overlap]  # changed by the calls between
    assert [effect for effect in node.effects if isinstance(effect, Append)]
