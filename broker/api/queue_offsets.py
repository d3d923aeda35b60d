"""Offsets: where queues begin and end on this replica, and the first message of a time."""

from __future__ import annotations

import asyncio
import contextlib

from broker.api.limits import at_most, in_slices
from broker.context import ServiceFace
from broker.requests import decoded
from dledger_wire._pb import broker_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

NO_SEARCH = -1
SEARCHES_AT_ONCE = 8  # before other work goes on: each looks at some twenty messages


class OffsetsService:
    """Answers from what this replica has applied."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face
        self._searching = asyncio.Lock()  # searches of many requests together would be no slices any more

    def register(self, server: Server) -> None:
        methods.QUEUE_OFFSETS.serve_bytes(server, self.offsets)

    async def offsets(self, request: bytes, _context: CallContext) -> bytes:
        store = self._face.store
        reply = broker_pb2.OffsetsResponse(applied_index=store.applied_index)
        wish = decoded(broker_pb2.OffsetsRequest, request)
        at_most(len(wish.queues), "queues")
        async for queue in in_slices(wish.queues):
            low, high = store.reader.bounds(queue.topic, queue.queue_id)
            found = reply.queues.add(topic=queue.topic, queue_id=queue.queue_id, min_offset=low, max_offset=high, offset_for_time=high)
            found.incarnation = store.topics.require(queue.topic).topic_epoch
        searched = [place for place, queue in enumerate(wish.queues) if queue.timestamp_ms != NO_SEARCH]
        async with self._searching if searched else contextlib.nullcontext():
            async for place in in_slices(searched, SEARCHES_AT_ONCE):
                queue = wish.queues[place]
                reply.queues[place].offset_for_time = await store.reader.offset_for_time(queue.topic, queue.queue_id, queue.timestamp_ms)
        return reply.SerializeToString()
