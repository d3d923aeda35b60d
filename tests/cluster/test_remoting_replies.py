"""Replies to requests of RocketMQ's clients: they reach the requester at whichever node it is, or who replies learns of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.messages import COMPACT
from dledger_wire.frames.frame import decode_frame
from dledger_wire.frames.frame_layout import decode_properties
from tests.cluster.rocketmq import Client, RocketmqCluster, ask

REQUESTER = "10.0.0.7@4711"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketmqCluster]:
    made = RocketmqCluster(Path(tmp_path_factory.mktemp("replies")) / "data")
    try:
        made.start()
        yield made
    finally:
        made.end()


def header(topic: str, properties: Mapping[str, str], *, compact: bool = True) -> dict[str, str]:
    """Of a send, in either of its forms."""
    packed = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"producerGroup": "g", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"}
    fields |= {"bornTimestamp": "1700000000000", "flag": "3", "properties": packed}
    return {COMPACT[name]: value for name, value in fields.items()} if compact else fields


def reply(cluster: RocketmqCluster, requester: str, *, compact: bool = True) -> dict[str, str]:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": requester, "TTL": "3000"}
    return header(f"{cluster.config.cluster}_REPLY_TOPIC", properties, compact=compact)


@pytest.mark.parametrize("code", [Request.SEND_REPLY_MESSAGE, Request.SEND_REPLY_MESSAGE_V2])
def test_a_reply_reaches_its_requester_at_every_node(cluster: RocketmqCluster, code: int) -> None:
    for requester_at in cluster.local.node_ids():
        requester = Client(cluster.remoting(requester_at))
        with contextlib.closing(requester), ThreadPoolExecutor() as threads:
            body = json.dumps({"clientID": REQUESTER, "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}).encode()
            assert requester.ask(Request.HEART_BEAT, {}, body).code == Answer.SUCCESS
            for replier_at in cluster.local.node_ids():
                fields = reply(cluster, REQUESTER, compact=code == Request.SEND_REPLY_MESSAGE_V2)
                replied = threads.submit(ask, cluster.remoting(replier_at), code, fields, b"paid")
                pushed = requester.read()
                assert (pushed.code, bytes(pushed.body)) == (Request.PUSH_REPLY_MESSAGE_TO_CLIENT, b"paid")
                assert decode_properties(pushed.fields["properties"].encode())["CORRELATION_ID"] == "c-1"
                assert {pushed.fields[name] for name in ("flag", "sysFlag", "reconsumeTimes", "bornTimestamp")} == {
                    "3",
                    "0",
                    "1700000000000",
                }
                assert pushed.fields["bornHost"].startswith("127.0.0.1:")
                requester.answer(pushed, Answer.SUCCESS)
                answer = replied.result()
                assert (answer.code, answer.fields["queueOffset"], len(answer.fields["msgId"])) == (Answer.SUCCESS, "0", 32), answer


def test_who_sends_a_request_takes_its_reply_without_a_heartbeat(cluster: RocketmqCluster) -> None:
    """After a failover a client's requests come to its new leader before its heartbeats do."""
    cluster.cli_ok("topic", "create", "questions", "--queues", "1")
    leader, follower = cluster.leader(), next(node_id for node_id in cluster.local.node_ids() if node_id != cluster.leader())
    requester = Client(cluster.remoting(follower))
    with contextlib.closing(requester), ThreadPoolExecutor() as threads:
        sent = requester.ask(Request.SEND_MESSAGE_V2, header("questions", {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "c-1"}), b"42?")
        assert sent.code == Answer.SUCCESS
        (msg_id,) = sent.fields["msgId"].split(",")
        found = ask(cluster.remoting(leader), Request.VIEW_MESSAGE_BY_ID, {"offset": str(int(msg_id[16:], 16))})
        assert decode_frame(found.body).properties["CLUSTER"] == cluster.config.cluster, "clients make the topic of replies of it"
        replied = threads.submit(ask, cluster.remoting(leader), Request.SEND_REPLY_MESSAGE_V2, reply(cluster, "asker"), b"42")
        requester.answer(requester.read(), Answer.SYSTEM_ERROR)
        assert (replied.result().code, replied.result().remark) == (Answer.SYSTEM_ERROR, "no client asker is there to take the reply")
    gone = ask(cluster.remoting(follower), Request.SEND_REPLY_MESSAGE_V2, reply(cluster, "asker"), b"42")
    assert (gone.code, gone.remark) == (Answer.SYSTEM_ERROR, "no client asker is there to take the reply")


def test_every_node_knows_the_way_for_replies_and_says_what_is_wrong_with_one(cluster: RocketmqCluster) -> None:
    for node_id in cluster.local.node_ids():
        topic = f"{cluster.config.cluster}_REPLY_TOPIC"
        route = json.loads(bytes(ask(cluster.remoting(node_id), Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body))
        assert [(row["brokerName"], row["writeQueueNums"]) for row in route["queueDatas"]] == [("g0", 1)]
        wrong: Command = ask(cluster.remoting(node_id), Request.SEND_REPLY_MESSAGE_V2, header(topic, {"CORRELATION_ID": "c-1"}))
        assert (wrong.code, wrong.remark) == (Answer.MESSAGE_ILLEGAL, "a reply without REPLY_TO_CLIENT")
