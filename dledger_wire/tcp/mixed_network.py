"""The network of a node: our protocol and gRPC on one configured port.

Owns the pairing.  A connection that begins with the preface of HTTP/2 (a stock gRPC client, a health probe) is joined to a gRPC server
of this process (``joined_grpc.py``); every other connection is served by ``tcp/server.py`` directly.  The same handlers
serve both.  Nodes and clients dial with our protocol only.  Why: docs/adr/0010.
"""

from __future__ import annotations

import asyncio

from dledger_wire.errors import DledgerError
from dledger_wire.rpc.grpc_callers import GrpcCallers
from dledger_wire.rpc.transport import StreamHandler, UnaryHandler
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.tcp.joined_grpc import JoinedGrpc
from dledger_wire.tcp.network import TcpNetwork
from dledger_wire.tcp.received_bytes import RECEIVED_BYTES_LIMIT, ReceivedBytes
from dledger_wire.tcp.server import TcpServer

SOCKET_NAME = "grpc-{}.sock"
GRPC_BYTES = 64 << 20  # of calls that gRPC may hold in memory, which takes two to three times as much, over all connections


class MixedNetwork(TcpNetwork):
    """Channels over TCP; servers over TCP with gRPC behind the same port.  ``socket_folder`` is where the sockets between the two go, else
    a temporary folder is made."""

    def __init__(
        self,
        security: NetworkSecurity = OPEN,
        received_bytes: int = RECEIVED_BYTES_LIMIT,
        grpc_bytes: int = GRPC_BYTES,
        *,
        socket_folder: str = "",
    ) -> None:
        super().__init__(security, received_bytes)
        self._socket_folder = socket_folder
        self.grpc_memory = ReceivedBytes(grpc_bytes)

    def serve(self, address: str) -> MixedServer:  # type: ignore[override]  # as ``Network`` wants it
        return MixedServer(super().serve(address), self.grpc_behind(address, GrpcCallers(self.security.admission)))

    def grpc_behind(self, address: str, callers: GrpcCallers) -> JoinedGrpc:
        """A gRPC server for connections that come in at ``address``."""
        return JoinedGrpc(callers, self._socket_folder, SOCKET_NAME.format(address.rpartition(":")[2]), self.grpc_memory)


class MixedServer:
    """One set of handlers, two protocols."""

    def __init__(self, tcp: TcpServer, grpc: JoinedGrpc) -> None:
        self._tcp, self._grpc = tcp, grpc
        tcp.foreign = grpc.join

    @property
    def port(self) -> int:
        return self._tcp.port

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._grpc.add_unary(method, handler)
        self._tcp.add_unary(method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._grpc.add_stream(method, handler)
        self._tcp.add_stream(method, handler)

    async def start(self) -> None:
        # gRPC first: connections that are joined to it must find it listening.
        try:
            await self._grpc.start()
            await self._tcp.start()
        except (DledgerError, OSError):
            await self._grpc.stop(0)
            raise

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(self._grpc.stop(grace_s), self._tcp.stop(grace_s))
