"""RocketMQ's clients of a cluster with users: they sign, and may do what the rules of their user allow."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command, encode
from dledger_client import Admin
from dledger_client.admin.security import AccessRule
from tests.cluster.rocketmq import Client as Connection
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.cluster.users import secrets_of_users, signed, with_administrator
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until

SEND = {"a": "p", "b": "orders", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
PULL = {"consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(tmp_path / "data", name_servers=1, settings={"security": with_administrator(tmp_path, monkeypatch)})
    try:
        made.start()
        made.cli_ok("topic", "create", "orders", "--queues", "1")
        yield made
    finally:
        made.end()


class Client:
    """Signs as a user."""

    def __init__(self, name: str, secret: str) -> None:
        self._name, self._secret = name, secret

    def signed(self, fields: dict[str, str], body: bytes = b"") -> dict[str, str]:
        return signed(self._name, self._secret, fields, body)

    def ask(self, address: str, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        return ask(address, code, self.signed(fields, body), body)

    def code(self, address: str, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        return self.ask(address, code, fields, body).code


def test_users_may_do_what_their_rules_allow_at_each_node(cluster: RocketmqCluster) -> None:
    secrets, nodes = secrets_of_users(cluster), [cluster.remoting(node_id) for node_id in cluster.local.node_ids()]
    shop, audit = (Client(name, secrets[name]) for name in ("shop", "audit"))
    for number, address in enumerate(nodes):
        sent = shop.ask(address, Request.SEND_MESSAGE_V2, SEND, b"body %d" % number)
        assert (sent.code, sent.fields["queueOffset"]) == (Answer.SUCCESS, str(number))
    offset = {"consumerGroup": "readers", "topic": "orders", "queueId": "0"}
    for address in nodes:
        found = audit.ask(address, Request.PULL_MESSAGE, PULL)
        assert (found.code, found.fields["nextBeginOffset"]) == (Answer.SUCCESS, "3")
        assert b"body 2" in bytes(found.body)
        assert audit.code(address, Request.UPDATE_CONSUMER_OFFSET, offset | {"commitOffset": "2"}) == Answer.SUCCESS
        assert audit.ask(address, Request.QUERY_CONSUMER_OFFSET, offset).fields["offset"] == "2"
        assert shop.code(address, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}) == Answer.SUCCESS
        refused = audit.ask(address, Request.SEND_MESSAGE_V2, SEND, b"forged")
        assert (refused.code, refused.remark) == (Answer.NO_PERMISSION, "user audit may not write topic orders")
        assert shop.code(address, Request.PULL_MESSAGE, PULL) == Answer.NO_PERMISSION
        assert audit.code(address, Request.PULL_MESSAGE, PULL | {"consumerGroup": "others"}) == Answer.NO_PERMISSION
        topic = {"topic": "mine", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        assert shop.code(address, Request.UPDATE_AND_CREATE_TOPIC, topic) == Answer.NO_PERMISSION
        assert shop.code(address, Request.GET_ALL_TOPIC_LIST, {}) == Answer.NO_PERMISSION
        assert Client("shop", secrets["audit"]).code(address, Request.SEND_MESSAGE_V2, SEND, b"forged") == Answer.NO_PERMISSION
        assert Client("nobody", "x").code(address, Request.SEND_MESSAGE_V2, SEND, b"forged") == Answer.NO_PERMISSION
        for code, fields in ((Request.SEND_MESSAGE_V2, SEND), (Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})):
            assert ask(address, code, fields, b"").code == Answer.NO_PERMISSION
    assert cluster.consume("orders", 9) == [b"body 0", b"body 1", b"body 2"]
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS) as admin:
        admin.change_rules([AccessRule("shop", "allow", "cluster", "*", "administer")])
    for number, address in enumerate(nodes):
        topic = {"topic": f"made-{number}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        assert shop.code(address, Request.UPDATE_AND_CREATE_TOPIC, topic) == Answer.SUCCESS
        assert shop.code(address, Request.GET_ALL_TOPIC_LIST, {}) == Answer.SUCCESS


def test_name_servers_show_routes_to_users_only(cluster: RocketmqCluster) -> None:
    shop = Client("shop", secrets_of_users(cluster)["shop"])
    address, wanted = cluster.remoting("ns0"), {"topic": "orders"}
    wait_until(lambda: shop.code(address, Request.GET_ROUTEINFO_BY_TOPIC, wanted) == Answer.SUCCESS, "ns0 knows the user and the topic")
    assert shop.code(address, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "salaries"}) == Answer.NO_PERMISSION
    assert shop.code(address, Request.GET_ALL_TOPIC_LIST, {}) == Answer.NO_PERMISSION
    assert Client("shop", "x").code(address, Request.GET_ROUTEINFO_BY_TOPIC, wanted) == Answer.NO_PERMISSION
    assert ask(address, Request.GET_ROUTEINFO_BY_TOPIC, wanted).code == Answer.NO_PERMISSION


def test_replies_are_passed_on_for_who_may_write_them(cluster: RocketmqCluster) -> None:
    """A node passes a reply on as it is signed, and the next one checks it again."""
    secrets, topic = secrets_of_users(cluster), f"{cluster.config.cluster}_REPLY_TOPIC"
    shop, audit = (Client(name, secrets[name]) for name in ("shop", "audit"))
    with Admin(cluster.bootstrap, timeout_ms=LIMIT_MS) as admin:
        admin.change_rules([AccessRule("shop", "allow", "topic", topic, "write")])
    fields = {**SEND, "b": topic, "c": "TBW102", "i": "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c-1\x02"}
    beat = json.dumps({"clientID": "asker", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}).encode()
    for asker_at in cluster.local.node_ids():
        asker = Connection(cluster.remoting(asker_at))
        with contextlib.closing(asker), ThreadPoolExecutor() as threads:
            assert asker.ask(Request.HEART_BEAT, audit.signed({}, beat), beat).code == Answer.SUCCESS
            for replier_at in cluster.local.node_ids():
                replied = threads.submit(shop.ask, cluster.remoting(replier_at), Request.SEND_REPLY_MESSAGE_V2, fields, b"paid")
                pushed = asker.read()
                assert (pushed.code, bytes(pushed.body)) == (Request.PUSH_REPLY_MESSAGE_TO_CLIENT, b"paid")
                asker.answer(pushed, Answer.SUCCESS)
                assert replied.result().code == Answer.SUCCESS
                for code in (Request.SEND_REPLY_MESSAGE_V2, Request.PUSH_REPLY_MESSAGE_TO_CLIENT):
                    assert audit.code(cluster.remoting(replier_at), code, fields, b"forged") == Answer.NO_PERMISSION


def test_a_secret_that_is_taken_away_counts_no_more_and_its_connections_end(cluster: RocketmqCluster) -> None:
    secrets = secrets_of_users(cluster)
    audit, address = Client("audit", secrets["audit"]), cluster.remoting(cluster.leader())
    host, _, port = address.rpartition(":")
    waiting = PULL | {"sysFlag": "2", "suspendTimeoutMillis": "15000"}
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as held:
        held.sendall(encode(Command(Request.PULL_MESSAGE, audit.signed(waiting), opaque=1)))
        assert audit.code(address, Request.PULL_MESSAGE, PULL) in (Answer.SUCCESS, Answer.PULL_NOT_FOUND)
        cluster.cli_ok("user", "secret", "audit", "--revoke", "--yes")
        with contextlib.suppress(ConnectionResetError):
            assert held.recv(1) == b""  # its pull is not answered
    nodes = [cluster.remoting(node_id) for node_id in cluster.local.node_ids()]
    wait_until(lambda: all(audit.code(each, Request.PULL_MESSAGE, PULL) == Answer.NO_PERMISSION for each in nodes), "the secret is gone")
    again = json.loads(cluster.cli_ok("user", "secret", "audit", "--yes", "--json"))
    assert again["access_key"] == "audit"
    assert Client("audit", again["secret"]).code(address, Request.PULL_MESSAGE, PULL) == Answer.PULL_NOT_FOUND
    assert audit.code(address, Request.PULL_MESSAGE, PULL) == Answer.NO_PERMISSION
