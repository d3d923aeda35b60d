"""Rows T and R of tests/unit/core/conformance.md: leadership transfer, linearizable reads."""

from __future__ import annotations

import pytest

from dledger.core.config import CoreConfig
from dledger.core.effects import ReadFailed, ReadReady, Refused, RefusedReason, TransferEnded
from dledger.core.events import PeerLost
from dledger.core.messages import (
    AppendRequest,
    Heartbeat,
    HeartbeatResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import EntryId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Node, ack, append, leader_by_hand, node_id, solo
from tests.unit.core.safety import Safety


def led(size: int = 3, **settings: object) -> tuple[Cluster, Node]:
    cluster = Cluster(size, **settings)  # type: ignore[arg-type]
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    cluster.settle()
    return cluster, leader


def ended(node: Node) -> list[TransferEnded]:
    return [effect for effect in node.effects if isinstance(effect, TransferEnded)]


def test_T2_a_slow_target_is_brought_up_before_it_is_ordered() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.propose(5)
    cluster.settle()
    cluster.heal()
    leader.lost(3)
    leader.transfer(3)
    assert leader.sent(TimeoutNow) == []
    assert leader.sent(AppendRequest, to=3)
    cluster.settle()
    assert cluster[3].core.is_confirmed_leader
    assert ended(leader) == [TransferEnded(node_id(3), done=True)]


def test_T2_a_target_that_needs_a_copy_is_not_ordered_and_the_transfer_ends_by_itself() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.propose(5)
    cluster.run(HEARTBEAT_MS)
    leader.trim(5)
    cluster.heal()
    leader.transfer(3)
    cluster.run(2 * ELECTION_MS)
    assert (leader.role, ended(leader)) == (Role.LEADER, [TransferEnded(node_id(3), done=False)])
    cluster[3].copy_from(leader)
    cluster.run(ELECTION_MS)
    leader.transfer(3)
    cluster.run(HEARTBEAT_MS)
    assert cluster[3].core.is_confirmed_leader


@pytest.mark.parametrize("target", [1, 9, 4], ids=["itself", "a stranger", "a learner"])
def test_T3_a_target_that_cannot_lead_is_refused(target: int) -> None:
    cluster, leader = led(learners=[4])
    assert leader.transfer(target) == [Refused(RefusedReason.UNKNOWN_TARGET, node_id(1))]
    cluster.run(2 * ELECTION_MS)
    assert leader.role is Role.LEADER


def test_T5_proposals_are_refused_for_certain_and_reads_go_on_meanwhile() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.transfer(3)
    before = leader.last
    assert Refused(RefusedReason.TRANSFERRING, node_id(1)) in leader.propose()
    assert leader.last == before
    leader.read(7)
    cluster.settle()
    assert leader.reads == {7: before.index}
    cluster.run(2 * ELECTION_MS)
    assert ended(leader) == [TransferEnded(node_id(3), done=False)]
    leader.propose()
    cluster.settle()
    assert leader.commit == before.index + 1


def test_T6_a_newer_leader_ends_a_transfer() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.transfer(3)
    leader.receive(2, append(5, (1, 1), [5]))
    assert (leader.role, leader.term, leader.core.leader) == (Role.FOLLOWER, 5, node_id(2))
    assert leader.core.status().transfer_target is None
    assert ended(leader) == [TransferEnded(node_id(3), done=False)]


def test_T8_a_transfer_back_to_itself_is_called_off() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.transfer(3)
    leader.transfer(1)
    assert ended(leader) == [TransferEnded(node_id(3), done=False)]
    leader.propose()
    cluster.settle()
    assert leader.commit == leader.last.index


def test_T9_another_target_replaces_the_first() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.transfer(3)
    leader.transfer(2)
    cluster.settle()
    assert cluster[2].role is Role.LEADER
    assert ended(leader) == [TransferEnded(node_id(3), done=False), TransferEnded(node_id(2), done=True)]


def test_T9_asking_again_for_the_same_target_gives_it_no_more_time() -> None:
    cluster, leader = led()
    cluster.isolate(3)
    leader.transfer(3)
    began_ms = cluster.now_ms
    for _ in range(5):
        cluster.run(HEARTBEAT_MS)
        leader.transfer(3)
    assert cluster.run(2 * ELECTION_MS, until=lambda: bool(ended(leader)))
    assert cluster.now_ms - began_ms <= ELECTION_MS + HEARTBEAT_MS


def test_T11_a_read_during_a_transfer_is_confirmed_by_a_majority_or_not_at_all() -> None:
    """There is no lease to drop: every read asks a majority, also between the order to take over and its effect."""
    cluster, leader = led()
    leader.transfer(2)
    assert leader.sent(TimeoutNow, to=2)
    cluster.deliver_all(kind=TimeoutNow)
    leader.read(7)
    cluster.drop(source=1, kind=Heartbeat)
    cluster.settle()
    assert cluster[2].role is Role.LEADER
    assert leader.reads == {7: None}


def test_T12_a_fresher_log_beats_priority() -> None:
    favoured = CoreConfig(heartbeat_interval_ms=HEARTBEAT_MS, election_timeout_ms=ELECTION_MS, priority=9)
    cluster = Cluster(3, logs={1: [1, 1], 2: [1, 1], 3: [1]}, configs={node_id(3): favoured})
    Safety(cluster)
    assert cluster.run(20 * ELECTION_MS, until=lambda: bool(cluster.leaders()))
    assert cluster.leader().name != node_id(3)
    cluster.run(ELECTION_MS)
    assert cluster[3].terms[:2] == [1, 1]


def answer(node: Node, *, source: object = 2, round: int | None = None) -> None:
    rounds = [message.round for message in node.sent(Heartbeat, to=source) if isinstance(message, Heartbeat)]
    node.receive(source, HeartbeatResponse(term=node.term, round=rounds[-1] if round is None else round))


def test_R2_a_new_leader_holds_reads_until_its_first_commit() -> None:
    node = leader_by_hand(solo([1, 1]))
    node.read(7)
    answer_all = HeartbeatResponse(term=2, round=1)
    node.receive(2, answer_all)
    assert node.reads == {}
    node.receive(2, ack(2, 3, 2))
    assert node.commit == 3
    assert node.reads == {}, "and then a majority is asked"
    answer(node)
    assert node.reads == {7: 3}


def test_R3_an_answer_to_an_earlier_question_confirms_no_later_read() -> None:
    cluster, leader = led()
    cluster.drop()
    leader.read(1)
    cluster.deliver_all(kind=Heartbeat)
    withheld = [envelope for envelope in cluster.pick(kind=HeartbeatResponse) if envelope.to == node_id(1)]
    cluster.drop()
    cluster.isolate(1)
    cluster.now_ms += 2 * ELECTION_MS  # the old leader is slow and has not noticed
    cluster[2].campaign()
    cluster.settle()
    cluster[2].propose()
    cluster.settle()
    assert cluster[2].commit > leader.commit
    leader.read(2)
    for envelope in (*withheld, *withheld):
        leader.receive(envelope.source, envelope.message)
    assert leader.reads == {1: 1}, "the first was asked before anything newer was committed"
    assert 2 not in leader.reads


def test_R3_an_answer_to_a_heartbeat_of_an_earlier_life_confirms_nothing_in_the_next() -> None:
    """The counter of rounds begins anew at a restart, and an answer to an old term names the new one."""
    cluster, leader = led()
    leader.read(1)
    question = next(envelope.message for envelope in cluster.pick(kind=Heartbeat) if envelope.to == node_id(2))
    cluster.drop()
    leader.crash(keep_writes=9)
    leader.restart()
    cluster.now_ms += 2 * ELECTION_MS
    leader = cluster.elect(1)
    cluster[2].receive(1, question)
    late = [envelope for envelope in cluster.pick(kind=HeartbeatResponse) if envelope.to == node_id(1)]
    cluster.drop()
    cluster.isolate(1)
    cluster.now_ms += 2 * ELECTION_MS
    cluster[2].campaign()
    cluster.settle()
    cluster[2].propose()
    cluster.settle()
    leader.read(9)
    contact = {peer.node: peer.silent_ms for peer in leader.core.status().peers}
    for envelope in late:
        assert isinstance(envelope.message, HeartbeatResponse)
        assert envelope.message.term == leader.term
        leader.receive(envelope.source, envelope.message)
    assert late, "the question was answered"
    assert leader.reads == {}, "an answer from before the question"
    assert {peer.node: peer.silent_ms for peer in leader.core.status().peers} == contact, "nor is it a sign of life"


def test_R5_a_smaller_group_answers_a_pending_read() -> None:
    cluster = Cluster(2)
    leader = cluster.elect(1)
    cluster.isolate(2)
    leader.read(7)
    assert leader.reads == {}
    leader.change([1])
    assert leader.reads == {7: 1}


def test_R6_no_clock_confirms_a_read_however_recent_the_last_contact() -> None:
    """Lease reads are not offered (default off is the only setting)."""
    cluster, leader = led()
    leader.read(7)
    assert leader.reads == {}
    assert not [name for name in CoreConfig.__dataclass_fields__ if "lease" in name]
    cluster.settle()
    assert leader.reads == {7: 1}


def test_R8_an_isolated_leader_serves_no_old_state() -> None:
    cluster, old = led()
    Safety(cluster)
    cluster.isolate(1)
    assert cluster.run(10 * ELECTION_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3)))
    old.read(7)
    cluster.run(2 * ELECTION_MS)
    assert old.reads.get(7) is None


