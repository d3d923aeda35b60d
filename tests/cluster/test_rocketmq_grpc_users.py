"""RocketMQ's gRPC clients where the cluster has users: each call is signed, at whichever node it comes in."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, closing

import grpc
import pytest

from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc._pb import service_pb2 as service
from broker.rocketmq_grpc.signature import AUTHORIZATION, DATE_TIME
from dledger_client import Admin
from dledger_client.admin.security import AccessRule
from tests.cluster.rocketmq import RocketmqCluster
from tests.cluster.rocketmq_grpc import GrpcClient, signed, topic_of
from tests.cluster.test_remoting_users import cluster as cluster
from tests.cluster.users import secrets_of_users
from tests.waiting import LIMIT_MS, wait_until

ID = "01020304050607080900000000000000%02X"
NOW = "20261130T101010Z"


@pytest.fixture
def open_clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def client(stack: ExitStack, address: str, name: str, secret: str) -> GrpcClient:
    """Signs as a user."""
    headers = ((AUTHORIZATION, signed(name, secret, NOW)), (DATE_TIME, NOW))
    return stack.enter_context(closing(GrpcClient(address, f"{name}-1", metadata=headers)))


def test_users_may_do_what_their_rules_allow_at_each_node(cluster: RocketmqCluster, open_clients: ExitStack) -> None:
    secrets = secrets_of_users(cluster)
    route = service.QueryRouteRequest(topic=topic_of("orders"))
    for number, node_id in enumerate(cluster.local.node_ids()):
        address = cluster.remoting(node_id)
        shop, audit = (client(open_clients, address, name, secrets[name]) for name in ("shop", "audit"))
        sent = shop.send("orders", b"body %d" % number, ID % number)
        assert (sent.status.code, sent.entries[0].offset) == (pb.OK, number), sent.status.message
        refused = audit.send("orders", b"forged", ID % 9)
        assert (refused.status.code, refused.status.message) == (pb.FORBIDDEN, "user audit may not write topic orders")
        (queue_,) = shop.call("QueryRoute", route).message_queues
        leader = cluster.remoting(cluster.leader())
        assert [f"{each.host}:{each.port}" for each in queue_.broker.endpoints.addresses] == [leader]
        assert shop.code("QueryRoute", service.QueryRouteRequest(topic=topic_of("salaries"))) == pb.FORBIDDEN
        wanted = service.QueryAssignmentRequest(topic=topic_of("orders"), group=topic_of("readers"))
        assert (audit.code("QueryAssignment", wanted), shop.code("QueryAssignment", wanted)) == (pb.OK, pb.FORBIDDEN)
        for stranger in (
            client(open_clients, address, "shop", secrets["audit"]),
            client(open_clients, address, "nobody", "x"),
            open_clients.enter_context(closing(GrpcClient(address))),
            open_clients.enter_context(closing(GrpcClient(address, metadata=((AUTHORIZATION, "Basic x=,,= Credential"), (DATE_TIME, ""))))),
        ):
            assert stranger.send("orders", b"forged", ID % 9).status.code == pb.UNAUTHORIZED
            assert stranger.code("QueryRoute", route) == pb.UNAUTHORIZED
            assert stranger.code("Heartbeat", service.HeartbeatRequest()) == pb.UNAUTHORIZED
    assert cluster.consume("orders", 9) == [b"body 0", b"body 1", b"body 2"]


def test_transactions_are_asked_for_on_the_streams_of_those_who_may_end_them(cluster: RocketmqCluster, open_clients: ExitStack) -> None:
    secrets = secrets_of_users(cluster)
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS) as admin:
        admin.change_rules([AccessRule("shop", "allow", "group", "orders", "write")])
    leader = cluster.leader()
    follower = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
    streams = {}
    for name in ("audit", "shop"):
        asked: queue.Queue[service.TelemetryCommand] = queue.Queue()
        asked.put(service.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[topic_of("orders")]))))
        at = client(open_clients, cluster.remoting(leader), name, secrets[name])
        streams[name] = at.stream("Telemetry", iter(asked.get, None), service.TelemetryCommand)
        assert next(streams[name]).status.code == pb.OK
    sender = client(open_clients, cluster.remoting(follower), "shop", secrets["shop"])
    (entry,) = sender.send("orders", b"half", ID % 1, message_type=pb.TRANSACTION).entries
    command = next(streams["shop"]).recover_orphaned_transaction_command
    assert command.transaction_id == entry.transaction_id
    ended = service.EndTransactionRequest(topic=topic_of("orders"), transaction_id=command.transaction_id, resolution=pb.COMMIT)
    assert client(open_clients, cluster.remoting(follower), "audit", secrets["audit"]).code("EndTransaction", ended) == pb.FORBIDDEN
    assert sender.code("EndTransaction", ended) == pb.OK
    assert cluster.consume("orders", 1) == [b"half"]


def test_a_secret_that_is_taken_away_counts_no_more_and_its_streams_end(cluster: RocketmqCluster, open_clients: ExitStack) -> None:
    secrets = secrets_of_users(cluster)
    streams = []
    for node_id in cluster.local.node_ids():
        settings: queue.Queue[service.TelemetryCommand] = queue.Queue()
        settings.put(service.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing())))
        at = client(open_clients, cluster.remoting(node_id), "shop", secrets["shop"])
        streams.append(at.stream("Telemetry", iter(settings.get, None), service.TelemetryCommand))
        assert next(streams[-1]).status.code == pb.OK
    cluster.cli_ok("user", "secret", "shop", "--revoke", "--yes")
    for stream in streams:
        with pytest.raises((grpc.RpcError, StopIteration)):
            next(stream)
    nodes = [client(open_clients, cluster.remoting(node_id), "shop", secrets["shop"]) for node_id in cluster.local.node_ids()]
    refused = service.HeartbeatRequest()
    wait_until(lambda: all(each.code("Heartbeat", refused) == pb.UNAUTHORIZED for each in nodes), "the secret is gone")
