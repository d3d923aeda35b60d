"""RocketMQ's remoting protocol where nodes speak TLS: its clients do, too, and so do the nodes among each other."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.remoting.codes import Answer, Request
from broker.rocketmq_grpc._pb import definition_pb2 as pb
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue, new_authority
from tests.cluster.harness import send_garbage
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.cluster.rocketmq_grpc import GrpcClient


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Certificates of an authority, and of three nodes."""
    authority = new_authority("private")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    for number in range(3):
        pair = issue(authority, principal.node("private", "g0", f"n{number}"), ["127.0.0.1"])
        for name, data in ((f"n{number}.crt", pair.certificate), (f"n{number}.key", pair.key)):
            (tmp_path / name).write_bytes(data)
            (tmp_path / name).chmod(0o600)
    return tmp_path


@pytest.fixture
def cluster(folder: Path) -> Iterator[RocketmqCluster]:
    tls = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
    made = RocketmqCluster(folder / "data", settings={"security": {"folder": str(folder), "tls": tls}})
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_clients_speak_tls_and_followers_pass_on_what_the_leader_has_to_answer(cluster: RocketmqCluster, folder: Path) -> None:
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    cluster.cli_ok("topic", "create", "secret", "--queues", "1")
    leader = cluster.leader()
    follower = cluster.remoting(next(node_id for node_id in cluster.local.node_ids() if node_id != leader))
    fields = {"a": "p", "b": "secret", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    assert ask(follower, Request.SEND_MESSAGE_V2, fields, b"body", tls=tls).code == Answer.SUCCESS
    place = {"consumerGroup": "readers", "topic": "secret", "queueId": "0"}
    assert ask(follower, Request.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": "1"}, tls=tls).code == Answer.SUCCESS
    for address in (follower, cluster.remoting(leader)):
        found = ask(address, Request.QUERY_CONSUMER_OFFSET, place, tls=tls)
        assert (found.code, found.fields["offset"]) == (Answer.SUCCESS, "1")
    send_garbage(follower, b"\0\0\0\x10\0\0\0\x0c{}")  # a frame in the clear is no handshake
    assert ask(follower, Request.GET_ALL_TOPIC_LIST, {}, tls=tls).code == Answer.SUCCESS


def test_grpc_clients_speak_tls_too(cluster: RocketmqCluster, folder: Path) -> None:
    cluster.cli_ok("topic", "create", "secret", "--queues", "1")
    for node_id in cluster.local.node_ids():
        client = GrpcClient(cluster.remoting(node_id), tls=(folder / "ca.crt").read_bytes())
        assert client.send("secret", b"body", f"0102030405060708090000000000000{node_id}").status.code == pb.OK
        client.close()
    assert cluster.consume("secret", 3) == [b"body"] * 3
