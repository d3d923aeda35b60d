"""Rows V of tests/unit/core/conformance.md: votes and the hard state."""

from __future__ import annotations

import pytest

from dledger.core.effects import Append, SaveHardState, Send
from dledger.core.events import Campaign, StorageFailed, Tick
from dledger.core.messages import AppendResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.types import EntryId, Role
from dledger_wire.check import InvariantBrokenError
from tests.unit.core.harness import ELECTION_MS, Cluster, Node, append, config_entry, leader_by_hand, node_id, solo


def ask(term: int, index: int, entry_term: int, *, pre_vote: bool = False, transfer: bool = False) -> VoteRequest:
    return VoteRequest(term=term, last=EntryId(index, entry_term), pre_vote=pre_vote, transfer=transfer)


def answers(node: Node, to: object | None = None) -> list[bool]:
    return [message.granted for message in node.sent(VoteResponse, to=to) if isinstance(message, VoteResponse)]


def candidate_of(node: Node) -> Node:
    """A candidate of its next term by the pre-vote of 2, with nothing left in the bag."""
    node.campaign()
    node.receive(2, VoteResponse(term=node.term + 1, granted=True, pre_vote=True))
    assert node.role is Role.CANDIDATE
    node.cluster.drop()
    return node


@pytest.mark.parametrize(
    ("log", "last_term", "last_index", "granted"),
    [
        ([1], 1, 1, True),
        ([1], 1, 2, True),
        ([1, 1], 1, 1, False),
        ([1], 2, 1, True),
        ([1], 2, 2, True),
        ([1, 1], 2, 1, True),
        ([2], 1, 1, False),
        ([2], 1, 2, False),
        ([2, 2], 1, 1, False),
        ([2, 2], 2, 2, True),
    ],
)
@pytest.mark.parametrize("pre_vote", [False, True])
def test_V2_only_a_log_at_least_as_fresh_gets_the_vote(
    log: list[int], last_term: int, last_index: int, granted: bool, pre_vote: bool
) -> None:
    node = solo(log)
    node.receive(2, ask(3, last_index, last_term, pre_vote=pre_vote))
    assert answers(node) == [granted]


# role, last index, last term, vote in that term, granted: the table of etcd's TestRecvMsgVote
V3_ROWS = [
    *[(Role.FOLLOWER, index, term, None, False) for index in (0, 1) for term in (0, 1, 2)],
    *[(Role.FOLLOWER, index, 3, None, True) for index in (0, 1, 2, 3)],
    (Role.FOLLOWER, 2, 0, None, False),
    (Role.FOLLOWER, 2, 1, None, False),
    (Role.FOLLOWER, 2, 2, None, True),
    (Role.FOLLOWER, 3, 0, None, False),
    (Role.FOLLOWER, 3, 1, None, False),
    (Role.FOLLOWER, 3, 2, None, True),
    (Role.FOLLOWER, 3, 2, 2, True),
    (Role.FOLLOWER, 3, 2, 1, False),
    (Role.LEADER, 3, 3, 1, False),
    (Role.PRE_CANDIDATE, 3, 3, 1, False),
    (Role.CANDIDATE, 3, 3, 1, False),
]


