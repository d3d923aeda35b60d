"""The audit log as administrators read it over the network: AuditTail, at every node and name server."""

from __future__ import annotations

import json

from broker.security.audit import Audit, Record
from dledger_wire._pb import security_pb2
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

MAX_RECORDS = 10_000
MAX_BYTES = 16 << 20
DEFAULT_RECORDS = 100


class AuditService:
    """Of one process."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def register(self, server: Server) -> None:
        methods.AUDIT_TAIL.serve(server, self.tail)

    async def tail(self, request: security_pb2.AuditTailRequest, _caller: CallContext) -> security_pb2.AuditTailReply:
        def wanted(record: Record) -> bool:
            return (
                (not request.user or record.get("user") == request.user)
                and request.action in str(record.get("action", ""))
                and not (request.denied and record.get("allowed"))
            )

        count = min(request.max_records or DEFAULT_RECORDS, MAX_RECORDS)
        found = await self._audit.sink.newest(count, request.after, wanted)
        place = self._audit.place
        reply = security_pb2.AuditTailReply(group=place.group, node=place.node)
        left = MAX_BYTES
        for record in reversed(found):
            text = json.dumps(record)
            left -= len(text)
            if left < 0:
                break
            reply.records.append(text)
        reply.records.reverse()
        return reply
