"""What RocketMQ's tools ask about consumer groups and their members, at the nodes of a simulated replica group."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.node import BrokerNode
from broker.remoting.admin_clients import AdminClients
from broker.remoting.admin_groups import AdminGroups, settings_of
from broker.remoting.admin_topics import AdminTopics
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command, decode
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import Leader
from broker.remoting.offsets import Offsets
from broker.remoting.query import Queries
from broker.remoting.resets import AGAIN_S, Resets
from dledger_client.aio import Message
from dledger_wire.errors import InvalidArgumentError
from tests.unit.broker.remoting.rig import Processor, Several, ask, at_each_node, content, leader_of, stranger
from tests.unit.broker.test_pop import GROUP, Consumer
from tests.unit.broker.turns import Longest, measured
from tests.unit.client.sim_rig import Rig, node_of

MOST_INSTRUCTIONS = 150_000


@pytest.mark.parametrize("wrong", [{"groupName": "g", "retryMaxTimes": -1}, {"groupName": "g", "retryQueueNums": "1"}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        settings_of(wrong)


def test_a_group_is_configured_shown_and_deleted_through_any_node() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with at_each_node(rig, AdminGroups) as nodes, rig.producer() as producer:
            for number in range(3):
                await producer.send(Message("t", b"%d" % number), queue_id=1)
            for node in nodes:
                wanted = {
                    "groupName": "audit",
                    "consumeEnable": True,
                    "retryQueueNums": 2,
                    "retryMaxTimes": 5,
                    "consumeMessageOrderly": True,
                }
                await ask(node, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(wanted).encode())
                shown = content(await ask(node, Request.GET_SUBSCRIPTIONGROUP_CONFIG, group="audit"))
                assert wanted.items() <= shown.items()
                table = content(await ask(node, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
                assert list(table) == ["TOOLS_CONSUMER", "audit"]
                assert table["audit"] == shown
                async with rig.consumer(group="audit") as consumer:
                    await consumer.commit({("t", 1): 2})
                stats = bytes((await ask(node, Request.GET_CONSUME_STATS, consumerGroup="audit")).body).decode()
                assert '{"brokerName":"g0","queueId":0,"topic":"t"}:{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,' in stats
                assert '{"brokerName":"g0","queueId":1,"topic":"t"}:{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":' in stats
                for _ in range(2):
                    assert (await ask(node, Request.DELETE_SUBSCRIPTIONGROUP, groupName="audit")).code == Answer.SUCCESS
                table = content(await ask(node, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
                assert list(table) == ["TOOLS_CONSUMER"]

    Rig().run(scenario)


def test_positions_of_a_group_are_cloned_and_those_of_all_groups_are_shown_through_any_node() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        await rig.topic("u")
        async with at_each_node(rig, AdminGroups) as nodes, rig.producer() as producer, rig.consumer(group="audit") as consumer:
            for number in range(5):
                await producer.send(Message("t", b"%d" % number), queue_id=1)
                await producer.send(Message("u", b"%d" % number))
            await consumer.commit({("t", 1): 2, ("u", 0): 4})
            async with rig.consumer(group="copy") as other:
                await other.commit({("t", 1): 5})  # which goes back
            for node in nodes:
                answer = await ask(node, Request.CLONE_GROUP_OFFSET, srcGroup="audit", destGroup="copy", topic="t", offline="false")
                assert answer.code == Answer.SUCCESS
                shown = bytes((await ask(node, Request.GET_BROKER_CONSUME_STATS, isOrder="false")).body).decode()
                assert '"totalDiff":7,' in shown  # 3 and 1 of the one, 3 of the other
                copied = shown.partition('{"copy":')[2]
                assert '"queueId":1,"topic":"t"}:{"brokerOffset":5,"consumerOffset":2,"lastTimestamp":' in copied
                assert '"topic":"u"}' not in copied
                with pytest.raises(InvalidArgumentError, match="group copy has no positions in topic u"):
                    await ask(node, Request.CLONE_GROUP_OFFSET, srcGroup="copy", destGroup="audit", topic="u", offline="false")

    Rig().run(scenario)


def test_tools_are_shown_what_is_in_flight_one_by_one() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        async with at_each_node(rig, AdminGroups) as nodes, rig.producer() as producer:
            for number in range(5):
                await producer.send(Message("t", b"%d" % number))
            simple = Consumer(rig)
            await simple.acknowledge((await simple.receive(4, invisible_ms=600_000))[:2])
            await simple.acknowledge(await simple.receive(1, invisible_ms=600_000))
            for node in nodes:
                shown = bytes((await ask(node, Request.GET_CONSUME_STATS, consumerGroup=GROUP)).body).decode()
                assert '"brokerOffset":5,"consumerOffset":2,"lastTimestamp":' in shown
                assert '"pullOffset":4}' in shown, "two are in flight"
                shown = bytes((await ask(node, Request.GET_BROKER_CONSUME_STATS, isOrder="false")).body).decode()
                assert '"totalDiff":3,"totalInflightDiff":2' in shown

    Rig().run(scenario)


def test_consumers_pull_and_no_other_mode_is_taken() -> None:
    async def scenario(rig: Rig) -> None:
        async with at_each_node(rig, AdminGroups) as (node, *_):
            answers = [
                (
                    await ask(
                        node, Request.SET_MESSAGE_REQUEST_MODE, json.dumps({"consumerGroup": "g", "topic": "t", "mode": mode}).encode()
                    )
                ).code
                for mode in ("PULL", "POP")
            ]
            assert answers == [Answer.SUCCESS, Answer.REQUEST_CODE_NOT_SUPPORTED]

    Rig().run(scenario)


class _Wire(asyncio.Transport):
    """The client's end: the commands that were sent to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 4000)})
        self.sent: list[Command] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(decode(bytes(data)))

    @property
    def resets(self) -> list[Command]:
        return [command for command in self.sent if command.code == Request.RESET_CONSUMER_CLIENT_OFFSET]


