"""Rows A of tests/unit/core/conformance.md: appending, conflicts, log matching."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dledger.core.config import CoreConfig
from dledger.core.effects import Append, CutTail, Refused, RefusedReason, Send
from dledger.core.events import Propose
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat
from dledger.core.types import ZERO_ENTRY, EntryId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Node, ack, append, leader_by_hand, node_id, solo
from tests.unit.core.safety import Safety


def reply(node: Node) -> AppendResponse:
    message = node.sent(AppendResponse)[-1]
    assert isinstance(message, AppendResponse)
    return message


@pytest.mark.parametrize("prev", [(0, 0), (1, 1), (2, 2)])
def test_A1_an_empty_request_acknowledges_what_it_verified_and_never_more(prev: tuple[int, int]) -> None:
    node = solo([1, 2], commit=1)
    node.receive(2, append(2, prev))
    # What is committed is verified anyway.
    verified = max(prev[0], 1)
    assert (reply(node).success, reply(node).match) == (True, EntryId(verified, node.core.term_at(verified) or 0))


@pytest.mark.parametrize(("prev", "hint"), [((2, 1), EntryId(1, 1)), ((3, 3), EntryId(2, 2))])
def test_A1_a_request_that_does_not_fit_is_refused_with_a_hint(prev: tuple[int, int], hint: EntryId) -> None:
    node = solo([1, 2], commit=1, term=3)
    node.receive(2, append(3, prev))
    assert (reply(node).success, reply(node).match, reply(node).rejected) == (False, hint, prev[0])


@pytest.mark.parametrize("commit", [0, 4])
def test_A3_an_old_shorter_copy_of_a_request_takes_nothing_away(commit: int) -> None:
    node = solo([1] * 6, commit=commit)
    effects = node.receive(2, append(1, (1, 1), [1]))
    assert node.terms == [1] * 6
    assert not [effect for effect in effects if isinstance(effect, CutTail | Append)]
    assert reply(node).match == EntryId(max(2, commit), 1)


@pytest.mark.parametrize("keep_writes", [0, 1, 2, 3])
def test_A4_a_crash_while_a_suffix_is_replaced_leaves_the_old_or_the_new_one(keep_writes: int) -> None:
    node = solo([1, 1, 2, 2], auto_persist=False)
    effects = node.receive(2, append(3, (1, 1), [1, 3]))
    assert [effect for effect in effects if isinstance(effect, CutTail)] == [CutTail(3)]
    node.crash(keep_writes)
    node.restart()
    assert node.terms in ([1, 1, 2, 2], [1, 1], [1, 1, 3]), "the entry that matches is there throughout"
    assert node.core.term_at(2) == 1


@pytest.mark.parametrize(
    ("prev", "terms", "leader_commit", "taken", "last", "commit"),
    [
        ((2, 3), [], 3, False, 2, 0),
        ((3, 3), [], 3, False, 2, 0),
        ((1, 1), [], 1, True, 2, 1),
        ((0, 0), [2], 1, True, 1, 1),
        ((2, 2), [2, 2], 3, True, 4, 3),
        ((2, 2), [2], 4, True, 3, 3),
        ((1, 1), [2], 4, True, 2, 2),
        ((1, 1), [], 3, True, 2, 1),
        ((1, 1), [2], 3, True, 2, 2),
        ((2, 2), [], 3, True, 2, 2),
        ((2, 2), [], 4, True, 2, 2),
    ],
)
def test_A6_commit_is_bounded_by_what_the_request_verified(
    prev: tuple[int, int], terms: list[int], leader_commit: int, taken: bool, last: int, commit: int
) -> None:
    node = solo([1, 2], term=3)
    node.receive(2, append(3, prev, terms, commit=leader_commit))
    assert (reply(node).success, node.last.index, node.commit) == (taken, last, commit)


def test_A7_an_unverified_tail_is_not_committed() -> None:
    node = solo([1, 1, 9, 9])
    node.receive(2, append(10, (2, 1), commit=4))
    assert node.commit == 2
    node.receive(2, Heartbeat(term=10, commit=2, round=0))
    assert node.commit == 2


def test_A7_a_heartbeat_never_names_more_than_the_leader_knows_the_follower_to_hold() -> None:
    node = leader_by_hand(solo([1, 1, 1]))
    node.receive(2, ack(2, 4, 2))
    assert node.commit == 4
    node.cluster.drop()
    node.cluster.now_ms += HEARTBEAT_MS
    node.tick()
    commits = {to: [beat.commit for beat in node.sent(Heartbeat, to=to) if isinstance(beat, Heartbeat)] for to in (2, 3)}
    assert commits == {2: [4], 3: [0]}


LEADER = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
FIGURE_7 = {
    "a": LEADER[:9],
    "b": LEADER[:4],
    "c": [*LEADER, 6],
    "d": [*LEADER, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("name", FIGURE_7)
def test_A9_every_follower_of_figure_7_becomes_equal_to_the_leader(name: str) -> None:
    follower = FIGURE_7[name]
    cluster = Cluster(3, logs={1: LEADER, 2: follower, 3: LEADER}, term=7)
    Safety(cluster)
    cluster.cut(1, 2)
    leader = cluster.elect(1)
    cluster.heal()
    leader.lost(2)
    leader.propose()
    cluster.run(3 * HEARTBEAT_MS)
    assert cluster[2].terms == leader.terms == [*LEADER, 8, 8]
    answers = [effect.message for effect in cluster[2].told(Send) if isinstance(effect, Send)]
    refused = [message for message in answers if isinstance(message, AppendResponse) and not message.success]
    conflicting = {term for at, term in enumerate(follower) if at >= len(LEADER) or LEADER[at] != term}
    assert len(refused) <= len(conflicting) + 1


def hint_of(follower: Sequence[int], prev: tuple[int, int], term: int) -> EntryId:
    node = solo(follower, term=term)
    node.receive(2, append(term, prev))
    return reply(node).match


@pytest.mark.parametrize(
    ("leader", "follower", "hint", "probe"),
    [
        ([1, 2, 2, 4, 4, 4, 4], [1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3], (7, 3), (3, 2)),
        ([1, 2, 2, 3, 4, 4, 4, 5], [1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3], (8, 3), (4, 3)),
        ([1, 1, 1, 1], [1, 2, 2, 4], (1, 1), (1, 1)),
        ([1, 1, 1, 1, 1, 1], [1, 2, 2, 4], (1, 1), (1, 1)),
        ([1, 1, 1, 1], [1, 2, 2, 4, 4, 4], (1, 1), (1, 1)),
        ([1, 1, 1, 4, 5], [1, 1, 1, 4, 6, 6, 6], (4, 4), (4, 4)),
        ([2, 2, 5], [2, 4, 4, 4], (3, 4), (2, 2)),
        ([2, 2, 2, 2, 2], [2, 4, 4, 4, 4], (1, 2), (1, 2)),
        ([1, 3, 3, 3, 3, 3, 3, 4], [1, 2, 2, 4], (4, 4), (4, 3)),
    ],
)
def test_A10_a_rejection_skips_whole_terms(leader: list[int], follower: list[int], hint: tuple[int, int], probe: tuple[int, int]) -> None:
    term = max(*leader, *follower)
    prev = (len(leader), leader[-1])
    found = hint_of(follower, prev, term + 1)
    assert found == EntryId(*hint)
    node = leader_by_hand(solo(leader, term=term))
    node.cluster.drop()
    node.receive(2, AppendResponse(term=term + 1, success=False, match=found, rejected=prev[0]))
    asked = [message.prev for message in node.sent(AppendRequest, to=2) if isinstance(message, AppendRequest)]
    assert asked[:1] == [EntryId(*probe)]


def test_A10_a_follower_without_older_entries_hints_at_what_is_committed() -> None:
    cluster = Cluster(3, logs={2: [1, 1, 1, 3, 3, 3]}, commit=3)
    node = cluster[2]
    node.trim(3)
    node.receive(1, append(4, (5, 2)))
    assert reply(node).match == EntryId(3, 1)


@pytest.mark.parametrize(
    "late",
    [
        AppendResponse(term=4, success=True, match=EntryId(3, 5)),
        AppendResponse(term=5, success=True, match=EntryId(99, 5)),
        AppendResponse(term=5, success=True, match=EntryId(3, 4)),
    ],
    ids=["of an older term", "beyond the log", "of another entry at that index"],
)
def test_A12_an_acknowledgement_that_does_not_fit_counts_for_nothing(late: AppendResponse) -> None:
    node = leader_by_hand(solo([1], term=4, voters=3))
    node.propose(2)
    node.receive(2, ack(5, 1, 1))
    node.receive(2, late)
    status = node.core.status()
    assert [peer.match for peer in status.peers if peer.node == node_id(2)] == [1]
    assert (node.role, node.commit) == (Role.LEADER, 0)
    assert status.protocol_errors == (late.match.index == 99)


def test_A13_entries_of_a_deposed_leader_are_refused_with_the_newer_term() -> None:
    node = solo([1], term=1)
    node.receive(2, append(6, (1, 1), [6]))
    node.receive(3, append(5, (1, 1), [5]))
    assert (reply(node).success, reply(node).term) == (False, 6)
    assert (node.terms, node.core.leader) == ([1, 6], node_id(2))


def test_A15_a_proposal_commits_on_a_majority_and_not_on_a_minority() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    leader.propose()
    cluster.settle()
    assert (leader.commit, cluster[2].last.index) == (2, 2)
    cluster.isolate(2)
    leader.propose()
    cluster.settle()
    assert leader.commit == 2


@pytest.mark.parametrize("leader", [None, 2])
def test_A16_a_proposal_elsewhere_is_refused_for_certain_and_names_the_leader(leader: int | None) -> None:
    node = solo([1])
    if leader is not None:
        node.receive(leader, append(1, (1, 1)))
    expected = None if leader is None else node_id(leader)
    assert node.step(Propose(100)) == [Refused(RefusedReason.NOT_LEADER, expected)]
    assert node.last == EntryId(1, 1)


def trimmed() -> Node:
    node = Cluster(3, logs={1: [1] * 12}, commit=10)[1]
    node.trim(11)
    return node


@pytest.mark.parametrize(("prev", "count"), [((0, 0), 12), ((5, 1), 7), ((10, 1), 2)])
def test_A18_what_lies_before_the_first_entry_is_committed_and_no_conflict(prev: tuple[int, int], count: int) -> None:
    node = trimmed()
    effects = node.receive(2, append(2, prev, [1] * count))
    assert not [effect for effect in effects if isinstance(effect, CutTail | Append)]
    assert (reply(node).success, reply(node).match) == (True, EntryId(12, 1))
    assert node.commit == 10


def test_A18_only_what_comes_after_is_considered() -> None:
    node = trimmed()
    node.receive(2, append(3, (5, 1), [1] * 6 + [3, 3]))
    assert node.terms == [1, 3, 3]
    assert reply(node).match == EntryId(13, 3)


def test_A19_an_old_leader_does_not_disturb_a_catch_up() -> None:
    node = solo([1, 1], term=4)
    node.receive(2, append(4, (2, 1), [4]))
    node.receive(3, append(3, (1, 1), [3, 3, 3]))
    node.receive(2, append(4, (3, 4), [4]))
    assert node.terms == [1, 1, 4, 4]
    assert reply(node).match == EntryId(4, 4)


def test_A21_a_leader_never_takes_back_an_entry_of_its_own() -> None:
    node = leader_by_hand(solo([1, 1]))
    node.propose(3)
    for message in (ack(2, 9, 9), AppendResponse(term=2, success=False, match=ZERO_ENTRY, rejected=5), ack(1, 2, 1)):
        effects = node.receive(2, message)
        assert not [effect for effect in effects if isinstance(effect, CutTail)]
    assert node.terms == [1, 1, 2, 2, 2, 2]


def test_A22_one_entry_larger_than_a_message_goes_alone() -> None:
    config = CoreConfig(max_append_bytes=1000, max_inflight_bytes=1000)
    cluster = Cluster(3, config=config)
    leader = cluster.elect(1)
    leader.propose(3)  # each a hundred times the limit
    assert all(len(message.entries) <= 1 for message in leader.sent(AppendRequest) if isinstance(message, AppendRequest))
    cluster.settle()
    assert cluster.run(ELECTION_MS, until=lambda: cluster[2].commit == leader.last.index)
