"""The standard gRPC health service (grpc.health.v1), so that stock probes and load balancers can ask.

Services: ``""`` (the process), ``dledger.raft.GROUP`` (knows a leader), ``dledger.master.GROUP`` (master services are on here).
The messages are those of grpcio-health-checking.  Its servicers are not used: they attach to a ``grpc.Server``, while our handlers serve
gRPC, our TCP protocol and the simulator alike, and they are notified of each change, while our states are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpc_health.v1 import health_pb2

from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server

WATCH_INTERVAL_S = 0.5

CHECK = methods.UnaryMethod("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
WATCH = methods.StreamMethod("/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)


class ServiceNotFoundError(DledgerError):
    """A health check names a service that this node does not have.  Only gRPC probes see it, as NOT_FOUND."""

    code = "SERVICE_NOT_FOUND"


class HealthService:
    """Answers from ``state``, which maps a service name to whether it serves now, or None when there is no such service."""

    def __init__(self, state: Callable[[str], bool | None]) -> None:
        self._state = state

    def register(self, server: Server) -> None:
        CHECK.serve(server, self.check)
        WATCH.serve(server, self.watch)

    async def check(self, request: health_pb2.HealthCheckRequest, _caller: CallContext) -> health_pb2.HealthCheckResponse:
        if self._state(request.service) is None:
            raise ServiceNotFoundError(f"no health service {request.service!r} here")
        return self._response(request.service)

    async def watch(self, stream: ByteStream, _caller: CallContext) -> None:
        request = methods.decode(health_pb2.HealthCheckRequest, await stream.read() or b"")
        sent = None
        while True:
            response = self._response(request.service)
            if response != sent:
                await stream.write(methods.encode(response))
                sent = response
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _response(self, service: str) -> health_pb2.HealthCheckResponse:
        serving, statuses = self._state(service), health_pb2.HealthCheckResponse
        status = statuses.SERVICE_UNKNOWN if serving is None else statuses.SERVING if serving else statuses.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)
