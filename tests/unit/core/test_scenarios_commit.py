"""Rows C of tests/unit/core/conformance.md: what is committed, when, and by whose acknowledgements."""

from __future__ import annotations

import itertools

import pytest

from dledger.core.effects import CommitTo, Send
from dledger.core.events import Stored
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, Message, SnapshotOffer, VoteRequest
from dledger.core.types import EntryId, EntryKind, Role
from tests.unit.core.explorer import explore
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, ack, append, leader_by_hand, solo
from tests.unit.core.safety import Safety


@pytest.mark.parametrize(
    ("size", "acks", "own", "commits"),
    [
        (1, [], False, False),
        (1, [], True, True),
        (3, [], True, False),
        (3, [2], True, True),
        (3, [2, 3], False, True),
        (3, [2], False, False),
        (5, [2], True, False),
        (5, [2, 3], True, True),
        (5, [2, 3, 4], False, True),
        (5, [2, 3], False, False),
        (5, [2, 3, 4, 5], True, True),
    ],
)
def test_C1_a_majority_that_has_it_on_disk_commits(size: int, acks: list[int], own: bool, commits: bool) -> None:
    node = leader_by_hand(solo(voters=size))
    for voter in range(2, size + 1):
        node.receive(voter, ack(1, 1, 1))
    assert node.commit == 1
    node.cluster.auto_persist = False
    node.propose()
    for voter in acks:
        node.receive(voter, ack(1, 2, 1))
    if own:
        node.persist()
    assert node.commit == (2 if commits else 1)


@pytest.mark.parametrize(("acked", "commit"), [((1, 1), 0), ((2, 2), 0), ((3, 3), 3)])
def test_C2_entries_of_older_terms_are_not_committed_by_counting(acked: tuple[int, int], commit: int) -> None:
    node = leader_by_hand(solo([1, 2], voters=2))
    assert node.term == 3
    node.receive(2, ack(3, *acked))
    assert node.commit == commit


def test_C4_the_no_op_of_a_new_leader_commits_what_came_before() -> None:
    cluster = Cluster(5, logs={name: [1] * 5 for name in range(1, 6)})
    leader = cluster.elect(2)
    assert (leader.commit, leader.terms) == (6, [1] * 5 + [2])
    assert leader.log.entries[-1].kind is EntryKind.NO_OP


@pytest.mark.parametrize("log", [[], [2], [1, 2], [1]])
def test_C5_earlier_entries_are_delivered_in_order_before_the_new_one(log: list[int]) -> None:
    cluster = Cluster(3, logs={name: log for name in (1, 2, 3)}, term=2)
    leader = cluster[1]
    leader.campaign()
    cluster.settle()
    leader.propose()
    cluster.settle()
    for node in cluster.nodes.values():
        assert node.terms == [*log, 3, 3]
        assert node.commits == sorted(set(node.commits))
        assert node.commits[-1] == len(log) + 2


def test_C7_a_single_node_commits_only_behind_its_own_sync() -> None:
    node = solo(voters=1)
    node.campaign()
    node.cluster.auto_persist = False
    assert CommitTo(2) not in node.propose()
    assert node.commit == 1
    node.persist()
    assert node.commit == 2


def test_C8_commits_are_told_once_in_order_and_without_gaps() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    for _ in range(10):
        leader.propose(3)
        cluster.settle()
    for node in cluster.nodes.values():
        assert node.commits == sorted(set(node.commits)), "each index range once, rising"
        assert node.commits[-1] == 31
        assert node.terms == leader.terms


def test_C10_followers_that_missed_the_last_commit_learn_it_by_the_next_heartbeat() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.dropping = lambda envelope: isinstance(envelope.message, Heartbeat)
    leader.propose()
    cluster.settle()
    assert [cluster[name].commit for name in (2, 3)] == [1, 1]
    cluster.heal()
    began_ms = cluster.now_ms
    assert cluster.run(2 * HEARTBEAT_MS, until=lambda: all(cluster[name].commit == 2 for name in (2, 3)))
    assert cluster.now_ms - began_ms <= HEARTBEAT_MS + 4 * cluster.delay_ms


