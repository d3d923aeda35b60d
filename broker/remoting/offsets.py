"""Offsets of RocketMQ's consumer groups, and those of queues: read at the leader, committed through its log.

Owns what is committed and not in the log yet.  Consumers send an offset with each pull and every few seconds; what comes within
``GATHER_S`` goes into the log as one command for a group.
"""

from __future__ import annotations

import asyncio
import logging

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import Leader
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.names import group_of_topic
from dledger_wire.rpc import methods

GATHER_S = 0.1
MAX_PENDING = 200_000  # queues of groups: what is beyond is committed with the next pull

_logger = logging.getLogger(__name__)

Queue = tuple[str, int]


class Offsets:
    """Serves them for one node; ``run`` it until it is cancelled."""

    def __init__(self, node: BrokerNode, leader: Leader, clients: Clients, memory_bytes: int) -> None:
        self._node, self._leader, self._clients = node, leader, clients
        self._memory_bytes = memory_bytes * node.settings.cluster.broker.accessMessageInMemoryMaxRatio / 100
        self._pending: dict[str, dict[Queue, int]] = {}
        self._changed = asyncio.Event()

    def handlers(self) -> Handlers:
        return {
            Request.QUERY_CONSUMER_OFFSET: self.query,
            Request.UPDATE_CONSUMER_OFFSET: self.update,
            Request.GET_MAX_OFFSET: self.highest,
            Request.GET_MIN_OFFSET: self.lowest,
            Request.SEARCH_OFFSET_BY_TIMESTAMP: self.at_time,
            Request.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    # Of groups

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset soon; one behind what is noted already counts for nothing."""
        queues = self._pending.setdefault(group, {})
        if len(queues) < MAX_PENDING:
            queues[topic, queue_id] = max(offset, queues.get((topic, queue_id), 0))
            self._changed.set()

    async def update(self, request: Command, _client: RemotingConnection) -> Command:
        self.note(request.text("consumerGroup"), request.text("topic"), request.number("queueId"), request.number("commitOffset"))
        return Command(Answer.SUCCESS)

    async def query(self, request: Command, _client: RemotingConnection) -> Command:
        group, topic, queue_id = request.text("consumerGroup"), request.text("topic"), request.number("queueId")
        await self._commit(group)
        reply = await self._leader.call(methods.GROUP_OFFSETS, broker_pb2.GroupOffsetsRequest(groups=[group]))
        rows = (row for each in reply.groups for row in each.offsets)
        found = next((row.offset for row in rows if (row.topic, row.queue_id) == (topic, queue_id)), None)
        if found is None:
            found = await self._beginning(topic, queue_id)
        if found is None:
            return Command(Answer.QUERY_NOT_FOUND, remark=f"group {group} has no offset in queue {queue_id} of topic {topic}")
        return Command(Answer.SUCCESS, {"offset": str(found)})

    async def _beginning(self, topic: str, queue_id: int) -> int | None:
        """Where a group begins in a queue that has all its messages, as long as they fit into memory: with the first, as RocketMQ does.

        None: the consumer decides.
        """
        queue = await self._queue(topic, queue_id)
        log = self._node.raft.log
        is_small = log.end_pos - log.first_pos < self._memory_bytes
        return 0 if queue.min_offset == 0 and (is_small or not queue.max_offset or group_of_topic(topic)) else None

    async def run(self) -> None:
        """Commit what is noted, until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            for group in list(self._pending):
                await self._commit(group)

    async def _commit(self, group: str) -> None:
        """Commit what is noted of a group; what fails for now is noted again."""
        queues = self._pending.pop(group, None)
        if not queues:
            return
        request = broker_pb2.CommitOffsetsRequest(group=group)
        for (topic, queue_id), offset in queues.items():
            epoch = self._clients.lock_epoch(group, topic, queue_id)
            request.offsets.add(topic=topic, queue_id=queue_id, offset=offset, lock_epoch=epoch)
        try:
            await self._leader.call(methods.COMMIT_OFFSETS, request)
        except DledgerError as error:
            if not error.retriable:
                _logger.info("offsets of group %s were not committed: %s", group, error.message)
                return
            for (topic, queue_id), offset in queues.items():
                self.note(group, topic, queue_id, offset)

    # Of queues

    async def highest(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"))
        return Command(Answer.SUCCESS, {"offset": str(queue.max_offset)})

    async def lowest(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"))
        return Command(Answer.SUCCESS, {"offset": str(queue.min_offset)})

    async def at_time(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"), timestamp_ms=max(0, request.number("timestamp")))
        return Command(Answer.SUCCESS, {"offset": str(queue.offset_for_time)})

    async def earliest(self, request: Command, _client: RemotingConnection) -> Command:
        queue = await self._queue(request.text("topic"), request.number("queueId"), at_offset=0)
        return Command(Answer.SUCCESS, {"timestamp": str(queue.stored_ms or -1)})

    async def _queue(self, topic: str, queue_id: int, *, timestamp_ms: int = -1, at_offset: int | None = None) -> broker_pb2.QueueOffsets:
        wanted = broker_pb2.OffsetsRequest()
        wanted.queues.add(topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms, at_offset=at_offset)
        reply = await self._leader.call(methods.QUEUE_OFFSETS, wanted)
        queue: broker_pb2.QueueOffsets = reply.queues[0]
        return queue
