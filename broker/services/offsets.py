"""Offsets: where queues begin and end on this replica, and the first message of a time."""

from __future__ import annotations

from broker.services.decode import decoded
from broker.services.face import ServiceFace
from dledger_wire._pb import broker_pb2
from dledger_wire.rpc import CallContext, Server

METHOD = "/dledger.v1.Broker/Offsets"
NO_SEARCH = -1


class OffsetsService:
    """Answers from what this replica has applied."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        server.add_unary(METHOD, self.offsets)

    async def offsets(self, request: bytes, _context: CallContext) -> bytes:
        store = self._face.store
        reply = broker_pb2.OffsetsResponse(applied_index=store.applied_index)
        for queue in decoded(broker_pb2.OffsetsRequest, request).queues:
            low, high = store.reader.bounds(queue.topic, queue.queue_id)
            found = reply.queues.add(topic=queue.topic, queue_id=queue.queue_id, min_offset=low, max_offset=high, offset_for_time=high)
            found.incarnation = store.topics.require(queue.topic).incarnation
            if queue.timestamp_ms != NO_SEARCH:
                found.offset_for_time = await store.reader.offset_for_time(queue.topic, queue.queue_id, queue.timestamp_ms)
        return reply.SerializeToString()
