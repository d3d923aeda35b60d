"""Rows S of tests/unit/core/conformance.md: head truncation and the copy that replaces a snapshot.

There is no snapshot message: a peer that needs entries its leader has deleted is offered the leader's sealed segments (``SnapshotOffer``),
fetches them beside the protocol, and then goes on at ``SnapshotInstalled``.
"""

from __future__ import annotations

import pytest

from dledger.core.effects import FetchSnapshot
from dledger.core.events import LogTrimmed, SnapshotInstalled, Stored
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse, SnapshotOffer, VoteRequest, VoteResponse
from dledger.core.types import EntryId, HardState, Membership, Role
from dledger_wire.check import InvariantBrokenError
from tests.unit.core.harness import (
    ELECTION_MS,
    HEARTBEAT_MS,
    Cluster,
    Disk,
    Node,
    ack,
    append,
    ids,
    leader_by_hand,
    log_of,
    node_id,
    solo,
)


def copying_leader() -> Node:
    """Trimmed up to 10 of 13 entries; peer 2 has none."""
    node = Cluster(3, logs={1: [1] * 12}, commit=12)[1]
    leader_by_hand(node)
    node.receive(3, ack(2, 13, 2))
    node.trim(11)
    node.cluster.drop()
    return node


def state_of(node: Node, name: object) -> tuple[str, int, int]:
    peer = next(found for found in node.core.status().peers if found.node == node_id(name))
    return peer.state, peer.match, peer.next


REJECTION = AppendResponse(term=2, success=False, match=EntryId(0, 0), rejected=12)


def test_S1_a_peer_that_needs_deleted_entries_is_offered_a_copy() -> None:
    node = copying_leader()
    node.receive(2, REJECTION)
    assert node.sent(SnapshotOffer, to=2) == [SnapshotOffer(term=2, first_available=11, last=EntryId(13, 2))]
    assert state_of(node, 2)[0] == "copy"


def test_S1_a_peer_lost_before_its_first_answer_is_asked_for_its_end_not_offered_a_copy() -> None:
    """As the old leader that hands over and stops: nothing says that it lacks what was deleted."""
    node = copying_leader()
    node.lost(2)
    node.cluster.now_ms += HEARTBEAT_MS
    node.tick()
    node.cluster.drop()
    node.receive(2, HeartbeatResponse(term=2, round=1))
    assert node.sent(SnapshotOffer, to=2) == []
    (asked,) = node.sent(AppendRequest, to=2)
    assert asked.prev.index >= 12
    node.receive(2, AppendResponse(term=2, success=False, match=EntryId(11, 1), rejected=asked.prev.index))
    assert node.sent(AppendRequest, to=2)[-1].prev == EntryId(11, 1)


def test_S2_a_silent_peer_is_not_offered_one_again_and_again() -> None:
    node = copying_leader()
    node.receive(2, REJECTION)
    node.cluster.drop()
    node.propose(5)
    for _ in range(3):
        node.cluster.now_ms += HEARTBEAT_MS
        node.receive(3, HeartbeatResponse(term=2, round=1))
        node.tick()
    assert node.sent(SnapshotOffer, to=2) == []
    node.receive(2, HeartbeatResponse(term=2, round=1))
    assert len(node.sent(SnapshotOffer, to=2)) == 1, "until it shows life"


def test_S4_a_finished_copy_is_acknowledged_and_replication_goes_on_behind_it() -> None:
    node = copying_leader()
    node.receive(2, REJECTION)
    node.propose()
    node.cluster.drop()
    node.receive(2, ack(2, 13, 2))
    assert state_of(node, 2)[:2] == ("replicate", 13)
    assert [message.prev for message in node.sent(AppendRequest, to=2) if isinstance(message, AppendRequest)] == [EntryId(13, 2)]


def test_S5_an_acknowledgement_alone_ends_the_copy() -> None:
    """A peer that got its entries another way needs no report of the copy."""
    node = copying_leader()
    node.receive(2, REJECTION)
    node.receive(2, ack(2, 12, 1))
    assert state_of(node, 2) == ("replicate", 12, 14)


