"""The gate in front of all services of a node or a name server: a request is decoded and checked before a handler sees it.

What replicas call is checked by ``replicas.py`` besides.
"""

from __future__ import annotations

from broker.security.access import CALLER_ADDRESS, CLUSTER_NAME, AccessControl
from broker.security.permissions import asks_itself, check_of, nothing
from broker.security.replicas import REPLICA_SERVICES, ReplicaCheck
from dledger_wire.errors import PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server, StreamHandler, UnaryHandler, WrappedServer
from store.commands.security import Action, Resource


class AccessGate(WrappedServer):
    """A server whose handlers are called with what callers may do.  ``replicas``: of a node with a replica group; without it no caller may
    call what replicas call."""

    def __init__(self, server: Server, access: AccessControl, replicas: ReplicaCheck | None = None) -> None:
        super().__init__(server)
        self._access, self._replicas = access, replicas

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        check, known = check_of(method), methods.METHODS.get(method)
        if check is nothing:
            self._server.add_unary(method, handler)
            return

        async def checked(request: bytes, caller: CallContext) -> bytes:
            CALLER_ADDRESS.set(caller.peer)
            if check is asks_itself:
                return await handler(request, caller)
            check(self._access, caller.principal, methods.decode(known.request, request) if known is not None else None)
            if method.startswith(REPLICA_SERVICES):
                await self._check_replica(method, caller, request)
            return await handler(request, caller)

        self._server.add_unary(method, checked)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        check = check_of(method)
        if check is nothing:
            self._server.add_stream(method, handler)
            return

        async def checked(stream: ByteStream, caller: CallContext) -> None:
            CALLER_ADDRESS.set(caller.peer)
            check(self._access, caller.principal, None)
            if method.startswith(REPLICA_SERVICES):
                stream = (await self._check_replica(method, caller, None)).bound(stream, caller)
            await handler(stream, caller)

        self._server.add_stream(method, checked)

    async def _check_replica(self, method: str, caller: CallContext, request: bytes | None) -> ReplicaCheck:
        try:
            if self._replicas is None:
                raise PermissionDeniedError("no replica is served here", user=caller.principal.name, action="replicate", resource="cluster")
            await self._replicas.check(method, caller, request)
        except PermissionDeniedError:
            self._access.denied(caller.principal, Action.ADMINISTER, Resource.CLUSTER, CLUSTER_NAME)
            raise
        return self._replicas
