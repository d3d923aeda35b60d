"""RocketMQ's Go client over gRPC, unmodified: all kinds of messages and consumers, nothing lost or stored twice when a leader is killed."""

from __future__ import annotations

import pytest

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import grpc_go_client
from tests.deploy.rocketmq.load import LOAD, PAUSE_MS, consumed_while_the_leader_is_killed, every_kind

SHOWN = ["normal", "async", "large", "fifo", "delayed", "priority", "transactions", "again", "sql", "push", "order", "dead"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> str:
    return grpc_go_client(tmp_path_factory.mktemp("go"))


def endpoints(cluster: RocketmqCluster) -> str:
    return ";".join(cluster.status_json()["rocketmq"]["grpc"])


def test_every_kind_of_message_and_consumer(cluster: RocketmqCluster, client: str) -> None:
    every_kind(cluster, [client, "kinds", endpoints(cluster), "kinds"], SHOWN)


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_nothing_is_lost_or_stored_twice_when_the_leader_is_killed(cluster: RocketmqCluster, client: str, kind: str) -> None:
    program = [client, "load", kind, endpoints(cluster)]
    consumed_while_the_leader_is_killed(cluster, [*program, "load", "readers", str(LOAD), str(PAUSE_MS)])
