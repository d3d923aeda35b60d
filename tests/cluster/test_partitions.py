"""Real processes whose cables are cut: one leader, nothing acknowledged is lost, and who is cut off says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dledger_client import Message, Producer, PullConsumer
from dledger_wire.errors import DledgerError
from tests.cluster.harness import Cluster, CutCluster
from tests.waiting import LIMIT_MS, wait_until


def read_bodies(cluster: Cluster, count: int, **options: Any) -> list[bytes]:
    with PullConsumer(cluster.bootstrap, **options) as consumer:
        return [message.body for chunk in consumer.read_chunks("t", 0, 0, count) for message in chunk.messages()]


def other_leader(cluster: Cluster, than: str) -> str:
    """Wait for another confirmed leader; a leader that is cut off stops being confirmed by itself."""
    return wait_until(lambda: found if (found := cluster.leader()) != than else "", f"{than} leads on although it is cut off")


def test_a_leader_cut_off_gives_up_and_its_successor_has_everything(make_cluster: Callable[..., CutCluster]) -> None:
    cluster = make_cluster(CutCluster)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    bodies: list[bytes] = []
    with Producer(cluster.bootstrap, send_timeout_ms=LIMIT_MS) as producer:

        def send(count: int) -> None:
            for _ in range(count):
                bodies.append(b"%d" % len(bodies))
                producer.send(Message("t", bodies[-1]))

        send(20)
        first = cluster.leader()
        cluster.isolate(first)
        term = cluster.statuses()[first].term
        send(20)
        other_leader(cluster, first)
        with PullConsumer(cluster.bootstrap, replica=first, timeout_ms=1500) as consumer, pytest.raises(DledgerError):
            consumer.fetch("t", 0, 0, 100, linearizable=True)  # it cannot know what is newest
        # So it takes nobody's leadership when it comes back.
        assert cluster.statuses()[first].term == term, "who is cut off raises no term"
        cluster.cables.heal()
        cluster.wait_healthy()
        send(20)
    cluster.wait_equal()
    assert read_bodies(cluster, 60) == bodies
    assert read_bodies(cluster, 60, replica=first) == bodies


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_cable_cut_between_two_leaves_one_stable_leader(make_cluster: Callable[..., CutCluster], both_ways: bool) -> None:
    cluster = make_cluster(CutCluster)
    cluster.start()
    cluster.cli_ok("topic", "create", "t", "--queues", "1")
    leader = cluster.leader()
    follower = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    cluster.cables.cut(leader, follower)
    if both_ways:
        cluster.cables.cut(follower, leader)
    number = 0
    with Producer(cluster.bootstrap, send_timeout_ms=LIMIT_MS) as producer:

        def is_stable() -> bool:
            nonlocal number
            deadline, terms = time.monotonic() + 2, set()
            while time.monotonic() < deadline:
                producer.send(Message("t", b"%d" % number))
                number += 1
                terms.add(cluster.statuses()[cluster.leader()].term)
            return len(terms) == 1

        wait_until(is_stable, "the leader is the same for seconds")  # a busy machine may elect anew once more
        cluster.cables.heal()
        cluster.wait_healthy()
    cluster.wait_equal()
    assert read_bodies(cluster, number) == [b"%d" % each for each in range(number)]