def test_a_consumer_that_began_under_another_leader_learns_of_a_reset() -> None:
    """It does not ask for its position again when the leader changes."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        place: dict[str, Any] = {"consumerGroup": "audit", "topic": "t", "queueId": 0}
        async with rig.producer() as producer, rig.consumer(group="audit") as other, consumer_c1(rig) as (asks, wire):
            for number in range(9):
                await producer.send(Message("t", b"%d" % number))
            await other.commit({("t", 0): 4})
            await ask(asks, Request.UPDATE_CONSUMER_OFFSET, **place, commitOffset=5)
            await asyncio.sleep(1)
            await ask(asks, Request.INVOKE_BROKER_TO_RESET_OFFSET, group="audit", topic="t", timestamp=0, isForce="true")
            await ask(asks, Request.UPDATE_CONSUMER_OFFSET, **place, commitOffset=9)
            assert (await ask(asks, Request.QUERY_CONSUMER_OFFSET, **place)).fields == {"offset": "0"}
            assert len(wire.resets) == 1

    Rig().run(scenario)


@contextlib.asynccontextmanager
async def consumer_c1(rig: Rig) -> AsyncIterator[tuple[Handlers, _Wire]]:
    """The leader's handlers, and the wire of a consumer of the group audit and producer of the group p at it."""
    node = node_of(rig, rig.master)
    async with leader_of(rig, rig.master) as leader:
        clients = Clients(node, leader)
        resets = Resets(node, leader, clients)
        offsets = Offsets(node, leader, clients, resets, 1 << 30)
        about_clients = AdminClients(node, leader, clients, Queries(leader))
        work = asyncio.get_running_loop().create_task(offsets.run())
        connection, wire = stranger(), _Wire()
        connection.connection_made(wire)
        subscription = {"topic": "t", "subString": "a || b", "expressionType": "TAG"}
        consumer = {"groupName": "audit", "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription]}
        beat = {"clientID": "c1", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}
        await clients.heartbeat(Command(34, body=json.dumps(beat).encode()), connection)
        yield {**resets.handlers(), **offsets.handlers(), **about_clients.handlers()}, wire
        work.cancel()
        clients.close()
        connection.connection_lost(None)
        await asyncio.sleep(1)


def test_consumers_and_producers_that_are_there_are_shown() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with consumer_c1(rig) as (asks, _):
            shown = content(await ask(asks, Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup="audit"))
            assert shown["connectionSet"] == [{"clientAddr": "10.0.0.9:4000", "clientId": "c1", "language": "OTHER", "version": 0}]
            assert shown["subscriptionTable"]["t"]["tagsSet"] == ["a", "b"]
            assert (await ask(asks, Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup="none")).code == Answer.CONSUMER_NOT_ONLINE
            assert len(content(await ask(asks, Request.GET_PRODUCER_CONNECTION_LIST, producerGroup="p"))["connectionSet"]) == 1
            assert (await ask(asks, Request.GET_PRODUCER_CONNECTION_LIST, producerGroup="none")).code == Answer.SYSTEM_ERROR
            assert list(content(await ask(asks, Request.GET_ALL_PRODUCER_INFO))["data"]) == ["p"]

    Rig().run(scenario)


def test_a_consumer_that_runs_begins_again_where_its_group_was_reset_to() -> None:
    """What it commits before it has asked for its position again counts for nothing, whoever made the reset."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.admin() as admin, consumer_c1(rig) as (asks, wire):
            for number in range(9):
                await producer.send(Message("t", b"%d" % number))
            place: dict[str, Any] = {"consumerGroup": "audit", "topic": "t", "queueId": 0}

            async def commit(offset: int) -> int:
                """Commit an offset; the position then, with which the consumer begins."""
                await ask(asks, Request.UPDATE_CONSUMER_OFFSET, **place, commitOffset=offset)
                return int((await ask(asks, Request.QUERY_CONSUMER_OFFSET, **place)).fields["offset"])

            assert (await ask(asks, Request.QUERY_CONSUMER_OFFSET, **place)).fields == {"offset": "0"}
            await ask(asks, Request.UPDATE_CONSUMER_OFFSET, **place, commitOffset=8)
            answer = await ask(asks, Request.INVOKE_BROKER_TO_RESET_OFFSET, group="audit", topic="t", timestamp=0, isForce="true")
            assert bytes(answer.body) == b'{"offsetTable":{{"brokerName":"g0","queueId":0,"topic":"t"}:0}}'
            (asked,) = wire.resets
            assert (asked.fields["topic"], bytes(asked.body)) == ("t", bytes(answer.body))
            assert await commit(9) == 0
            assert await commit(5) == 5
            await asyncio.sleep(AGAIN_S)
            await admin.reset_offsets("audit", "t", "first")
            assert await commit(9) == 0
            assert len(wire.resets) == 2
            assert await commit(3) == 3

    Rig().run(scenario)


def test_no_question_about_a_large_topic_holds_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the native services do for it counts, too."""
    longest = Longest()
    over: list[tuple[int, int, str]] = []
    asks: list[tuple[int, dict[str, Any]]] = [
        (Request.GET_TOPIC_STATS_INFO, {"topic": "t"}),
        (Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "t"}),
        (Request.GET_CONSUME_STATS, {"consumerGroup": "audit"}),
        (Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    ]

    def processors(node: BrokerNode, leader: Leader) -> Processor:
        found: list[Processor] = [AdminTopics(node, leader), AdminGroups(node, leader)]
        return Several([processor.handlers() for processor in found])

    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1_024)
        async with rig.consumer(group="audit") as consumer, at_each_node(rig, processors) as (node, *_):
            await consumer.commit({("t", queue_id): 0 for queue_id in range(1_024)})
            process = rig.cluster.hosts[rig.master].process
            assert process is not None
            for code, fields in asks:
                longest.begin(process)
                await rig.cluster.loop.spawn(process, ask(node, code, **fields), "ask")
                longest.end()
                if longest.instructions > MOST_INSTRUCTIONS:
                    over.append((code, longest.instructions, longest.what))

    with measured(monkeypatch, longest):
        Rig().run(scenario)
    assert over == []
