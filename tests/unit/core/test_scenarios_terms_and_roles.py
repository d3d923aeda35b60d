"""Rows E of tests/unit/core/conformance.md: terms, roles, timers."""

from __future__ import annotations

from collections import Counter

import pytest

from dledger.core.causes import Cause
from dledger.core.config import CoreConfig
from dledger.core.effects import MessageRefused, RoleChanged, SaveHardState
from dledger.core.events import Deprioritize, PeerLost, Tick
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotOffer,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.types import ZERO_ENTRY, EntryId, Role
from dledger_wire.check import InvariantBrokenError
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Node, ack, append, ids, leader_by_hand, node_id, solo


def in_role(role: Role, **settings: object) -> Node:
    """A solo node in term 1 (leader, candidate) or 0, brought into ``role``."""
    node = solo(**settings)  # type: ignore[arg-type]
    if role is Role.LEADER:
        return leader_by_hand(node)
    if role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
        node.campaign()
    if role is Role.CANDIDATE:
        for voter in (2, 3):
            if node.role is Role.PRE_CANDIDATE:
                node.receive(voter, VoteResponse(term=node.term + 1, granted=True, pre_vote=True))
    assert node.role is role
    return node


ROLES = [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("message", [append(2, (0, 0)), Heartbeat(term=2, commit=0, round=1)])
def test_E1_newer_term_makes_a_follower_and_is_durable_before_the_answer(role: Role, message: Message) -> None:
    node = in_role(role)
    node.cluster.auto_persist = False
    effects = node.receive(2, message)
    assert (node.role, node.term, node.core.leader, node.core.vote) == (Role.FOLLOWER, 2, node_id(2), None)
    assert SaveHardState(2, None) in effects
    assert not node.sent(AppendResponse) + node.sent(HeartbeatResponse), "nothing leaves before the term is on disk"
    node.persist()
    assert [answer.term for answer in node.sent(AppendResponse) + node.sent(HeartbeatResponse)] == [2]


OLD_REQUESTS: list[Message] = [
    append(1, (0, 0), [1]),
    Heartbeat(term=1, commit=1, round=1),
    VoteRequest(term=1, last=EntryId(9, 1)),
    VoteRequest(term=1, last=EntryId(9, 1), pre_vote=True),
    TimeoutNow(term=1),
    SnapshotOffer(term=1, first_available=5, last=EntryId(9, 1)),
    ReadIndexRequest(term=1, token=7),
    VoteResponse(term=1, granted=True),
    ack(1, 1, 1),
    HeartbeatResponse(term=1, round=9),
    ReadIndexResponse(term=1, token=7, index=1, ok=True),
]


@pytest.mark.parametrize("message", OLD_REQUESTS, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("role", ROLES)
def test_E2_older_term_changes_nothing(role: Role, message: Message) -> None:
    node = in_role(role, log=[1, 2], term=5)
    before = (node.role, node.term, node.core.vote, node.last, node.commit, node.core.leader, node.core.next_wakeup_ms())
    effects = node.receive(2, message)
    assert (node.role, node.term, node.core.vote, node.last, node.commit, node.core.leader, node.core.next_wakeup_ms()) == before
    assert not [effect for effect in effects if isinstance(effect, SaveHardState | RoleChanged)]


@pytest.mark.parametrize(("message", "answer"), [(OLD_REQUESTS[0], AppendResponse), (OLD_REQUESTS[1], HeartbeatResponse)])
def test_E3_an_old_leader_is_told_the_newer_term(message: Message, answer: type[AppendResponse | HeartbeatResponse]) -> None:
    node = solo([1, 2], term=2)
    node.receive(2, message)
    assert [sent.term for sent in node.sent(answer, to=2)] == [2]
    assert node.last == EntryId(2, 2)


@pytest.mark.parametrize("term", [0, 4])
def test_E4_a_node_starts_as_follower_and_says_nothing(term: int) -> None:
    node = solo(term=term)
    assert (node.role, node.core.leader, node.term) == (Role.FOLLOWER, None, term)
    assert node.step(Tick()) == []


def test_E5_heartbeats_go_to_everybody_and_carry_no_entries() -> None:
    cluster = Cluster(3, learners=[4])
    leader = cluster.elect(1)
    leader.propose(2)
    cluster.drop()
    cluster.now_ms += HEARTBEAT_MS
    leader.tick()
    beats = cluster.pick(source=1, kind=Heartbeat)
    assert [envelope.to for envelope in beats] == list(ids(2, 3, 4))
    beat = Heartbeat(term=1, commit=1, round=1, newest_commit=1, commit_term=1, election_timeout_ms=ELECTION_MS, kept_from=1, kept_upto=3)
    assert all(envelope.message == beat for envelope in beats)
    assert len(cluster.bag) == 3


def test_E6_a_follower_that_hears_nothing_asks_for_votes() -> None:
    node = solo([1], term=1)
    node.timeout()
    assert node.role is Role.PRE_CANDIDATE
    request = VoteRequest(term=2, last=EntryId(1, 1), pre_vote=True)
    assert node.sent(object) == [request, request]
    assert (node.term, node.core.vote) == (1, None)


@pytest.mark.parametrize(
    ("size", "answers", "expected"),
    [
        (1, {}, Role.LEADER),
        (3, {2: True, 3: True}, Role.LEADER),
        (3, {2: True}, Role.LEADER),
        (5, {2: True, 3: True, 4: True, 5: True}, Role.LEADER),
        (5, {2: True, 3: True, 4: True}, Role.LEADER),
        (5, {2: True, 3: True}, Role.LEADER),
        (3, {2: False, 3: False}, Role.FOLLOWER),
        (5, {2: False, 3: False, 4: False, 5: False}, Role.FOLLOWER),
        (5, {2: True, 3: False, 4: False, 5: False}, Role.FOLLOWER),
        (3, {}, Role.CANDIDATE),
        (5, {2: True}, Role.CANDIDATE),
        (5, {2: False, 3: False}, Role.CANDIDATE),
        (5, {2: True, 3: False, 4: False}, Role.CANDIDATE),
        (5, {}, Role.CANDIDATE),
    ],
)
def test_E7_one_round_of_votes_decides(size: int, answers: dict[int, bool], expected: Role) -> None:
    node = candidate(size)
    for voter, granted in answers.items():
        if node.role is Role.CANDIDATE:
            node.receive(voter, VoteResponse(term=1, granted=granted))
    assert (node.role, node.term) == (expected, 1)


def candidate(size: int) -> Node:
    """Node 1 as a candidate of term 1 whose own vote is on disk (alone it leads at once)."""
    node = solo(voters=size)
    node.campaign()
    for voter in range(2, size + 1):
        if node.role is Role.PRE_CANDIDATE:
            node.receive(voter, VoteResponse(term=1, granted=True, pre_vote=True))
    return node


@pytest.mark.parametrize("answers", [[True, True], [True, True, True], [False, True, True]])
def test_E8_same_vote_twice_counts_once(answers: list[bool]) -> None:
    node = candidate(5)
    for granted in answers:
        node.receive(2, VoteResponse(term=1, granted=granted))
    assert node.role is Role.CANDIDATE
    node.receive(3, VoteResponse(term=1, granted=True))
    # With the own vote: 3 of 5 when the first answer of 2 was a yes; a yes after a no changes nothing.
    assert node.role is (Role.LEADER if answers[0] else Role.CANDIDATE)


def test_E9_votes_of_another_term_or_of_strangers_do_not_count() -> None:
    node = candidate(5)
    node.receive(2, VoteResponse(term=0, granted=True))
    node.receive(9, VoteResponse(term=1, granted=True))
    node.receive(8, VoteResponse(term=1, granted=True))
    assert node.role is Role.CANDIDATE


@pytest.mark.parametrize("role", [Role.PRE_CANDIDATE, Role.CANDIDATE])
@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("kind", ["append", "heartbeat"])
def test_E10_a_candidate_falls_back_before_a_winner(role: Role, later: int, kind: str) -> None:
    node = in_role(role)
    term = node.term + later
    node.receive(2, append(term, (0, 0)) if kind == "append" else Heartbeat(term=term, commit=0, round=0))
    assert (node.role, node.term, node.core.leader) == (Role.FOLLOWER, term, node_id(2))


def test_E11_timeouts_cover_their_range_and_are_drawn_anew() -> None:
    seen: Counter[int] = Counter()
    node = solo(config=CoreConfig(heartbeat_interval_ms=10, election_timeout_ms=30))
    for _ in range(50 * 30):
        node.receive(2, Heartbeat(term=1, commit=0, round=0))
        due_ms = node.core.next_wakeup_ms()
        assert due_ms is not None
        seen[due_ms - node.cluster.now_ms] += 1
    assert sorted(seen) == list(range(30, 60))


@pytest.mark.parametrize(("priority", "low", "high"), [(0, 600, 1200), (5, 600, 900), (-5, 900, 1200)])
def test_E11_priority_biases_the_timeout(priority: int, low: int, high: int) -> None:
    node = solo(config=CoreConfig(priority=priority))
    drawn = []
    for _ in range(2000):
        node.receive(2, Heartbeat(term=1, commit=0, round=0))
        drawn.append((node.core.next_wakeup_ms() or 0) - node.cluster.now_ms)
    assert low <= min(drawn) < low + 20
    assert high - 20 <= max(drawn) < high


def test_a_node_that_stands_back_waits_an_election_timeout_longer_and_does_not_hurry_when_its_leader_is_lost() -> None:
    node = solo(config=CoreConfig())
    node.step(Deprioritize("clock"))
    drawn = []
    for _ in range(2000):
        node.receive(2, Heartbeat(term=1, commit=0, round=0))
        drawn.append((node.core.next_wakeup_ms() or 0) - node.cluster.now_ms)
    assert 1200 <= min(drawn) < 1220
    assert 1780 <= max(drawn) < 1800
    node.step(PeerLost(node_id(2)))
    assert (node.core.next_wakeup_ms() or 0) - node.cluster.now_ms >= 1200
    node.step(Deprioritize(""))
    assert (node.core.next_wakeup_ms() or 0) - node.cluster.now_ms < 1200


@pytest.mark.parametrize(("elapsed", "share"), [(300, 0), (600, 0), (780, 0.3), (900, 0.5), (1080, 0.8), (1200, 1)])
def test_E13_chance_of_a_timeout_by_elapsed_time(elapsed: int, share: float) -> None:
    fired = 0
    for seed in range(500):
        cluster = Cluster(3, seed=seed)
        cluster.now_ms = elapsed
        cluster[1].tick()
        fired += cluster[1].role is Role.PRE_CANDIDATE
    assert abs(fired / 500 - share) < 0.07


def test_E14_a_leader_never_stands_for_election() -> None:
    node = in_role(Role.LEADER)
    elections = node.core._core.elections
    with pytest.raises(InvariantBrokenError):
        elections.start_pre_vote(Cause.SILENT)
    with pytest.raises(InvariantBrokenError):
        elections.become_candidate(by_transfer=False)


def test_E14_a_follower_never_becomes_leader_directly() -> None:
    node = in_role(Role.FOLLOWER)
    with pytest.raises(InvariantBrokenError):
        node.core._core.elections.become_leader()


def test_E14_the_word_of_a_second_leader_of_a_term_is_refused_and_changes_nothing() -> None:
    node = in_role(Role.LEADER)
    (refused,) = node.receive(2, append(1, (0, 0)))
    assert isinstance(refused, MessageRefused)
    assert (node.role, node.term) == (Role.LEADER, 1)
    follower = solo()
    follower.receive(2, append(1, (0, 0)))
    (refused,) = follower.receive(3, append(1, (0, 0)))
    assert isinstance(refused, MessageRefused)
    assert refused.source == node_id(3)
    assert follower.core.leader == node_id(2)


def test_E16_campaign_means_nothing_to_a_leader() -> None:
    node = in_role(Role.LEADER)
    node.cluster.drop()
    node.campaign()
    assert (node.role, node.term, node.cluster.bag) == (Role.LEADER, 1, [])


def test_E17_a_single_voter_leads_once_its_vote_is_durable() -> None:
    node = solo(voters=1, auto_persist=False)
    node.campaign()
    assert (node.role, node.term) == (Role.CANDIDATE, 1)
    node.persist(1)
    assert node.role is Role.LEADER
    assert (node.last, node.commit) == (EntryId(1, 1), 0)
    node.persist()
    assert node.commit == 1
    assert node.core.is_confirmed_leader


def test_E19_a_candidate_keeps_its_high_term() -> None:
    cluster = Cluster(3, logs={1: [1], 2: [1], 3: [1]})
    cluster.nodes[node_id(3)].core.step(Tick(), 0)
    node = solo([1], term=49)
    node.campaign()
    node.receive(2, VoteResponse(term=50, granted=True, pre_vote=True))
    assert (node.role, node.term) == (Role.CANDIDATE, 50)
    node.cluster.drop()
    node.receive(3, append(2, (1, 1)))
    assert (node.role, node.term) == (Role.CANDIDATE, 50)
    assert [answer.term for answer in node.sent(AppendResponse)] == [50]


def test_E19_a_group_converges_above_a_stray_high_term() -> None:
    cluster = Cluster(3)
    cluster.elect(1)
    stray = cluster[3]
    stray.disk.hard_state = type(stray.disk.hard_state)(50, node_id(3))
    stray.restart()
    assert cluster.run(20 * ELECTION_MS, until=lambda: bool(cluster.leaders()) and cluster.leader().term > 50)
    cluster.run(ELECTION_MS)
    assert {node.term for node in cluster.nodes.values()} == {cluster.leader().term}


def test_E20_a_candidate_ignores_the_leader_of_the_term_before() -> None:
    node = in_role(Role.CANDIDATE, log=[1], term=1)
    node.receive(3, Heartbeat(term=1, commit=1, round=4))
    assert (node.role, node.term, node.commit) == (Role.CANDIDATE, 2, 0)


def test_E21_a_split_vote_is_decided_in_a_later_term() -> None:
    cluster = Cluster(4)
    for name in (1, 2):
        cluster[name].campaign()
    cluster.deliver_all(kind=VoteRequest)  # pre-votes cross; of two equals the larger id yields
    cluster.deliver_all(kind=VoteResponse)
    assert cluster.run(10 * ELECTION_MS, until=lambda: bool(cluster.leaders()))
    assert len(cluster.leaders()) == 1


def test_E22_a_refused_vote_request_does_not_reset_the_timer() -> None:
    node = solo([1, 2], term=2)
    before = node.core.next_wakeup_ms()
    node.cluster.now_ms = 500
    node.receive(2, VoteRequest(term=3, last=EntryId(9, 1)))
    assert node.term == 3
    assert [answer.granted for answer in node.sent(VoteResponse)] == [False]
    assert node.core.next_wakeup_ms() == before


def test_E22_a_granted_vote_resets_the_timer() -> None:
    node = solo([1, 2], term=2)
    node.cluster.now_ms = 590
    node.receive(2, VoteRequest(term=3, last=EntryId(2, 2)))
    due_ms = node.core.next_wakeup_ms()
    assert due_ms is not None
    assert due_ms >= 590 + ELECTION_MS


def test_E23_a_restarted_node_keeps_term_vote_and_log_and_says_nothing() -> None:
    node = solo([1, 1, 4, 5], term=5, vote=2, commit=3)
    assert (node.role, node.term, node.core.vote, node.commit, node.last) == (Role.FOLLOWER, 5, node_id(2), 3, EntryId(4, 5))
    assert node.step(Tick()) == []
    assert node.commits == []


def test_E23_a_hard_state_older_than_the_log_is_refused() -> None:
    with pytest.raises(InvariantBrokenError):
        solo([1, 7], term=5)


def test_append_request_helper_describes_entries_as_the_log_does() -> None:
    request = append(3, (1, 1), [2, 3])
    assert isinstance(request, AppendRequest)
    assert [entry.size_bytes for entry in request.entries] == [1002, 1003]
    assert request.prev != ZERO_ENTRY