@pytest.mark.parametrize("pre_vote", [False, True])
@pytest.mark.parametrize(("role", "index", "term", "vote", "granted"), V3_ROWS)
def test_V3_role_vote_and_log_decide_together(role: Role, index: int, term: int, vote: int | None, granted: bool, pre_vote: bool) -> None:
    asked = max(2, term)
    if role is Role.FOLLOWER:
        node = solo([2, 2], term=asked, vote=vote)
    else:
        node = solo([2, 2], term=asked if role is Role.PRE_CANDIDATE else asked - 1, vote=1)
        leader_by_hand(node) if role is Role.LEADER else node.campaign()
        if role is Role.CANDIDATE:
            node.receive(3, VoteResponse(term=asked, granted=True, pre_vote=True))
        assert (node.role, node.term) == (role, asked)
        node.cluster.drop()
    node.receive(2, ask(asked, index, term, pre_vote=pre_vote))
    assert answers(node) == [granted]


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER])
def test_V5_a_newer_term_gets_the_vote_from_any_role(role: Role) -> None:
    node = solo([1])
    if role is Role.LEADER:
        leader_by_hand(node)
    elif role is Role.CANDIDATE:
        candidate_of(node)
    elif role is Role.PRE_CANDIDATE:
        node.campaign()
    node.cluster.drop()
    # The leader itself ordered it; otherwise one that leads refuses (P9), and so does one that hears it (P17).
    effects = node.receive(2, ask(9, 9, 8, transfer=True))
    assert (node.role, node.term, node.core.vote, answers(node)) == (Role.FOLLOWER, 9, node_id(2), [True])
    assert SaveHardState(9, node_id(2)) in effects


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE])
def test_V5_a_pre_vote_changes_neither_term_nor_vote_nor_role(role: Role) -> None:
    node = solo([1])
    if role is Role.CANDIDATE:
        candidate_of(node)
    before = (node.role, node.term, node.core.vote)
    effects = node.receive(2, ask(9, 9, 8, pre_vote=True))
    assert answers(node) == [True]
    assert (node.role, node.term, node.core.vote) == before
    assert not [effect for effect in effects if isinstance(effect, SaveHardState)]


def test_V5_a_pre_candidate_makes_way_for_a_stronger_claim_without_promising() -> None:
    node = solo([1])
    node.campaign()
    node.cluster.drop()
    node.receive(2, ask(9, 9, 8, pre_vote=True))
    assert (answers(node), node.role, node.term, node.core.vote) == ([True], Role.FOLLOWER, 1, None)


def test_V6_a_crash_before_the_vote_is_on_disk_leaves_no_answer() -> None:
    node = solo([1], term=3, auto_persist=False)
    node.receive(2, ask(4, 1, 1))
    assert node.sent(VoteResponse) == []
    node.crash()
    node.restart()
    assert (node.term, node.core.vote) == (3, None)
    node.receive(3, ask(4, 1, 1))
    node.persist()
    assert answers(node, to=3) == [True], "nobody was promised anything"
    assert answers(node, to=2) == []


def test_V6_a_crash_after_the_vote_is_on_disk_keeps_it() -> None:
    node = solo([1], term=3, auto_persist=False)
    node.receive(2, ask(4, 1, 1))
    node.persist()
    assert answers(node, to=2) == [True]
    node.crash()
    node.restart()
    node.receive(3, ask(4, 1, 1))
    assert answers(node, to=3) == [False]
    node.receive(2, ask(4, 1, 1))
    assert answers(node, to=2)[-1] is True


def step_down(node: Node, how: str) -> None:
    if how == "winner's entries":
        node.receive(2, append(node.term, (0, 0)))
    elif how == "no majority":
        node.cluster.now_ms += 2 * ELECTION_MS
        node.tick()
    elif how == "failed disk":
        node.step(StorageFailed(fatal=False))
        node.receive(2, VoteResponse(term=node.term, granted=False))
        node.receive(3, VoteResponse(term=node.term, granted=False))
    elif how == "restart":
        node.crash()
        node.restart()


@pytest.mark.parametrize(
    ("role", "how"),
    [
        (Role.CANDIDATE, "winner's entries"),
        (Role.CANDIDATE, "failed disk"),
        (Role.CANDIDATE, "restart"),
        (Role.LEADER, "no majority"),
        (Role.LEADER, "restart"),
    ],
)
def test_V8_stepping_down_within_a_term_keeps_the_vote(role: Role, how: str) -> None:
    node = candidate_of(solo()) if role is Role.CANDIDATE else leader_by_hand(solo())
    step_down(node, how)
    assert (node.role, node.term, node.core.vote) == (Role.FOLLOWER, 1, node_id(1))
    node.cluster.drop()
    node.cluster.now_ms += 3 * ELECTION_MS
    node.receive(3, ask(1, 9, 1))
    assert answers(node, to=3) == [False]


def test_V8_a_transfer_keeps_the_old_leaders_vote() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    leader.transfer(2)
    assert leader.core.vote == node_id(1)
    cluster.settle()
    assert (cluster[2].role, cluster[2].term) == (Role.LEADER, 2)
    leader.receive(3, ask(1, 9, 1))
    assert answers(leader, to=3) == [False]


