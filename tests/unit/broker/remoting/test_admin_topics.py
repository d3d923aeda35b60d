"""What RocketMQ's tools ask about topics, at the nodes of a simulated replica group."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.remoting.admin_topics import AdminTopics, spec_of
from broker.remoting.codes import Answer, Request
from broker.remoting.json_body import MessageQueue, answer
from dledger_client.aio import Message
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from tests.unit.broker.remoting.rig import ask, at_each_node, content
from tests.unit.client.sim_rig import Rig

NEW: dict[str, Any] = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 6, "writeQueueNums": 4, "perm": 6, "order": "false"}


def test_a_map_of_queues_has_objects_as_its_keys() -> None:
    rows = {MessageQueue("g0", number, 'Tä"g'): {"maxOffset": number, "minOffset": 0} for number in range(2)}
    body = asyncio.run(answer({"offsetTable": rows, "topicPutTps": 0.0, "names": ["a", None], "order": False})).body
    first = '{"brokerName":"g0","queueId":0,"topic":"Tä\\"g"}:{"maxOffset":0,"minOffset":0}'
    second = '{"brokerName":"g0","queueId":1,"topic":"Tä\\"g"}:{"maxOffset":1,"minOffset":0}'
    assert bytes(body).decode() == f'{{"offsetTable":{{{first},{second}}},"topicPutTps":0.0,"names":["a",null],"order":false}}'


WRONG = [{"readQueueNums": "-1"}, {"perm": "7"}, {"writeQueueNums": "1e3"}, {"attributes": {"+queue.type": "BatchCQ"}}]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_topic_cannot_have_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        spec_of("orders", NEW | wrong)
    assert spec_of("orders", {**NEW, "attributes": {"+message.type": "FIFO"}}).read_queues == 6


def test_a_topic_is_made_changed_and_deleted_through_any_node() -> None:
    async def scenario(rig: Rig) -> None:
        async with at_each_node(rig, AdminTopics) as nodes, rig.admin() as admin:
            for node in nodes:
                made = await ask(node, Request.UPDATE_AND_CREATE_TOPIC, **NEW, attributes="+message.type=DELAY")
                assert made.code == Answer.SUCCESS
                (topic,) = await admin.list_topics()
                assert (topic.read_queues, topic.write_queues, topic.perm) == (6, 4, 6)
                rows = [{"topicName": "orders", "readQueueNums": 8, "writeQueueNums": 8, "perm": 4, "attributes": {}}]
                await ask(node, Request.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": rows}).encode())
                shown = content(await ask(node, Request.GET_TOPIC_CONFIG, topic="orders"))
                assert (shown["readQueueNums"], shown["writeQueueNums"], shown["perm"]) == (8, 8, 4)
                assert content(await ask(node, Request.GET_ALL_TOPIC_CONFIG))["topicConfigTable"] == {"orders": shown}
                for _ in range(2):
                    assert (await ask(node, Request.DELETE_TOPIC_IN_BROKER, topic="orders")).code == Answer.SUCCESS
                with pytest.raises(TopicNotFoundError):
                    await ask(node, Request.GET_TOPIC_CONFIG, topic="orders")

    Rig().run(scenario)


def test_a_topic_of_rocketmqs_type_for_priorities_has_them() -> None:
    async def scenario(rig: Rig) -> None:
        async with at_each_node(rig, AdminTopics) as nodes, rig.admin() as admin:
            await ask(nodes[0], Request.UPDATE_AND_CREATE_TOPIC, **NEW, attributes="+message.type=PRIORITY")
            (topic,) = await admin.list_topics()
            assert topic.priorities
            await ask(nodes[0], Request.UPDATE_AND_CREATE_TOPIC, **NEW, attributes="+message.type=PRIORITY")
            shown = content(await ask(nodes[0], Request.GET_TOPIC_CONFIG, topic="orders"))
            assert shown["attributes"] == {"message.type": "PRIORITY"}
            await admin.create_topic("plain", queues=6)
            with pytest.raises(InvalidArgumentError, match="it would get them only when it is created"):
                await ask(nodes[0], Request.UPDATE_AND_CREATE_TOPIC, **NEW | {"topic": "plain"}, attributes="+message.type=PRIORITY")

    Rig().run(scenario)


def test_queues_and_groups_of_a_topic() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with at_each_node(rig, AdminTopics) as nodes, rig.producer() as producer, rig.consumer(group="audit") as consumer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number), queue_id=1)
            await consumer.commit({("t", 1): 2})
            for node in nodes:
                body = bytes((await ask(node, Request.GET_TOPIC_STATS_INFO, topic="t")).body).decode()
                assert '{"brokerName":"g0","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}' in body
                assert '"maxOffset":3,"minOffset":0}' in body
                assert content(await ask(node, Request.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")) == {"groupList": ["audit"]}
                assert "TBW102" in content(await ask(node, Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]

    Rig().run(scenario)