def copied(node: Node, upto: int = 20, *, term: int = 3, membership: Membership | None = None) -> None:
    """The copy that was offered to a solo node takes the place of its log."""
    for log in (node.log, node.disk):
        log.before, log.entries = EntryId(10, 1), log_of([1] * upto)[10:]
    runs = ((1, 11),)
    node.step(SnapshotInstalled(11, EntryId(upto, 1), membership or node.core.membership, EntryId(10, 1), runs))


def offer(node: Node, upto: int = 20, *, term: int = 3) -> None:
    node.receive(2, SnapshotOffer(term=term, first_available=11, last=EntryId(upto, 1)))


@pytest.mark.parametrize(
    ("membership", "role"),
    [
        (Membership(ids(1, 2, 3)), Role.FOLLOWER),
        (Membership(ids(1, 2, 3), ids(4)), Role.FOLLOWER),
        (Membership(ids(2, 3, 4)), Role.LEARNER),
        (Membership(ids(2, 3), ids(1)), Role.LEARNER),
    ],
    ids=["as before", "a learner more", "without this node", "this node a learner"],
)
def test_S7_a_copy_replaces_log_commit_index_and_configuration(membership: Membership, role: Role) -> None:
    node = solo([1, 2], term=2)
    offer(node)
    assert FetchSnapshot(node_id(2), 11, EntryId(20, 1)) in node.effects
    copied(node, membership=membership)
    assert (node.last, node.commit, node.core.membership, node.role) == (EntryId(20, 1), 20, membership, role)
    assert node.sent(AppendResponse, to=2) == [ack(3, 20, 1)]
    node.cluster.drop()
    offer(node)
    assert node.core.snapshot_wanted is None
    assert node.sent(AppendResponse, to=2) == [ack(3, 20, 1)], "already there"


def test_S7_a_learner_is_promoted_by_the_configuration_of_a_copy() -> None:
    cluster = Cluster([2, 3], learners=[1])
    node = cluster[1]
    offer(node)
    copied(node, membership=Membership(ids(1, 2, 3)))
    assert node.role is Role.FOLLOWER


def test_S8_an_offer_of_what_is_committed_here_is_answered_with_the_own_commit_index() -> None:
    node = solo([1] * 5, commit=3)
    offer(node, upto=2)
    assert (node.core.snapshot_wanted, node.sent(AppendResponse)) == (None, [ack(3, 3, 1)])
    assert node.terms == [1] * 5


def test_S8_an_offer_whose_end_is_in_the_log_keeps_the_tail() -> None:
    node = solo([1] * 5, commit=3)
    offer(node, upto=4)
    assert (node.core.snapshot_wanted, node.sent(AppendResponse)) == (None, [ack(3, 4, 1)])
    assert node.terms == [1] * 5


def test_S8_an_offer_that_ends_within_a_log_of_another_term_is_taken() -> None:
    """Long enough is not the same: an acknowledgement of the own entry there would be for one that the leader does not have."""
    node = solo([1] * 5, commit=3)
    node.receive(2, SnapshotOffer(term=3, first_available=2, last=EntryId(4, 2)))
    wanted = node.core.snapshot_wanted
    assert wanted is not None
    assert wanted.last == EntryId(4, 2)
    assert node.sent(AppendResponse) == []


def test_S8_a_copy_that_comes_too_late_changes_nothing() -> None:
    node = solo([1] * 30, commit=25)
    node.step(SnapshotInstalled(11, EntryId(20, 1), node.core.membership, EntryId(10, 1), ((1, 11),)))
    assert (node.commit, node.last) == (25, EntryId(30, 1))