@pytest.mark.parametrize("role", ["old leader that has not noticed", "candidate", "follower without a leader"])
def test_R8_who_does_not_lead_fails_a_read(role: str) -> None:
    node = solo([1])
    if role == "candidate":
        node.campaign()
    elif role == "old leader that has not noticed":
        leader_by_hand(node)
        node.receive(2, ack(2, 2, 2))
        node.read(7)
        node.cluster.now_ms += 2 * ELECTION_MS
        node.tick()
        assert node.reads == {7: None}
        return
    assert ReadFailed(7) in node.read(7)


def test_R9_a_follower_asks_the_leader_and_reads_no_further_than_it_has_applied_its_answer() -> None:
    cluster, leader = led()
    leader.propose(3)
    cluster.settle()
    follower = cluster[2]
    follower.read(7)
    assert len(follower.sent(ReadIndexRequest, to=1)) == 1
    cluster.settle()
    assert ReadReady(7, 4) in follower.effects
    assert follower.commit == 4


def test_R9_a_followers_read_fails_when_its_leader_changes_and_late_answers_find_nobody() -> None:
    cluster, _leader = led()
    follower = cluster[2]
    follower.read(7)
    request = follower.sent(ReadIndexRequest, to=1)[0]
    assert isinstance(request, ReadIndexRequest)
    follower.receive(3, append(2, (1, 1), [2]))
    assert follower.reads == {7: None}
    follower.receive(1, ReadIndexResponse(term=2, token=request.token, index=1, ok=True))
    assert follower.reads == {7: None}