@pytest.mark.parametrize("late", [ack(1, 3, 1), ack(4, 3, 1), ack(4, 2, 1), ack(4, 4, 3)])
def test_C11_acknowledgements_of_older_entries_do_not_count_for_new_ones(late: AppendResponse) -> None:
    node = leader_by_hand(solo([1, 1, 1], term=3))
    assert (node.term, node.last) == (4, EntryId(4, 4))
    node.receive(2, late)
    node.receive(2, late)
    assert node.commit == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_C13_no_entry_is_stored_under_a_term_that_is_not_its_senders(order: tuple[int, ...]) -> None:
    """An old leader's entries, a new leader's heartbeat and a candidate, in every order: one thread of change, one serial outcome."""
    messages: list[tuple[int, Message]] = [
        (2, append(2, (1, 1), [2])),
        (3, Heartbeat(term=3, commit=0, round=0)),
        (3, append(3, (1, 1), [3])),
    ]
    node = solo([1])
    for at in order:
        node.receive(*messages[at])
    assert node.terms == [1, 3]
    assert (node.term, node.role) == (3, Role.FOLLOWER)


def test_C14_a_pending_entry_commits_under_the_smaller_group() -> None:
    cluster = Cluster(2)
    leader = cluster.elect(1)
    cluster.dropping = lambda envelope: isinstance(envelope.message, AppendResponse)
    leader.propose()
    cluster.settle()
    assert leader.commit == 1
    leader.change([1])
    cluster.settle()
    assert leader.commit == leader.last.index == 3


@pytest.mark.parametrize("seed", range(60))
def test_C16_random_walks_keep_every_invariant_and_end_in_progress(seed: int) -> None:
    explore(seed, 400)


def test_C17_vote_traffic_carries_no_commit_index() -> None:
    """Does not apply: what a dead leader committed is learnt from the next leader's first entry (C4, C19)."""
    assert not hasattr(VoteRequest(term=1, last=EntryId(0, 0)), "commit")
    node = solo([1, 1])
    node.receive(2, VoteRequest(term=2, last=EntryId(9, 1)))
    assert node.commit == 0


def test_C19_idle_clients_do_not_keep_earlier_entries_from_being_committed() -> None:
    cluster = Cluster(3, logs={name: [1, 1, 1] for name in (1, 2, 3)})
    Safety(cluster)
    assert cluster.run(5 * ELECTION_MS, until=lambda: all(node.commit == 4 for node in cluster.nodes.values()))


def test_C20_a_commit_index_never_leaves_the_log() -> None:
    node = solo([1] * 4, commit=2)
    node.receive(2, Heartbeat(term=1, commit=100, round=0))
    assert node.commit == 4
    node.receive(2, append(1, (4, 1), commit=100))
    assert (node.commit, node.last.index) == (4, 4)


def test_A7_a_heartbeat_commits_nothing_in_another_log() -> None:
    """The leader means the log that answered it: another folder may have been put in its place meanwhile, with another end."""
    node = solo([1] * 4, commit=2)
    node.receive(2, Heartbeat(term=3, commit=4, round=0, commit_term=2))
    node.receive(2, Heartbeat(term=3, commit=9, round=0, commit_term=1))
    assert node.commit == 2
    node.receive(2, Heartbeat(term=3, commit=4, round=0, commit_term=1))
    assert node.commit == 4


def test_C1_what_the_leader_sends_does_not_wait_for_its_own_sync() -> None:
    node = leader_by_hand(solo())
    node.receive(2, ack(1, 1, 1))
    node.cluster.auto_persist = False
    effects = node.propose()
    requests = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, AppendRequest)]
    assert requests
    assert not any(effect.after_sync for effect in requests)
    node.receive(2, ack(1, 2, 1))
    node.receive(3, ack(1, 2, 1))
    assert node.commit == 2, "two others have it"
    node.step(Stored(EntryId(2, 1)))
    assert node.core.durable == 2


def test_a_follower_knows_how_far_the_group_is_and_since_when_it_heard_nothing() -> None:
    """From every message of a leader, whatever of it could be committed here."""
    node = solo([1] * 4, commit=2)
    core, now_ms = node.core, node.now_ms
    assert core.behind(1, now_ms) == (1, None)
    node.receive(2, append(1, (4, 1), commit=100))
    assert (node.commit, core.behind(4, now_ms + 7)) == (4, (96, 7))
    node.receive(2, Heartbeat(term=1, commit=4, round=0, newest_commit=120))
    assert (node.commit, core.behind(4, now_ms)) == (4, (116, 0))
    node.cluster.now_ms += 1000
    node.receive(2, SnapshotOffer(term=1, first_available=50, last=EntryId(130, 1)))
    assert (node.commit, core.behind(3, node.now_ms + 1)) == (4, (127, 1))
    leader = leader_by_hand(solo())
    leader.cluster.now_ms += 1000
    assert leader.core.behind(leader.commit, leader.now_ms) == (0, 0)
