"""A replica that lost power with what it had acknowledged, in a group whose members change: no configuration makes its vote a proof."""

from __future__ import annotations

import pytest

from dledger.core.effects import Sound
from dledger.core.events import Received
from dledger.core.messages import ReadIndexRequest, ReadIndexResponse, VoteRequest, VoteResponse
from dledger.core.types import ZERO_ENTRY, EntryKind, EntryMeta, HardState, Membership, NodeId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Disk, Node, append, ids, node_id

LONG_MS = 20 * ELECTION_MS
OWN = "folder-"


def forget(node: Node, last_index: int) -> None:
    """Power is lost, and with it what is behind ``last_index``; promises and configurations are on disk."""
    node.crash()
    assert all(meta.config is None for meta in node.disk.entries[last_index:])
    del node.disk.entries[last_index:]
    node.disk.suspect = True
    node.restart()


@pytest.mark.parametrize(("voters", "absent"), [([1], []), ([1, 2], [2])])
def test_voters_of_a_configuration_count_nothing_below_it_until_it_is_committed(voters: list[int], absent: list[int]) -> None:
    """The leader and the learner have the entry in memory, and no disk has the configuration by which they are a majority."""
    cluster = Cluster(voters, learners=[3])
    leader = cluster.elect(1)
    for name in absent:
        cluster.isolate(name)
    cluster.auto_persist = False
    leader.propose()
    entry = leader.last.index
    cluster.deliver_all(to=3)
    cluster[3].persist()
    cluster.deliver_all(source=3)
    written = leader.sync(1)
    leader.change([*voters, 3])
    for event in written:
        leader.step(event)
    assert leader.commit < entry, "power lost here, this leader knows of no vote but those it has"
    leader.persist()
    cluster.deliver_all(to=3)
    cluster[3].persist()
    cluster.deliver_all(source=3)
    assert leader.commit == leader.last.index > entry


def _a_removal_that_one_leader_left_behind() -> tuple[Cluster, int]:
    """n1 removed n4, which only n1 knows.  n2, n3 and n4 committed entries in a newer term, which n2 and n3 lost with their power."""
    cluster = Cluster(4)
    old = cluster.elect(1)
    cluster.run(2 * HEARTBEAT_MS)
    kept = cluster[4].last.index
    cluster.isolate(1)
    old.change([1, 2, 3])
    assert cluster.run(LONG_MS, until=lambda: any(cluster[name].core.is_confirmed_leader for name in (2, 3, 4)))
    leader = next(cluster[name] for name in (2, 3, 4) if cluster[name].role is Role.LEADER)
    leader.propose()
    entry = leader.last.index
    assert cluster.run(LONG_MS, until=lambda: min(cluster[name].commit for name in (2, 3, 4)) >= entry)
    for name in (2, 3):
        forget(cluster[name], kept)
    old.crash()
    old.restart()
    return cluster, kept


def test_an_undecided_removal_does_not_make_the_others_every_voter() -> None:
    cluster, _kept = _a_removal_that_one_leader_left_behind()
    entry = cluster[4].last
    cluster.heal()
    cluster.isolate(4)
    assert not cluster.run(LONG_MS, until=lambda: bool(cluster.leaders())), "two of four lost power, which is no majority"
    cluster.heal()
    assert cluster.run(LONG_MS, until=lambda: bool(cluster.leaders()))
    assert cluster.leader().core.term_at(entry.index) == entry.term


def test_with_the_votes_of_both_configurations_an_undecided_removal_wins() -> None:
    """All four are there and n1 has the longest log: it has to ask the one that it removed, too."""
    cluster, kept = _a_removal_that_one_leader_left_behind()
    forget(cluster[4], kept)
    cluster[4].disk.suspect = False  # as one that never had more
    cluster[4].restart()
    cluster.heal()
    assert cluster.run(LONG_MS, until=lambda: cluster[1].core.is_confirmed_leader)


def _suspect(before: Membership, now: Membership) -> Node:
    """Node 1 with two configurations in its log, the newer one undecided, which lost power and asks for pre-votes."""
    cluster = Cluster(1)
    entries = [EntryMeta(1, 77, EntryKind.CONFIG, configuration) for configuration in (before, now)]
    disk = Disk(HardState(1), ZERO_ENTRY, entries, before, 1, suspect=True)
    node = cluster.nodes[node_id(1)] = Node(cluster, node_id(1), disk, cluster.config)
    node.campaign()
    return node


def _grant(node: Node, voter: NodeId, *, store: str = "", suspect: bool = False) -> None:
    answer = VoteResponse(term=node.term + 1, granted=True, pre_vote=True, suspect=suspect)
    node.step(Received(voter, answer, store))


def test_another_folder_in_the_place_of_a_removed_voter_is_not_that_voter() -> None:
    before = Membership(ids(1, 2, 3)).with_stores({voter: OWN + voter for voter in ids(2, 3)})
    node = _suspect(before, Membership(ids(1, 2)).with_stores({node_id(2): OWN + "2"}))
    assert len(node.sent(VoteRequest, to=3)) == 1
    _grant(node, node_id(2), store=OWN + "2")
    _grant(node, node_id(3), store="an empty one")
    assert node.role is Role.PRE_CANDIDATE
    _grant(node, node_id(3), store=OWN + "3")
    assert node.role is Role.CANDIDATE  # type: ignore[comparison-overlap]  # changed by the calls between


def test_a_voter_that_removed_itself_still_votes_in_the_configuration_before() -> None:
    node = _suspect(Membership(ids(1, 2, 3)), Membership(ids(2, 3)))
    _grant(node, node_id(2), suspect=True)
    assert node.role is Role.PRE_CANDIDATE
    _grant(node, node_id(3))
    assert node.role is Role.CANDIDATE  # type: ignore[comparison-overlap]  # changed by the calls between


def test_a_suspect_is_sound_when_it_has_committed_what_its_leader_had_when_asked() -> None:
    """Not what that one had committed: an entry in flight then may be one that the suspect had acknowledged."""
    entries = [EntryMeta(1, 1000)]
    disk = Disk(HardState(1), ZERO_ENTRY, entries, Membership(ids(1, 2, 3)), 1, suspect=True)
    cluster = Cluster(3)
    node = cluster.nodes[node_id(1)] = Node(cluster, node_id(1), disk, cluster.config)
    node.receive(2, append(1, (1, 1), [1, 1], commit=1))
    (question,) = node.sent(ReadIndexRequest, to=2)
    assert isinstance(question, ReadIndexRequest)
    assert question.suspect
    node.receive(2, ReadIndexResponse(term=1, token=question.token, index=1, ok=True, last=3))
    assert node.core.suspect
    node.receive(2, append(1, (3, 1), commit=2))
    assert node.core.suspect
    node.receive(2, append(1, (3, 1), commit=3))
    assert not node.core.suspect
    assert node.told(Sound)
