"""Offsets: the first and last offsets of queues on this replica, and the offset at a time."""

from __future__ import annotations

import asyncio
import contextlib

from broker.api.limits import at_most, in_slices
from broker.context import ServiceContext
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import NotYetError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

NO_SEARCH = -1
SEARCHES_AT_ONCE = 8  # before other work runs: each reads some twenty messages


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
        async for queue in in_slices(request.queues):
            if not is_master and store.topics.get(queue.topic) is None:
                raise NotYetError(f"{self._context.settings.node.id} knows no topic {queue.topic!r} yet, and is not the master")
            low, high = store.reader.bounds(queue.topic, queue.queue_id)
            found = reply.queues.add(topic=queue.topic, queue_id=queue.queue_id, min_offset=low, max_offset=high, offset_for_time=high)
            found.incarnation = store.topics.require(queue.topic).topic_epoch
        searched = [place for place, queue in enumerate(request.queues) if queue.timestamp_ms != NO_SEARCH]
        async with self._searching if searched else contextlib.nullcontext():
            async for place in in_slices(searched, SEARCHES_AT_ONCE):
                queue = request.queues[place]
                reply.queues[place].offset_for_time = await store.reader.offset_for_time(queue.topic, queue.queue_id, queue.timestamp_ms)
        return reply