def test_V9_a_log_ahead_of_the_promised_term_is_never_started() -> None:
    with pytest.raises(InvariantBrokenError, match="older than the log"):
        solo([1, 1, 4], term=0)


def test_V11_a_pre_vote_that_comes_late_does_not_count_as_a_vote() -> None:
    node = solo(voters=5)
    node.campaign()
    for voter in (2, 3):
        node.receive(voter, VoteResponse(term=1, granted=True, pre_vote=True))
    assert node.role is Role.CANDIDATE
    for voter in (1, 4, 5, 2, 3):
        node.receive(voter, VoteResponse(term=1, granted=True, pre_vote=True))
    assert node.role is Role.CANDIDATE


def test_V12_term_and_vote_go_into_the_write_stream_before_the_entries() -> None:
    node = solo(auto_persist=False)
    effects = [*node.receive(2, ask(4, 1, 1)), *node.receive(2, append(4, (0, 0), [4]))]
    writes = [effect for effect in effects if isinstance(effect, SaveHardState | Append)]
    assert [type(effect) for effect in writes] == [SaveHardState, Append]
    node.crash(keep_writes=1)
    node.restart()
    assert (node.term, node.last.index) == (4, 0), "the promise may survive without the entries, never the entries without the promise"


def test_V12_a_new_leaders_first_message_writes_the_term_first() -> None:
    node = solo()
    effects = node.receive(2, append(4, (0, 0), [4]))
    kinds = [type(effect) for effect in effects if isinstance(effect, SaveHardState | Append | Send)]
    assert kinds == [SaveHardState, Append, Send]


@pytest.mark.parametrize("pre_vote", [False, True])
def test_V14_who_believes_to_be_a_learner_votes_all_the_same(pre_vote: bool) -> None:
    cluster = Cluster([2, 3], learners=[1])
    learner = cluster[1]
    assert learner.role is Role.LEARNER
    learner.receive(2, ask(1, 0, 0, pre_vote=pre_vote))
    assert answers(learner) == [True]


def test_V14_a_group_whose_new_voter_lags_behind_its_promotion_can_elect() -> None:
    cluster = Cluster([1, 2], learners=[3])
    leader = cluster.elect(1)
    cluster.run(ELECTION_MS)
    cluster.isolate(3)
    promoted = config_entry(leader.term, [1, 2, 3])
    leader.change([1, 2, 3])
    cluster.deliver_all(to=2)
    cluster.settle()
    assert cluster[2].core.membership == promoted.config
    assert cluster[3].role is Role.LEARNER
    leader.crash()
    cluster.heal()
    assert cluster.run(10 * ELECTION_MS, until=lambda: cluster[2].core.is_confirmed_leader)


def test_V15_after_a_failed_sync_a_node_neither_votes_nor_stands_nor_acknowledges() -> None:
    node = solo([1])
    node.step(StorageFailed(fatal=True))
    assert node.core.next_wakeup_ms() is None
    for event in (Tick(), Campaign()):
        assert node.step(event) == []
    assert node.receive(2, ask(9, 9, 8)) == []
    assert node.receive(2, append(9, (1, 1), [9])) == []
    assert node.receive(2, TimeoutNow(term=1)) == []
    assert node.sent(VoteResponse) + node.sent(AppendResponse) == []


def test_V17_a_vote_of_the_last_term_is_replaced_by_the_own_one_in_the_next() -> None:
    node = solo([1], term=4, vote=3)
    node.timeout()
    assert (node.role, node.term, node.core.vote) == (Role.PRE_CANDIDATE, 4, node_id(3))
    node.receive(2, VoteResponse(term=5, granted=True, pre_vote=True))
    assert (node.role, node.term, node.core.vote) == (Role.CANDIDATE, 5, node_id(1))


def test_V18_two_nodes_of_one_name_are_one_voter() -> None:
    node = solo(voters=5)
    node.campaign()
    for voter in (2, 3):
        node.receive(voter, VoteResponse(term=1, granted=True, pre_vote=True))
    node.receive(2, VoteResponse(term=1, granted=True))
    node.receive(2, VoteResponse(term=1, granted=True))  # the clone's
    assert node.role is Role.CANDIDATE
