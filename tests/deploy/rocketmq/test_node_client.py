"""RocketMQ's client for Node.js, unmodified: all kinds of messages and consumers, nothing lost or stored twice when a leader is killed."""

from __future__ import annotations

import pytest

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import NODE_PROGRAMS, node_client
from tests.deploy.rocketmq.load import LOAD, PAUSE_MS, consumed_while_the_leader_is_killed, every_kind

SHOWN = ["normal", "large", "fifo", "delayed", "priority", "transactions", "again", "sql", "push", "order", "dead"]


@pytest.fixture(scope="module")
def client() -> list[str]:
    return node_client()


def endpoint(cluster: RocketmqCluster) -> str:
    """A follower: this client takes one address for its routes, and asks it again when the leader of its route was killed."""
    leader = cluster.remoting(cluster.leader())
    return next(address for address in cluster.status_json()["rocketmq"]["grpc"] if address != leader)


def test_every_kind_of_message_and_consumer(cluster: RocketmqCluster, client: list[str]) -> None:
    every_kind(cluster, [*client, str(NODE_PROGRAMS / "kinds.js"), endpoint(cluster), "kinds"], SHOWN)


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_nothing_is_lost_or_stored_twice_when_the_leader_is_killed(cluster: RocketmqCluster, client: list[str], kind: str) -> None:
    program = [*client, str(NODE_PROGRAMS / "load.js"), kind, endpoint(cluster)]
    consumed_while_the_leader_is_killed(cluster, [*program, "load", "readers", str(LOAD), str(PAUSE_MS)])
