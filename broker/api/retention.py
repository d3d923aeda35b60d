"""The Retention service: deleting old segments of this node's log on an operator's word."""

from __future__ import annotations

from broker.context import ServiceFace
from broker.requests import decoded
from dledger_wire._pb import retention_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server


class RetentionService:
    """Served by every node for itself."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    def register(self, server: Server) -> None:
        methods.EXPIRE.serve_bytes(server, self.expire)

    async def expire(self, request: bytes, _context: CallContext) -> bytes:
        wish = decoded(retention_pb2.ExpireRequest, request)
        done = await self._face.store.expiry.expire(wish.reserved_ms if wish.has_reserved else None)
        reply = retention_pb2.ExpireReply(
            id=self._face.settings.node.id,
            segments=done.segments,
            size_bytes=done.size_bytes,
            first_index=done.first_index,
            first_pos=done.first_pos,
            held_by=done.held_by,
        )
        return reply.SerializeToString()
