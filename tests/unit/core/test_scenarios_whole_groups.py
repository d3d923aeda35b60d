"""Rows N of tests/unit/core/conformance.md for the core alone: groups under lasting disturbance, every safety rule watched.

Whole nodes with clients, files and processes under the same faults: tests/sim and tests/cluster.
"""

from __future__ import annotations

import random

import pytest

from dledger.core.messages import TimeoutNow
from dledger.core.types import Role
from tests.unit.core.harness import ELECTION_MS, HEARTBEAT_MS, Cluster, Node, node_id
from tests.unit.core.safety import Safety


def watched(size: int, seed: int, **settings: object) -> Cluster:
    cluster = Cluster(size, seed=seed, **settings)  # type: ignore[arg-type]
    Safety(cluster)
    return cluster


def leading(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.nodes.values() if node.up and node.role is Role.LEADER]


def write(cluster: Cluster) -> None:
    for node in leading(cluster):
        node.propose()


def assert_settles(cluster: Cluster) -> None:
    """Once the disturbance is over: one leader within bounded time, and a write that reaches everybody."""
    cluster.heal()
    cluster.auto_persist = True
    for node in cluster.nodes.values():
        if not node.up:
            node.restart()
        node.persist()
    cluster.run(6 * ELECTION_MS)
    leader = cluster.leader()
    assert leader.core.is_confirmed_leader
    leader.propose()
    goal = leader.last.index
    members = [cluster.nodes[name] for name in (*leader.core.membership.voters, *leader.core.membership.learners)]
    assert cluster.run(4 * ELECTION_MS, until=lambda: all(node.commit >= goal for node in members))
    assert all(node.terms == leader.terms for node in members)


@pytest.mark.parametrize("seed", range(3))
def test_N3_a_rolling_restart_under_load_loses_nothing(seed: int) -> None:
    cluster = Cluster(3, seed=seed)
    safety = Safety(cluster)
    cluster.elect(1)
    for name in (1, 2, 3):
        for node in leading(cluster):
            if node.name == node_id(name):
                node.transfer(None)
        write(cluster)
        cluster.run(HEARTBEAT_MS)
        assert cluster[name].role is not Role.LEADER, "handed over before it stops"
        cluster[name].crash()
        began_ms = cluster.now_ms
        assert cluster.run(4 * ELECTION_MS, until=lambda: any(node.core.is_confirmed_leader for node in leading(cluster)))
        assert cluster.now_ms - began_ms <= 2 * ELECTION_MS
        write(cluster)
        cluster.run(HEARTBEAT_MS)
        cluster[name].restart()
        safety.restarted(cluster[name])
        cluster.run(2 * HEARTBEAT_MS)
    leader = cluster.leader()
    assert leader.commit == leader.last.index