def test_R9_a_follower_whose_leader_is_silent_gives_a_read_up() -> None:
    cluster, _leader = led()
    follower = cluster[2]
    follower.read(7)
    cluster.drop()
    cluster.cut(2, 1, both=False)
    cluster.run(2 * ELECTION_MS)
    assert follower.reads == {7: None}


def test_R11_a_single_voter_answers_once_its_no_op_is_durable() -> None:
    node = solo(voters=1, auto_persist=False)
    node.campaign()
    node.persist(1)
    node.read(7)
    assert (node.role, node.reads) == (Role.LEADER, {})
    node.persist()
    assert node.reads == {7: 1}


def test_T2_a_lost_order_is_repeated() -> None:
    cluster, leader = led()
    leader.transfer(2)
    cluster.drop(kind=TimeoutNow)
    assert cluster.run(2 * HEARTBEAT_MS, until=lambda: cluster[2].role is Role.LEADER)


def test_T2_an_order_of_an_older_term_is_ignored() -> None:
    node = solo([1, 4])
    effects = node.receive(2, TimeoutNow(term=1))
    assert (effects, node.role, node.term) == ([], Role.FOLLOWER, 4)


def test_T2_the_target_needs_no_pre_vote_and_is_not_held_off_by_stickiness() -> None:
    cluster, leader = led()
    leader.transfer(2)
    cluster.deliver_all(kind=TimeoutNow)
    asked = [message for message in cluster[2].sent(VoteRequest) if isinstance(message, VoteRequest)]
    assert asked == [VoteRequest(term=2, last=EntryId(1, 1), transfer=True)] * 2
    cluster.deliver_all(kind=VoteRequest)
    assert all(message.granted for name in (1, 3) for message in cluster[name].sent(VoteResponse) if isinstance(message, VoteResponse))


def test_R3_a_broken_stream_does_not_confirm_a_read() -> None:
    cluster, leader = led()
    leader.read(7)
    leader.step(PeerLost(node_id(2)))
    leader.step(PeerLost(node_id(3)))
    assert leader.reads == {}
    cluster.settle()
    assert leader.reads == {7: 1}


def test_T2_a_target_that_lacks_what_is_in_flight_is_not_ordered() -> None:
    """It has all that is committed; ordered now, it would cut what is still under way."""
    cluster, leader = led()
    leader.propose(5)
    leader.transfer(2)
    assert leader.commit < leader.last.index
    assert leader.sent(TimeoutNow) == []
    cluster.settle()
    assert cluster[2].core.is_confirmed_leader
    assert cluster[2].core.term_at(leader.last.index - 1) == 1
    assert cluster[2].last.index == 7, "two no-ops and all five"


def test_R9_an_answer_to_a_question_of_an_earlier_life_confirms_nothing_in_the_next() -> None:
    cluster, leader = led()
    follower = cluster[2]
    follower.read(7)
    cluster.deliver_all(source=2, to=1)
    cluster.deliver_all(source=1, to=3)
    cluster.deliver_all(source=3, to=1)
    (late,) = cluster.pick(source=1, to=2, kind=ReadIndexResponse)
    cluster.bag.clear()
    follower.crash()
    follower.restart()
    leader.propose()
    cluster.run(2 * HEARTBEAT_MS)
    assert follower.core.leader == leader.name
    follower.read(8)
    cluster.drop(source=2)
    cluster.deliver(late)
    assert 8 not in follower.reads
