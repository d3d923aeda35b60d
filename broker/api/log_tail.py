"""LogTail: the newest lines of a process's log, for administrators.  Served by nodes, spare nodes and name servers."""

from __future__ import annotations

from broker.process.log_ring import LEVELS, LogRing
from broker.support.messages import message_of
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server

DEFAULT_LINES = 200
MAX_BYTES = 8 << 20


class LogTailService:
    """Of one process; without a ring there are no lines."""

    def __init__(self, ring: LogRing | None, group: str, node: str) -> None:
        self._ring, self._group, self._node = ring, group, node

    def register(self, server: Server) -> None:
        methods.LOG_TAIL.serve(server, self.tail)

    async def tail(self, request: diagnostics_pb2.LogTailRequest, _caller: CallContext) -> diagnostics_pb2.LogTailReply:
        if request.level not in ("", *LEVELS):
            raise InvalidArgumentError(f"level {request.level!r}: expected one of {', '.join(LEVELS)}")
        reply = diagnostics_pb2.LogTailReply(group=self._group, node=self._node)
        if self._ring is None:
            return reply
        reply.newest = self._ring.newest
        left, taken = MAX_BYTES, []
        for line in reversed(self._ring.tail(request.lines or DEFAULT_LINES, request.level, request.after)):
            left -= len(line.text) + sum(map(len, line.fields.values()))
            if left < 0:
                break
            taken.append(line)
        for line in reversed(taken):
            reply.lines.append(message_of(diagnostics_pb2.LogLine, line))
        return reply
