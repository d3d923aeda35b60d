"""What a core says of why it knows a leader no more: with every change of role, and to the node that takes over."""

from __future__ import annotations

import pytest

from dledger.core.causes import Cause, cause_of
from dledger.core.effects import RoleChanged
from dledger.core.events import StorageFailed, TransferRequested
from dledger.core.messages import TimeoutNow, VoteResponse
from dledger.core.types import NodeId, Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Node, node_id, solo


def led() -> tuple[Cluster, Node]:
    cluster = Cluster(3)
    leader = cluster.elect(1)
    cluster.run(HEARTBEAT_MS)
    cluster.settle()
    return cluster, leader


def told(node: Node) -> RoleChanged:
    """The newest change of role."""
    return [effect for effect in node.effects if isinstance(effect, RoleChanged)][-1]


def of_new_leader(cluster: Cluster) -> tuple[Cause, NodeId | None]:
    """The cause and the leader before, as the leader that comes after 1 tells it."""
    others = [cluster[2], cluster[3]]
    assert cluster.run(10 * ELECTION_MS, until=lambda: any(node.role is Role.LEADER for node in others))
    event = told(next(node for node in others if node.role is Role.LEADER))
    assert event.loss is not None
    return event.loss.cause, event.loss.leader


def test_the_first_leader_comes_because_nobody_led_since_the_start() -> None:
    cluster = Cluster(3)
    assert cluster.run(10 * ELECTION_MS, until=lambda: bool(cluster.leaders()))
    event = told(cluster.leaders()[0])
    assert event.loss is not None
    assert (event.loss.cause, event.loss.leader, event.leaderless_ms) == (Cause.START, None, cluster.now_ms)


def test_a_leader_that_falls_silent() -> None:
    cluster, _leader = led()
    cluster.isolate(1)
    assert of_new_leader(cluster) == (Cause.SILENT, node_id(1))
    successor = next(node for node in (cluster[2], cluster[3]) if node.role is Role.LEADER)
    assert told(successor).leaderless_ms >= ELECTION_MS


def test_a_leader_whose_connections_break() -> None:
    cluster, _leader = led()
    cluster.isolate(1)
    for node in (cluster[2], cluster[3]):
        node.lost(1)
    assert of_new_leader(cluster) == (Cause.LINK_LOST, node_id(1))
    successor = next(node for node in (cluster[2], cluster[3]) if node.role is Role.LEADER)
    assert told(successor).leaderless_ms < ELECTION_MS


def test_a_leader_without_a_majority_steps_down() -> None:
    cluster, leader = led()
    cluster.isolate(1)
    assert cluster.run(10 * ELECTION_MS, until=lambda: leader.role is not Role.LEADER)
    loss = told(leader).loss
    assert loss is not None
    assert (loss.cause, loss.leader) == (Cause.NOT_CONFIRMED, node_id(1))


@pytest.mark.parametrize("cause", [Cause.TRANSFER, Cause.PREFERRED, Cause.STOPPING, Cause.CLOCK])
def test_who_takes_over_is_told_why_and_so_is_known_at_the_old_leader(cause: Cause) -> None:
    cluster, leader = led()
    leader.step(TransferRequested(node_id(2), cause))
    assert of_new_leader(cluster) == (cause, node_id(1))
    assert cluster.run(2 * ELECTION_MS, until=lambda: leader.core.leader == node_id(2))
    loss = told(leader).loss
    assert loss is not None
    assert (loss.cause, loss.leader) == (cause, node_id(1))


@pytest.mark.parametrize(("fatal", "cause"), [(False, Cause.DISK_FULL), (True, Cause.STORAGE_FAILED)])
def test_a_leader_that_cannot_write_says_so(fatal: bool, cause: Cause) -> None:
    cluster, leader = led()
    leader.step(StorageFailed(fatal=fatal))
    assert of_new_leader(cluster) == (cause, node_id(1))


def test_a_leader_that_was_removed_says_so() -> None:
    cluster, leader = led()
    leader.change([2, 3])
    assert of_new_leader(cluster) == (Cause.REMOVED, node_id(1))


def test_the_cause_stays_over_rounds_that_elect_nobody() -> None:
    cluster, _leader = led()
    for name in (1, 2, 3):
        cluster.isolate(name)
    cluster.run(5 * ELECTION_MS)
    cluster.heal()
    cluster.cut(1, 2)
    cluster.cut(1, 3)
    assert of_new_leader(cluster) == (Cause.SILENT, node_id(1))


def test_a_follower_learns_of_a_newer_term_from_somebody() -> None:
    cluster, leader = led()
    leader.transfer(2)
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].core.leader == node_id(2))
    loss = told(cluster[3]).loss
    assert loss is not None
    assert (loss.cause, loss.leader, loss.source) == (Cause.HIGHER_TERM, node_id(1), node_id(2))


def test_a_target_that_did_not_know_its_leader_yet_tells_why_it_takes_over() -> None:
    node = solo([1, 4])
    node.receive(2, TimeoutNow(term=4, cause=Cause.STOPPING))
    loss = told(node).loss
    assert node.role is Role.CANDIDATE
    assert loss is not None
    assert (loss.cause, loss.leader, loss.source) == (Cause.STOPPING, node_id(2), node_id(2))


@pytest.mark.parametrize(("source", "cause"), [(2, Cause.TRANSFER), (3, Cause.HIGHER_TERM)])
def test_during_a_transfer_only_the_newer_term_of_its_target_counts_as_the_transfer(source: int, cause: Cause) -> None:
    _cluster, leader = led()
    leader.transfer(2)
    leader.receive(source, VoteResponse(term=9, granted=False, pre_vote=False))
    loss = told(leader).loss
    assert loss is not None
    assert (loss.cause, loss.leader, loss.source) == (cause, node_id(1), node_id(source))


def test_a_cause_that_only_another_version_knows() -> None:
    assert cause_of("disk_full", Cause.TRANSFER) is Cause.DISK_FULL
    assert cause_of("", Cause.TRANSFER) is Cause.TRANSFER
    assert cause_of("solar flare", Cause.TRANSFER) is Cause.TRANSFER
