"""SEND_MESSAGE in its three forms: messages of RocketMQ's producers, stored by the leader like those of any other."""

from __future__ import annotations

import asyncio
from itertools import accumulate

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import CALL_S, Leader
from broker.remoting.messages import CLUSTER, REPLY_TO, Sending, Staging, batch_of, due_ms_of, record_of, sending_of
from broker.remoting.produce_link import ProduceLinks
from broker.remoting.recalls import recall_handle
from dledger_wire._pb import broker_pb2, topics_pb2
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.frames.message_id import UniqueIds, offset_message_id
from dledger_wire.names import AUTO_CREATE_TOPIC, RETRY_PREFIX
from dledger_wire.rpc import methods


class Senders:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader, links: ProduceLinks, clients: Clients) -> None:
        self._node, self._leader, self._links, self._clients = node, leader, links, clients
        env = node.context.env
        self._random = env.random
        self._store_host = node.store.settings.store_host_bytes
        self._ids = UniqueIds(env.clock, env.random, address=self._store_host)
        self._levels = len(node.settings.cluster.broker.messageDelayLevel.split())
        self._next_queue = 0

    def handlers(self) -> Handlers:
        return {Request.SEND_MESSAGE: self.send, Request.SEND_MESSAGE_V2: self.send_compact, Request.SEND_BATCH_MESSAGE: self.send_compact}

    async def send(self, request: Command, client: RemotingConnection) -> Command:
        return await self._send(request, client, compact=False)

    async def send_compact(self, request: Command, client: RemotingConnection) -> Command:
        return await self._send(request, client, compact=True)

    async def _send(self, request: Command, client: RemotingConnection, *, compact: bool) -> Command:
        sending = await sending_of(request, client.peer, self._ids, compact=compact)
        request.body = b""  # the frames have it now
        properties = sending.frames[0].properties
        if REPLY_TO in properties:
            self._clients.takes_replies(client, properties[REPLY_TO])
            properties[CLUSTER] = self._node.settings.cluster.cluster
        if sending.is_half:
            self._clients.attends(client, sending.group)
        staging, end_s = self.staging(), asyncio.get_running_loop().time() + CALL_S
        try:
            queue_id, result, sizes = await self.stored(sending, staging, end_s)
        except TopicNotFoundError:
            if not self._node.settings.cluster.broker.autoCreateTopicEnable:
                raise
            await self._create_topic(sending, end_s)
            queue_id, result, sizes = await self.stored(sending, staging, end_s)
        places = accumulate(sizes[:-1], initial=result.physical_offset)
        fields = {
            "msgId": ",".join(offset_message_id(self._store_host, place) for place in places),
            "queueId": str(queue_id),
            "queueOffset": str(result.first_queue_offset),
            "transactionId": sending.ids[0],
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if handle := self.recall_handle(sending, staging, result):
            fields["recallHandle"] = handle
        return Command(Answer.SUCCESS, fields)

    def recall_handle(self, sending: Sending, staging: Staging, result: broker_pb2.BatchResult) -> str:
        """By which a message that is stored is recalled; empty when it is delivered at once, or is not one."""
        due_ms = due_ms_of(sending.frames[0].properties, staging.now_ms)
        if due_ms is None or len(sending.frames) != 1 or sending.is_half:
            return ""
        return recall_handle(sending.topic, self._node.settings.group.name, due_ms, sending.ids[0], result.first_queue_offset)

    def staging(self) -> Staging:
        """As of now."""
        return Staging(self._levels, self._node.store.time.now_ms())

    async def stored(self, sending: Sending, staging: Staging, end_s: float) -> tuple[int, broker_pb2.BatchResult, list[int]]:
        """The queue that has the messages or will have them, where they are stored now, and the sizes of their frames."""
        sending = self._in_queue(sending)
        batch = await batch_of(sending, staging)
        record, link = record_of(sending, batch), self._links.of_caller()

        async def attempt(left_s: float) -> broker_pb2.BatchResult:
            return await link.send(record, left_s)

        left_s = end_s - asyncio.get_running_loop().time()
        # What became of an attempt may be unknown: the messages are recognised by their keys, unless they are retries.
        repeat = not sending.topic.startswith(RETRY_PREFIX)
        result = await self._leader.until(attempt, left_s, repeat=repeat)
        moved = result.duplicate and batch.topic == sending.topic
        return result.queue_id if moved else sending.queue_id, result, batch.sizes

    def _in_queue(self, sending: Sending) -> Sending:
        """In the queue of its priority where the topic has them, else in the one that its producer chose, or in any."""
        topic = self._node.store.topics.get(sending.topic)
        if topic is not None and topic.priorities and (priority := sending.priority) is not None:
            return sending.in_queue(topic.queue_of(priority))
        if sending.queue_id >= 0:
            return sending
        self._next_queue += 1
        return sending.in_queue(self._next_queue % topic.write_queues if topic is not None and topic.write_queues else 0)

    async def _create_topic(self, sending: Sending, end_s: float) -> None:
        left_s = end_s - asyncio.get_running_loop().time()
        queues = max(1, min(sending.default_queues, self._node.settings.cluster.broker.defaultTopicQueueNums))
        wanted = topics_pb2.AutoCreateRequest(name=sending.topic, create_topic_key=AUTO_CREATE_TOPIC, queues=queues)
        try:
            await self._leader.call(methods.AUTO_CREATE_TOPIC, wanted, timeout_s=left_s)
        except DledgerError as error:
            raise TopicNotFoundError(f"topic {sending.topic!r} does not exist, and was not created: {error.message}") from None
