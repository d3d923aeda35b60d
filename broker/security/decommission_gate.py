"""A replica group that was removed: its nodes refuse everything but what reports that, and what keeps them a group."""

from __future__ import annotations

from collections.abc import Callable

from dledger_wire.errors import ReplicaGroupDrainingError
from dledger_wire.rpc import methods
from dledger_wire.rpc.grpc_callers import PUBLIC
from dledger_wire.rpc.transport import ByteStream, CallContext, Server, StreamHandler, UnaryHandler, WrappedServer
from dledger_wire.status import REMOVED

_STILL_SERVED = {
    method.path
    for method in (
        methods.NODE_STATUS,
        methods.METADATA,
        methods.DESCRIBE_REPLICA_GROUP,
        methods.SET_REPLICA_GROUP,
        methods.TRANSFER_LEADER,
        methods.REGISTER,
        methods.ROUTES,
        methods.DIRECTORY,
    )
}
_SERVICES = (methods.PACKAGE + "Raft/", methods.PACKAGE + "Copy/", methods.PACKAGE + "Diagnostics/", *PUBLIC)


class DecommissionGate(WrappedServer):
    """A server whose handlers refuse calls while ``removed`` says so."""

    def __init__(self, server: Server, removed: Callable[[], bool], group: str) -> None:
        super().__init__(server)
        self._removed, self._group = removed, group

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        if _is_served(method):
            self._server.add_unary(method, handler)
            return

        async def guarded(request: bytes, caller: CallContext) -> bytes:
            self._check()
            return await handler(request, caller)

        self._server.add_unary(method, guarded)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        if _is_served(method):
            self._server.add_stream(method, handler)
            return

        async def guarded(stream: ByteStream, caller: CallContext) -> None:
            self._check()
            await handler(stream, caller)

        self._server.add_stream(method, guarded)

    def _check(self) -> None:
        if self._removed():
            raise ReplicaGroupDrainingError(f"replica group {self._group} was removed from the cluster", state=REMOVED)


def _is_served(method: str) -> bool:
    return method in _STILL_SERVED or method.startswith(_SERVICES)
