"""RocketMQ's remoting protocol where nodes speak TLS: its clients do, too, and so do the nodes among each other."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.remoting.codes import Answer, Request
from broker.rocketmq_grpc._pb import definition_pb2 as pb
from dledger_wire.security import principal
from dledger_wire.security.certificates import issue, new_authority
from tests.cluster.harness import send_garbage
from tests.cluster.rocketmq import Client, RocketmqCluster, ask
from tests.cluster.rocketmq_grpc import GrpcClient
from tests.cluster.users import secrets_of_users, signed, with_administrator
from tests.waiting import wait_until

TLS = {"ca": "ca.crt", "cert": "{id}.crt", "key": "{id}.key"}
CHECKS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
SEND = {"a": "payers", "b": "orders", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
HALF, COMMIT, ROLL_BACK = "4", "8", "12"
MESSAGES = 120


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
    made = RocketmqCluster(folder / "data", settings={"security": {"folder": str(folder), "tls": TLS}})
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


@pytest.fixture
def of_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocketmqCluster]:
    """With users, too."""
    security = with_administrator(folder, monkeypatch) | {"folder": str(folder), "tls": TLS}
    made = RocketmqCluster(folder / "data", settings={"security": security, "broker": CHECKS})
    try:
        made.start()
        made.cli_ok("topic", "create", "orders", "--queues", "1")
        yield made
    finally:
        made.end()


def test_signed_sends_go_on_when_the_leader_is_killed(of_users: RocketmqCluster, folder: Path) -> None:
    """Each is answered or repeated, as clients do; nothing is lost, doubled, or refused for want of a right."""
    secret = secrets_of_users(of_users, tls=str(folder / "ca.crt"))["shop"]
    tls, killed = ssl.create_default_context(cafile=str(folder / "ca.crt")), of_users.leader()
    others = [of_users.remoting(node_id) for node_id in of_users.local.node_ids() if node_id != killed]
    acknowledged, codes = list[bytes](), set[int]()

    def is_sent(number: int) -> bool:
        fields, body = SEND | {"i": f"UNIQ_KEY\x01{number:032X}\x02"}, b"body %d" % number
        code = ask(others[number % 2], Request.SEND_MESSAGE_V2, signed("shop", secret, fields, body), body, tls=tls).code
        codes.add(code)
        return code == Answer.SUCCESS

    def send_all() -> None:
        for number in range(MESSAGES):
            wait_until(lambda at=number: is_sent(at), "it is sent")
            acknowledged.append(b"body %d" % number)

    with ThreadPoolExecutor() as threads:
        sending = threads.submit(send_all)
        wait_until(lambda: len(acknowledged) > MESSAGES // 4, "some are sent")
        of_users.kill(killed)
        sending.result()
    assert codes <= {Answer.SUCCESS, Answer.SERVICE_NOT_AVAILABLE}
    assert of_users.consume("orders", MESSAGES + 1) == acknowledged


def test_signed_transactions_are_checked_back(of_users: RocketmqCluster, folder: Path) -> None:
    """By the leader, where the heartbeats of RocketMQ's producers go."""
    secrets = secrets_of_users(of_users, ("shop", "group", "payers", "write"), tls=str(folder / "ca.crt"))
    producer = Client(of_users.remoting(of_users.leader()), tls=ssl.create_default_context(cafile=str(folder / "ca.crt")))

    def code(user: str, request: int, fields: dict[str, str], body: bytes = b"") -> int:
        found = producer.ask(request, signed(user, secrets[user], fields, body), body)
        while not found.is_response:  # it is asked again about a transaction that has not ended
            found = producer.read()
        return found.code

    with contextlib.closing(producer):
        beat = json.dumps({"clientID": "p", "producerDataSet": [{"groupName": "payers"}], "consumerDataSet": []}).encode()
        assert code("shop", Request.HEART_BEAT, {}, beat) == Answer.SUCCESS
        for number, resolution in enumerate((COMMIT, ROLL_BACK)):
            named = f"TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01{number:032X}\x02"
            assert code("shop", Request.SEND_MESSAGE_V2, SEND | {"f": HALF, "i": named}, b"payment %d" % number) == Answer.SUCCESS
            check = producer.read()
            while check.fields.get("transactionId") != f"{number:032X}":
                check = producer.read()
            assert check.code == Request.CHECK_TRANSACTION_STATE
            ends = {"producerGroup": "payers", "commitOrRollback": resolution, "fromTransactionCheck": "true", **check.fields}
            assert code("audit", Request.END_TRANSACTION, ends) == Answer.NO_PERMISSION
            assert code("shop", Request.END_TRANSACTION, ends) == Answer.SUCCESS
    assert of_users.consume("orders", 2) == [b"payment 0"]
