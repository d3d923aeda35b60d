"""The standard gRPC health service (grpc.health.v1), so that stock probes and load balancers can ask.

Services: ``""`` (the process), ``dledger.raft.GROUP`` (knows a leader), ``dledger.master.GROUP`` (master services are on here).
Owns the two messages of that protocol, which are one field each; a generated stub would cost a dependency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc.transport import ByteStream, CallContext, Server

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
WATCH_INTERVAL_S = 0.5

_STRING_FIELD_1 = 0x0A
_VARINT_FIELD_1 = 0x08


class HealthService:
    """Answers from ``state``, which maps a service name to whether it serves now, or None when there is no such service."""

    def __init__(self, state: Callable[[str], bool | None]) -> None:
        self._state = state

    def register(self, server: Server) -> None:
        server.add_unary("/grpc.health.v1.Health/Check", self.check)
        server.add_stream("/grpc.health.v1.Health/Watch", self.watch)

    async def check(self, request: bytes, _context: CallContext) -> bytes:
        name = parse_service_name(request)
        serving = self._state(name)
        if serving is None:
            raise InvalidArgumentError(f"no service {name!r} here")
        return _response(SERVING if serving else NOT_SERVING)

    async def watch(self, stream: ByteStream, _context: CallContext) -> None:
        request = await stream.read()
        name = parse_service_name(request or b"")
        told = 0
        while True:
            serving = self._state(name)
            status = SERVICE_UNKNOWN if serving is None else SERVING if serving else NOT_SERVING
            if status != told:
                await stream.write(_response(status))
                told = status
            await asyncio.sleep(WATCH_INTERVAL_S)


def parse_service_name(request: bytes) -> str:
    """``service`` of a HealthCheckRequest: nothing, or field 1 with a length below 128."""
    if not request:
        return ""
    if len(request) < 2 or request[0] != _STRING_FIELD_1 or request[1] != len(request) - 2:
        raise InvalidArgumentError("not a HealthCheckRequest")
    try:
        return request[2:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("not a HealthCheckRequest") from error


def _response(status: int) -> bytes:
    return bytes((_VARINT_FIELD_1, status))
