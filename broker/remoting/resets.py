"""INVOKE_BROKER_TO_RESET_OFFSET: a group's positions in a topic moved to a time, and its consumers asked to begin there.

Owns that consumers learn of a reset, whoever made it.  A consumer that is asked drops its queues, waits ten seconds and asks for its
positions again; what it commits until then is of an older generation.
"""

from __future__ import annotations

import asyncio

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import MessageQueue, answer
from broker.remoting.leader import Leader
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import check_group
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.status import Perm

AGAIN_S = 30.0  # a consumer that was asked has begun again by then
NEWEST = -1  # as a time


class Resets:
    """Serves it for one node."""

    def __init__(self, node: BrokerNode, leader: Leader, clients: Clients) -> None:
        self._broker, self._leader, self._clients = node.settings.group.name, leader, clients
        self._announced: dict[tuple[str, str], float] = {}  # when, by group and topic

    def handlers(self) -> Handlers:
        return {Request.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, request: Command, _client: RemotingConnection) -> Command:
        """Also of a group without consumers; RocketMQ's tools then do it in another way, which cannot take a group back."""
        group, topic = check_group(request.text("group")), request.text("topic")
        wanted = await self._wanted(request, topic)
        commit = broker_pb2.CommitOffsetsRequest(group=group, reset=True)
        for queue_id, offset in wanted.items():
            commit.offsets.add(topic=topic, queue_id=queue_id, offset=offset)
        reply = await self._leader.call(methods.COMMIT_OFFSETS, commit)
        for refused in reply.refused:
            raise from_detail(refused.error)
        self._announced.pop((group, topic), None)
        await self.announce(group, topic)
        return await answer({"offsetTable": {MessageQueue(self._broker, number, topic): offset for number, offset in wanted.items()}})

    async def _wanted(self, request: Command, topic: str) -> dict[int, int]:
        """The offset of each queue that is read, or of the one that is named; an offset may be named, too."""
        time_ms, only, offset = (request.number(name, -1) for name in ("timestamp", "queueId", "offset"))
        known = await self._leader.call(methods.METADATA, broker_pb2.MetadataRequest(topics=[topic]))
        found = next((each for each in known.topics if each.found and each.perm & Perm.READ), None)
        if found is None:
            raise TopicNotFoundError(f"topic {topic!r} does not exist, or is not read", topic=topic)
        if only >= found.read_queues:
            raise InvalidArgumentError(f"queue {only} of topic {topic}: expected one of {found.read_queues}")
        queues = [only] if only >= 0 else range(found.read_queues)
        ask = broker_pb2.OffsetsRequest()
        for queue_id in queues:
            ask.queues.add(topic=topic, queue_id=queue_id, timestamp_ms=max(time_ms, NEWEST))
        reply = await self._leader.call(methods.QUEUE_OFFSETS, ask)
        if only >= 0 and offset >= 0:
            return {each.queue_id: max(each.min_offset, min(offset, each.max_offset)) for each in reply.queues}
        return {each.queue_id: each.offset_for_time for each in reply.queues}  # the end of the queue, without a time

    async def announce(self, group: str, topic: str) -> None:
        """Ask the group's consumers that are here to begin again where its positions in the topic are, unless they were asked lately."""
        now_s = asyncio.get_running_loop().time()
        self._announced = {key: at_s for key, at_s in self._announced.items() if now_s - at_s < AGAIN_S}
        members = self._clients.consumers_of(group)
        if (group, topic) in self._announced or not members:
            return
        positions = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=[group]))
        self._announced[group, topic] = now_s
        rows = {row.queue_id: row.offset for each in positions.groups for row in each.offsets if row.topic == topic}
        java = await answer({"offsetTable": {MessageQueue(self._broker, number, topic): offset for number, offset in rows.items()}})
        queues = [{"brokerName": self._broker, "offset": offset, "queueId": number, "topic": topic} for number, offset in rows.items()]
        cpp = await answer({"offsetTable": queues})
        fields = {"group": group, "isForce": "true", "timestamp": "0", "topic": topic}
        for member in members:
            if member.connection is not None:
                body = cpp.body if member.connection.language == "CPP" else java.body
                member.connection.notify(Request.RESET_CONSUMER_CLIENT_OFFSET, fields, bytes(body))