@pytest.mark.parametrize("stage", ["probing", "replicating"])
def test_S10_trimming_under_a_peer_leads_to_an_offer(stage: str) -> None:
    node = Cluster(3, logs={1: [1] * 12}, commit=12)[1]
    leader_by_hand(node)
    node.receive(3, ack(2, 13, 2))
    if stage == "replicating":
        node.receive(2, ack(2, 4, 1))
        node.lost(2)
    node.cluster.drop()
    node.trim(11)
    for _ in range(2):
        node.cluster.now_ms += HEARTBEAT_MS
        node.tick()
        node.receive(2, HeartbeatResponse(term=2, round=1))
        node.receive(2, AppendResponse(term=2, success=False, match=EntryId(3, 1), rejected=12))
    assert node.sent(SnapshotOffer, to=2)


@pytest.mark.parametrize(
    ("message", "goes_on"),
    [
        (Heartbeat(term=3, commit=0, round=1), True),
        (append(2, (0, 0), [2]), True),
        (VoteRequest(term=3, last=EntryId(9, 2)), True),
        (append(4, (2, 2), [4]), False),
    ],
    ids=["the leader's heartbeat", "an old leader's entries", "a vote asked for in the same term", "entries of a new leader that fit"],
)
def test_S11_a_copy_under_way_goes_on_unless_a_leaders_entries_make_it_pointless(message: object, goes_on: bool) -> None:
    node = solo([1, 2], term=2)
    offer(node)
    node.receive(3 if message != Heartbeat(term=3, commit=0, round=1) else 2, message)  # type: ignore[arg-type]
    assert (node.core.snapshot_wanted is not None) is goes_on
    assert node.last == (EntryId(2, 2) if goes_on else EntryId(3, 4))


def test_S11_no_election_while_a_copy_is_awaited() -> None:
    node = solo([1, 2], term=2)
    offer(node)
    node.cluster.drop()
    for _ in range(4):
        node.timeout()
    assert node.sent(VoteRequest) == []
    node.receive(3, VoteRequest(term=9, last=EntryId(50, 3)))
    assert [answer.granted for answer in node.sent(VoteResponse) if isinstance(answer, VoteResponse)] == [True]
    assert node.term == 9


def test_S13_a_restart_begins_behind_the_trimmed_head_with_its_configuration() -> None:
    cluster = Cluster(3, logs={1: [1] * 15}, commit=12)
    node = cluster[1]
    node.trim(11)
    node.crash()
    node.restart()
    assert (node.core.status().first_index, node.commit, node.last) == (11, 10, EntryId(15, 1))
    assert node.core.membership == cluster.membership


def test_S16_completions_of_writes_from_before_a_copy_are_void() -> None:
    node = solo([1, 2], term=2, auto_persist=False)
    node.receive(2, append(3, (2, 2), [3, 3, 3]))
    late = node.sync()
    node.cluster.auto_persist = True
    offer(node, upto=20)
    copied(node)
    for event in (*late, Stored(EntryId(5, 3))):
        node.step(event)
    assert (node.last, node.core.durable, node.commit) == (EntryId(20, 1), 20, 20)


@pytest.mark.parametrize(
    "disk",
    [
        Disk(HardState(1), EntryId(10, 1), [], commit=20),
        Disk(HardState(0), EntryId(10, 1), []),
    ],
    ids=["more committed than there is", "a promise older than the log's start"],
)
def test_S19_a_log_that_does_not_fit_what_is_known_of_it_is_not_started(disk: Disk) -> None:
    cluster = Cluster(3)
    with pytest.raises(InvariantBrokenError):
        Node(cluster, node_id(1), disk, cluster.config)


def test_S20_nothing_that_is_not_committed_is_trimmed() -> None:
    node = solo([1] * 5, commit=3)
    with pytest.raises(InvariantBrokenError):
        node.step(LogTrimmed(6, EntryId(5, 1)))


def test_S20_a_lagging_follower_comes_back_by_copy_while_the_group_serves() -> None:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.isolate(3)
    leader.propose(20)
    cluster.run(ELECTION_MS)
    leader.trim(15)
    cluster.heal()
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].core.snapshot_wanted is not None)
    leader.propose(5)
    cluster.run(HEARTBEAT_MS)
    cluster[3].copy_from(leader)
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].commit == leader.last.index)
    assert cluster[3].core.status().first_index == leader.core.status().first_index == 15
