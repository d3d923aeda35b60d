"""The gate in front of all services of a node or a name server: a request is decoded and checked before a handler sees it.

What replicas call is for nodes of the same replica group, each under its own name; a spare node has a certificate without a group.
"""

from __future__ import annotations

from broker.security.access import AccessControl
from broker.security.permissions import asks_itself, check_of, nothing
from dledger_wire.errors import PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server, StreamHandler, UnaryHandler
from dledger_wire.security.principal import SPARE_GROUP, Kind

_REPLICAS = (methods.PACKAGE + "Raft/", methods.PACKAGE + "Copy/")


class AccessGate:
    """A server whose handlers are called with what callers may do.  Implements ``dledger_wire.rpc.transport.Server``."""

    def __init__(self, server: Server, access: AccessControl, group: str = "") -> None:
        self._server, self._access, self._group = server, access, group

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        check, known = check_of(method), methods.METHODS.get(method)
        if check in (nothing, asks_itself):
            self._server.add_unary(method, handler)
            return

        async def checked(request: bytes, caller: CallContext) -> bytes:
            if method.startswith(_REPLICAS):
                self._check_replica(caller)
            check(self._access, caller.principal, methods.decode(known.request, request) if known is not None else None)
            return await handler(request, caller)

        self._server.add_unary(method, checked)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        check = check_of(method)
        if check in (nothing, asks_itself):
            self._server.add_stream(method, handler)
            return

        async def checked(stream: ByteStream, caller: CallContext) -> None:
            if method.startswith(_REPLICAS):
                self._check_replica(caller)
            check(self._access, caller.principal, None)
            await handler(stream, caller)

        self._server.add_stream(method, checked)

    def _check_replica(self, caller: CallContext) -> None:
        who = caller.principal
        said = caller.metadata.get("dledger-node", who.name)
        if who.kind is not Kind.NODE or who.group not in (self._group, SPARE_GROUP) or said != who.name:
            text = f"{who} may not speak as node {said} of replica group {self._group}"
            raise PermissionDeniedError(text, user=who.name, action="replicate", resource="cluster", name=self._group)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