@pytest.mark.parametrize("seed", range(6))
def test_N5_rotating_partitions(seed: int) -> None:
    cluster = watched(5, seed)
    draw = random.Random(seed)
    for round_ in range(40):
        cluster.heal()
        members = list(range(1, 6))
        if round_ % 2:  # a bridge: two groups that share one node
            draw.shuffle(members)
            for one in members[:2]:
                for other in members[3:]:
                    cluster.cut(one, other)
        else:  # a ring: everybody sees two neighbours
            for one in range(5):
                cluster.cut(members[one], members[(one + 2) % 5])
        cluster.run(ELECTION_MS // 3)
        write(cluster)
    assert_settles(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_N6_a_flapping_link(seed: int) -> None:
    cluster = watched(3, seed)
    cluster.elect(1)
    for _ in range(30):
        cluster.cut(1, 2)
        cluster.run(ELECTION_MS // 2)
        write(cluster)
        cluster.heal()
        cluster.run(ELECTION_MS // 2)
    assert max(node.term for node in cluster.nodes.values()) <= 3, "stickiness and pre-vote keep the terms down"
    assert_settles(cluster)


@pytest.mark.parametrize("slow", [[1], [1, 2], [2, 3]])
def test_N7_slow_disks(slow: list[int]) -> None:
    cluster = Cluster(3, auto_persist=False)
    draw = random.Random(len(slow))
    for step in range(600):
        cluster.run(10)
        for name in (1, 2, 3):
            if cluster[name].pending and (name not in slow or draw.random() < 0.05):
                cluster[name].persist()
        if step % 5 == 0:
            write(cluster)
    committed = max(node.commit for node in cluster.nodes.values())
    assert committed > 3, "slower, not stopped"
    assert_settles(cluster)


@pytest.mark.parametrize("seed", range(3))
def test_N8_sizes_that_differ_by_orders(seed: int) -> None:
    cluster = watched(3, seed)
    draw = random.Random(seed)
    cluster.elect(1)
    for _ in range(60):
        cluster._size += draw.choice((1, 100, 40_000_000))  # sizes only grow, so that equal means the same entry
        write(cluster)
        cluster.run(5)
    assert_settles(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_N9_clocks_that_jump(seed: int) -> None:
    cluster = watched(3, seed)
    draw = random.Random(seed)
    for _ in range(60):
        node = cluster[draw.randrange(1, 4)]
        node.clock_offset_ms = draw.choice((-5000, -300, 0, 300, 5000))
        node.tick()
        cluster.run(HEARTBEAT_MS)
        write(cluster)
    for node in cluster.nodes.values():
        node.clock_offset_ms = 5000
    assert_settles(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_N10_members_come_and_go_while_nodes_die(seed: int) -> None:
    cluster = Cluster(3, seed=seed)
    safety = Safety(cluster)
    draw = random.Random(seed)
    for name in (4, 5):
        safety.restarted(cluster.add_node(name))
    for _ in range(30):
        for node in leading(cluster):
            voters, learners = list(node.core.membership.voters), list(node.core.membership.learners)
            other = node_id(draw.randrange(1, 6))
            if other in learners:
                learners.remove(other)
                voters.append(other)
            elif other in voters and len(voters) > 2:
                voters.remove(other)
            elif other not in voters:
                learners.append(other)
            node.change(voters, learners)
        down = [node for node in cluster.nodes.values() if not node.up]
        for node in down:
            node.restart()
            safety.restarted(node)
        if draw.random() < 0.4:
            cluster[draw.randrange(1, 6)].crash(0)
        write(cluster)
        cluster.run(draw.choice((20, HEARTBEAT_MS, ELECTION_MS)))
    for node in [node for node in cluster.nodes.values() if not node.up]:
        node.restart()
        safety.restarted(node)
    assert_settles(cluster)


def test_N11_everybody_stands_still_and_goes_on() -> None:
    cluster = watched(5, 1)
    cluster.elect(1)
    cluster.run(ELECTION_MS)
    before = cluster.leader().term
    for _ in range(5):
        cluster.now_ms += 30_000  # no timer fires, no message arrives
        cluster.run(6 * ELECTION_MS)
        assert len(cluster.leaders()) == 1
    assert cluster.leader().term - before <= 10
    assert_settles(cluster)


def test_N12_a_long_isolation_ends_without_an_election_and_with_everything() -> None:
    cluster = watched(3, 1)
    leader = cluster.elect(1)
    cluster.isolate(3)
    for _ in range(2000):
        leader.propose()
        cluster.settle()
    cluster.run(60_000)
    cluster.heal()
    assert cluster.run(2 * ELECTION_MS, until=lambda: cluster[3].commit == leader.last.index)
    assert (leader.role, cluster[3].term) == (Role.LEADER, 1)


def test_N14_starting_an_empty_group_again_makes_no_second_history() -> None:
    cluster = watched(3, 1)
    cluster.elect(2)
    history = cluster[2].terms
    for node in cluster.nodes.values():
        node.crash()
    for node in cluster.nodes.values():
        node.restart()
    cluster.run(6 * ELECTION_MS)
    assert all(node.terms[: len(history)] == history for node in cluster.nodes.values())
    assert all(node.core.membership == cluster.membership for node in cluster.nodes.values())


def test_N16_what_an_earlier_life_sent_changes_nothing() -> None:
    cluster = watched(3, 1)
    cluster.elect(1)
    heard = []
    cluster.dropping = lambda envelope: bool(heard.append(envelope)) and False
    cluster.leader().propose(3)
    cluster.settle()
    cluster.heal()
    cluster[1].crash()
    cluster.run(6 * ELECTION_MS)
    leader = cluster.leader()
    before = (leader.term, leader.terms, leader.commit)
    for envelope in heard:
        if cluster.nodes[envelope.to].up:
            cluster.deliver(envelope)
    cluster[2].receive(1, TimeoutNow(term=1))
    cluster.settle()
    assert (leader.role, (leader.term, leader.terms, leader.commit)) == (Role.LEADER, before)
