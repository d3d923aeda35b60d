"""The Retention service: deletes old segments of this node's log when an operator asks for it."""

from __future__ import annotations

from broker.context import ServiceContext
from dledger_wire._pb import retention_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server


class RetentionService:
    """Every node serves it for its own log."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def register(self, server: Server) -> None:
        methods.EXPIRE.serve(server, self.expire)

    async def expire(self, request: retention_pb2.ExpireRequest, _caller: CallContext) -> retention_pb2.ExpireReply:
        done = await self._context.store.expiry.expire(request.reserved_ms if request.has_reserved else None)
        reply = retention_pb2.ExpireReply(
            id=self._context.settings.node.id,
            segments=done.segments,
            size_bytes=done.size_bytes,
            first_index=done.first_index,
            first_pos=done.first_pos,
            held_by=done.held_by,
        )
        return reply
