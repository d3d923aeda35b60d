"""RocketMQ's remoting protocol at real nodes: leader or not, both kinds of clients, repeated sends, and strangers at the port."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.remoting.codes import Answer, Request
from broker.remoting.command import MAX_FRAME_BYTES, Command
from dledger_client import Message, Producer, PullConsumer
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame import Frame, decode_frame
from tests.cluster.harness import send_garbage
from tests.cluster.rocketmq import RocketmqCluster, ask
from tests.waiting import LIMIT_MS, wait_until

KEY = "7F00000100001234567800000000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(Path(tmp_path_factory.mktemp("remoting")) / "data")
    try:
        made.start()
        yield made
    finally:
        made.end()


def send(address: str, topic: str, body: bytes, properties: str, queue_id: int = 0) -> Command:
    """As a producer of RocketMQ sends a message."""
    fields = {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000", "h": "5"}
    return ask(address, Request.SEND_MESSAGE_V2, fields | {"i": properties, "j": "0", "m": "false"}, body)


def pull(address: str, topic: str, queue_id: int, offset: int) -> tuple[Command, list[Frame]]:
    """As a consumer pulls, without waiting."""
    names = {"consumerGroup": "readers", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "32"}
    answer = ask(
        address, Request.PULL_MESSAGE, names | {"sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    )
    frames, at = list[Frame](), 0
    while at < len(answer.body):
        frames.append(decode_frame(answer.body, at))
        at += frames[-1].total_size
    return answer, frames


def others(cluster: RocketmqCluster) -> list[str]:
    leader = cluster.leader()
    return [node_id for node_id in cluster.local.node_ids() if node_id != leader]


def test_a_message_is_the_same_whichever_side_sends_and_reads_it(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "both", "--queues", "1")
    properties = f"UNIQ_KEY\x01{KEY}1\x02TAGS\x01paid\x02KEYS\x01o-1 o-2\x02amount\x0142 €\x02"
    follower, leader = cluster.remoting(others(cluster)[0]), cluster.remoting(cluster.leader())
    answer = send(follower, "both", "42 €".encode(), properties)
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (Answer.SUCCESS, "0", "0")
    with Producer(cluster.bootstrap, group="p") as producer:
        producer.send(Message("both", b"native", tags="open", keys="o-3", properties={"more": "yes"}))
    with PullConsumer(cluster.bootstrap) as consumer:
        first, second = consumer.fetch("both", 0, 0, 2)
    assert (first.body, first.tags, first.keys, first.properties["amount"], first.flag) == ("42 €".encode(), "paid", "o-1 o-2", "42 €", 5)
    for address in (leader, follower):
        pulled, frames = pull(address, "both", 0, 0)
        assert (pulled.code, pulled.fields["nextBeginOffset"], pulled.fields["maxOffset"]) == (Answer.SUCCESS, "2", "2")
        assert [frame.body for frame in frames] == ["42 €".encode(), b"native"]
        assert frames[1].properties | {"UNIQ_KEY": ""} == {"UNIQ_KEY": "", "TAGS": "open", "KEYS": "o-3", "more": "yes"}
        assert frames[1].store_host in cluster.name_servers
    assert second.body == b"native"


def test_a_repeated_send_is_answered_as_the_first_and_stored_once(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "once", "--queues", "2")
    answers = [
        send(cluster.remoting(node_id), "once", b"pay 42", f"UNIQ_KEY\x01{KEY}2\x02", queue_id)
        for queue_id, node_id in enumerate([cluster.leader(), others(cluster)[0]])
    ]
    places = [[answer.fields[name] for name in ("msgId", "queueId", "queueOffset")] for answer in answers]
    assert places[0][1:] == places[1][1:] == ["0", "0"]
    assert places[0][0][16:] == places[1][0][16:], "the place in the log; the host is that of the node asked"
    assert [pull(cluster.remoting(cluster.leader()), "once", queue_id, 0)[0].fields["maxOffset"] for queue_id in (0, 1)] == ["1", "0"]


def test_a_new_leader_recognises_what_the_killed_one_stored(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "survives", "--queues", "1")
    killed, properties = cluster.leader(), f"UNIQ_KEY\x01{KEY}3\x02"
    assert send(cluster.remoting(killed), "survives", b"pay 42", properties).code == Answer.SUCCESS
    cluster.kill(killed)
    try:
        other = cluster.remoting(next(node_id for node_id in cluster.local.node_ids() if node_id != killed))
        wait_until(lambda: send(other, "survives", b"pay 42", properties).code == Answer.SUCCESS, "a new leader answered")
    finally:
        cluster.start(killed)
    assert len(pull(cluster.remoting(cluster.leader()), "survives", 0, 0)[1]) == 1


def test_a_timed_message_is_recalled_by_its_handle_until_it_is_due_also_at_a_new_leader(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "recalled", "--queues", "1")
    killed, keys = cluster.leader(), {number: f"{KEY}{number}" for number in (5, 6, 7)} | {8: "FD00" * 14}  # of a host without IPv4

    def timed(number: int, delay_ms: int) -> Command:
        properties = f"UNIQ_KEY\x01{keys[number]}\x02TIMER_DELAY_MS\x01{delay_ms}\x02"
        return send(cluster.remoting(others(cluster)[0]), "recalled", b"%d" % number, properties)

    def recall(handle: str, topic: str = "recalled", address: str = "") -> Command:
        return ask(address or cluster.remoting(cluster.leader()), Request.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})

    handles = [timed(number, delay_ms).fields["recallHandle"] for number, delay_ms in ((5, 15_000), (6, 15_000), (7, 500), (8, 15_000))]
    version, topic, group, due_ms, unique, _ = base64.urlsafe_b64decode(handles[0]).decode().split(" ")
    assert (version, topic, group, unique) == ("v1", "recalled", "g0", f"{KEY}5")
    assert int(due_ms) > 1_700_000_000_000
    answer = recall(handles[0], address=cluster.remoting(others(cluster)[0]))
    assert (answer.code, answer.fields["msgId"]) == (Answer.SUCCESS, f"{KEY}5")
    assert "recallHandle" not in send(cluster.remoting(killed), "recalled", b"now", f"UNIQ_KEY\x01{KEY}9\x02").fields
    wait_until(lambda: len(pull(cluster.remoting(killed), "recalled", 0, 0)[1]) == 2, "the third one was delivered")
    wrong = (
        recall(handles[2]),
        recall(handles[1], "both"),
        recall("?"),
        recall("ü"),
        recall(base64.urlsafe_b64encode(b"v2 a b 1 c 2").decode()),
    )
    assert {each.code for each in wrong} == {Answer.ILLEGAL_OPERATION}, wrong
    cluster.kill(killed)
    try:
        other = cluster.remoting(next(node_id for node_id in cluster.local.node_ids() if node_id != killed))
        wait_until(lambda: recall(handles[1], address=other).code == Answer.SUCCESS, "a new leader recalled another one")
        wait_until(lambda: len(pull(other, "recalled", 0, 0)[1]) == 3, "the last one was delivered")
    finally:
        cluster.start(killed)
    frames = pull(cluster.remoting(cluster.leader()), "recalled", 0, 0)[1]
    assert {frame.body: frame.properties["UNIQ_KEY"] for frame in frames} == {b"now": f"{KEY}9", b"7": keys[7], b"8": keys[8]}
    assert not [name for frame in frames for name in frame.properties if name in ("TIMER_OUT_MS", "REAL_TOPIC", "REAL_UNIQ_KEY")]


def test_a_native_producer_recalls_what_it_sent_and_a_new_leader_keeps_to_it(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "taken-back", "--queues", "1")
    due_ms, killed = time.time_ns() // 1_000_000 + 15_000, cluster.leader()
    with Producer(cluster.bootstrap, group="p") as producer, PullConsumer(cluster.bootstrap) as consumer:
        first, second, _ = [producer.send(Message("taken-back", body, deliver_at_ms=due_ms)) for body in (b"1", b"2", b"kept")]
        producer.recall("taken-back", first)
        cluster.kill(killed)
        producer.recall("taken-back", second)
        cluster.start(killed)
        (kept,) = consumer.fetch("taken-back", 0, 0, 10, wait_ms=LIMIT_MS)
        assert kept.body == b"kept"
        with pytest.raises(InvalidArgumentError, match="wait"):
            producer.recall("taken-back", first)


def test_routes_name_each_replica_group_as_a_broker_with_its_leader_first(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "routed", "--queues", "3")
    leader = cluster.remoting(cluster.leader())
    for node_id in cluster.local.node_ids():
        route = json.loads(bytes(ask(cluster.remoting(node_id), Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "routed"}).body))
        (queues,), (broker,) = route["queueDatas"], route["brokerDatas"]
        assert (queues["brokerName"], queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == ("g0", 3, 3, 6)
        assert broker["brokerAddrs"]["0"] == leader
        assert sorted(broker["brokerAddrs"].values()) == sorted(cluster.name_servers)
    missing = ask(leader, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "missing"})
    assert missing.code == Answer.TOPIC_NOT_EXIST


def test_names_of_the_cluster_and_of_its_replica_groups_have_routes_by_which_topics_are_created(cluster: RocketmqCluster) -> None:
    leader = cluster.remoting(cluster.leader())
    for name in (cluster.config.cluster, "g0"):
        route = json.loads(bytes(ask(leader, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": name}).body))
        assert [broker["brokerAddrs"]["0"] for broker in route["brokerDatas"]] == [leader]
        assert [queues["brokerName"] for queues in route["queueDatas"]] == ["g0"]


def test_an_offset_that_the_queue_does_not_have_is_moved_into_it(cluster: RocketmqCluster) -> None:
    cluster.cli_ok("topic", "create", "short", "--queues", "1")
    send(cluster.remoting(cluster.leader()), "short", b"a", f"UNIQ_KEY\x01{KEY}4\x02")
    for node_id in cluster.local.node_ids():
        answer, _ = pull(cluster.remoting(node_id), "short", 0, 50)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (Answer.PULL_OFFSET_MOVED, "1")
        answer, _ = pull(cluster.remoting(node_id), "short", 0, 1)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (Answer.PULL_NOT_FOUND, "1")


def test_what_is_wrong_is_answered_in_words(cluster: RocketmqCluster) -> None:
    address = cluster.remoting(cluster.leader())
    unknown = ask(address, 9999, {})
    assert (unknown.code, unknown.remark) == (Answer.REQUEST_CODE_NOT_SUPPORTED, "request code 9999 is not supported")
    assert ask(address, Request.GET_MAX_OFFSET, {"queueId": "0"}).remark == "request 30: expected the field topic"
    assert send(address, "missing", b"a", "").code == Answer.TOPIC_NOT_EXIST
    cluster.cli_ok("topic", "create", "closed", "--queues", "1", "--perm", "4")
    assert send(address, "closed", b"a", "").code == Answer.NO_PERMISSION


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, (MAX_FRAME_BYTES + 1).to_bytes(4, "big") * 2, b"\0\0\0\x14\x09\0\0\0" + bytes(16)]
)
def test_strangers_at_the_port_are_sent_away(cluster: RocketmqCluster, data: bytes) -> None:
    address = cluster.remoting(cluster.leader())
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    send_garbage(address, data)
    assert ask(address, Request.GET_ALL_TOPIC_LIST, {}).code == Answer.SUCCESS
