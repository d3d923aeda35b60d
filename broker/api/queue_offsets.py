"""Offsets: the first and last offsets of queues on this replica, and the offset at a time.

All queues of a topic are answered packed: for a client that plans reads of many topics, a message for each queue costs more than all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterable

from broker.context import ServiceContext
from broker.support.limits import at_most, in_slices
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotYetError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

NO_SEARCH = -1
SEARCHES_AT_ONCE = 8  # before other work runs: each reads some twenty messages
MAX_TOPICS_QUEUES = 200_000  # of all topics of a request, 16 bytes each
QUEUES_AT_ONCE = 2_000  # of topics, before other work runs


class QueueOffsetsService:
    """Answers from what this replica has applied."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._searching = asyncio.Lock()  # one request at a time searches, or the slices of many would add up

    def register(self, server: Server) -> None:
        methods.QUEUE_OFFSETS.serve(server, self.offsets)

    async def offsets(self, request: broker_pb2.OffsetsRequest, _caller: CallContext) -> broker_pb2.OffsetsResponse:
        store = self._context.store
        is_master = bool(self._context.roles.master_term)
        reply = broker_pb2.OffsetsResponse(applied_index=store.applied_index, master=is_master)
        reply.replica.CopyFrom(self._context.answering_replica())
        at_most(len(request.queues), "queues")
        at_most(len(request.topics), "topics")
        await self._of_topics(request.topics, reply)
        async for queue in in_slices(request.queues):
            self._check_known(queue.topic, is_master=is_master)
            low, high = store.reader.bounds(queue.topic, queue.queue_id)
            found = reply.queues.add(topic=queue.topic, queue_id=queue.queue_id, min_offset=low, max_offset=high, offset_for_time=high)
            found.incarnation = store.topics.require(queue.topic).topic_epoch
        await self._find_times(request, reply)
        searched = [place for place, queue in enumerate(request.queues) if queue.timestamp_ms != NO_SEARCH]
        async with self._searching if searched else contextlib.nullcontext():
            async for place in in_slices(searched, SEARCHES_AT_ONCE):
                queue = request.queues[place]
                reply.queues[place].offset_for_time = await store.reader.offset_for_time(queue.topic, queue.queue_id, queue.timestamp_ms)
        return reply

    async def _find_times(self, request: broker_pb2.OffsetsRequest, reply: broker_pb2.OffsetsResponse) -> None:
        """When the messages asked for were stored; of one that cannot be read now it is not known."""
        wanted = [place for place, queue in enumerate(request.queues) if queue.HasField("at_offset")]
        async with self._searching if wanted else contextlib.nullcontext():
            async for place in in_slices(wanted, SEARCHES_AT_ONCE):
                queue, found = request.queues[place], reply.queues[place]
                with contextlib.suppress(DledgerError):
                    offset = max(queue.at_offset, found.min_offset)
                    found.stored_ms = await self._context.store.reader.time_of(queue.topic, queue.queue_id, offset) or 0

    async def _of_topics(self, names: Iterable[str], reply: broker_pb2.OffsetsResponse) -> None:
        """Add the bounds of every queue of these topics that is read."""
        store, queues, paused = self._context.store, 0, 0
        for name in names:
            self._check_known(name, is_master=reply.master)
            lows, highs = store.reader.bounds_of_topic(name)
            packed = struct.Struct(f">{len(lows)}Q")
            epoch = store.topics.require(name).topic_epoch
            reply.topics.add(topic=name, min_offsets=packed.pack(*lows), max_offsets=packed.pack(*highs), incarnation=epoch)
            queues += len(lows)
            at_most(queues, "queues of topics", MAX_TOPICS_QUEUES)
            if queues - paused >= QUEUES_AT_ONCE:
                paused = queues
                await asyncio.sleep(0)

    def _check_known(self, topic: str, *, is_master: bool) -> None:
        if not is_master and self._context.store.topics.get(topic) is None:
            raise NotYetError(f"{self._context.settings.node.id} knows no topic {topic!r} yet, and is not the master")
