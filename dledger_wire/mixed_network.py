"""The network that nodes and clients use: gRPC on the address everybody knows, plain TCP for the streams that move the bytes.

Owns the pairing.  A server offers the same handlers on both; its TCP port (any free one unless given) is told by the gRPC method
``/dledger.v1.Transport/Endpoint``, so that one address in the configuration is enough.  A channel makes its calls over gRPC and opens its
streams over TCP; a server that does not know the method, a stock gRPC one, gets its streams over gRPC too.  Why: docs/adr/0004.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from dledger_wire.errors import AddressInUseError, DledgerError, UnreachableError
from dledger_wire.grpc_network import GrpcNetwork
from dledger_wire.rpc import ByteStream, CallContext, Channel, Network, Server, StreamHandler, UnaryHandler
from dledger_wire.tcp_network import TcpNetwork, TcpServer

ENDPOINT_METHOD = "/dledger.v1.Transport/Endpoint"
DISCOVERY_TIMEOUT_S = 2.0
_GRPC_ONLY = -1


class MixedNetwork:
    """``stream_port``: the TCP port servers listen on, 0 for any free one."""

    def __init__(
        self,
        *,
        stream_port: int = 0,
        client_context: ssl.SSLContext | None = None,
        server_context: ssl.SSLContext | None = None,
        grpc_network: Network | None = None,
    ) -> None:
        self._grpc: Network = grpc_network or GrpcNetwork()
        self._tcp = TcpNetwork(client_context=client_context, server_context=server_context)
        self._stream_port = stream_port

    def connect(self, address: str) -> Channel:
        return MixedChannel(address, self._grpc.connect(address), self._tcp)

    def serve(self, address: str) -> Server:
        host = address.rpartition(":")[0]
        return MixedServer(self._grpc.serve(address), self._tcp.serve(f"{host}:{self._stream_port}"))


class MixedServer:
    """One set of handlers on two listeners."""

    def __init__(self, grpc_server: Server, tcp_server: TcpServer) -> None:
        self._grpc = grpc_server
        self._tcp = tcp_server
        self._grpc.add_unary(ENDPOINT_METHOD, self._endpoint)

    async def _endpoint(self, _request: bytes, _context: CallContext) -> bytes:
        return str(self._tcp.port).encode()

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._grpc.add_unary(method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._grpc.add_stream(method, handler)
        self._tcp.add_stream(method, handler)

    async def start(self) -> None:
        # TCP first: whoever reaches the gRPC port must be told a port that listens.
        await self._tcp.start()
        try:
            await self._grpc.start()
        except AddressInUseError:
            await self._tcp.stop(0)
            raise

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(self._grpc.stop(grace_s), self._tcp.stop(grace_s))


class MixedChannel:
    """Calls over gRPC, streams over TCP, to one server."""

    def __init__(self, address: str, grpc_channel: Channel, tcp: TcpNetwork) -> None:
        self._address = address
        self._grpc = grpc_channel
        self._tcp = tcp
        self._bulk: Channel | None = None
        self._retired: list[Channel] = []
        self._discovery: asyncio.Task[int] | None = None
        self._closed = False

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        return await self._grpc.call(method, request, timeout_s=timeout_s)

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        if self._closed:
            raise UnreachableError(f"{self._address}: channel closed", address=self._address)
        return _MixedStream(self, method, dict(metadata or {}))

    async def open_found(self, method: str, metadata: Mapping[str, str]) -> ByteStream:
        """The stream, over whatever the server offers."""
        if self._discovery is None or (self._discovery.done() and (self._discovery.cancelled() or self._discovery.exception() is not None)):
            self._discovery = asyncio.get_running_loop().create_task(self._discover())
        port = await asyncio.shield(self._discovery)
        if port == _GRPC_ONLY:
            return self._grpc.open(method, metadata=metadata)
        if self._bulk is None:
            host = self._address.rpartition(":")[0]
            self._bulk = self._tcp.connect(f"{host}:{port}")
        return self._bulk.open(method, metadata=metadata)

    async def _discover(self) -> int:
        try:
            answer = await self._grpc.call(ENDPOINT_METHOD, b"", timeout_s=DISCOVERY_TIMEOUT_S)
        except DledgerError as error:
            if error.code == DledgerError.code:
                return _GRPC_ONLY
            raise UnreachableError(f"{self._address}: {error.message}", address=self._address) from None
        if not (answer.isdigit() and len(answer) <= 5 and 0 < int(answer) < 65536):
            raise UnreachableError(f"{self._address}: told {answer[:20]!r} for the port of its streams", address=self._address)
        return int(answer)

    def forget(self) -> None:
        """The streams' port answered no more: the server may come back with another one."""
        self._discovery = None
        if self._bulk is not None:
            # Other streams on it may still be well; they end with the channel.
            self._retired.append(self._bulk)
            self._bulk = None

    async def close(self) -> None:
        self._closed = True
        if self._discovery is not None:
            self._discovery.cancel()
        for bulk in (*self._retired, *([self._bulk] if self._bulk else [])):
            await bulk.close()
        await self._grpc.close()


class _MixedStream:
    """A stream that finds its server's port at first use."""

    def __init__(self, channel: MixedChannel, method: str, metadata: Mapping[str, str]) -> None:
        self._channel = channel
        self._opening: asyncio.Task[ByteStream] = asyncio.get_running_loop().create_task(channel.open_found(method, metadata))
        self._opening.add_done_callback(lambda task: None if task.cancelled() else task.exception() and None)
        self._used = False

    async def _stream(self) -> ByteStream:
        try:
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._opening.cancelled():
                raise UnreachableError("channel closed") from None
            raise

    async def read(self) -> bytes | None:
        stream = await self._stream()
        try:
            return await stream.read()
        except UnreachableError:
            self._forget()
            raise

    async def write(self, message: bytes) -> None:
        stream = await self._stream()
        try:
            await stream.write(message)
        except UnreachableError:
            self._forget()
            raise
        self._used = True

    def _forget(self) -> None:
        # A stream that never carried anything points at a port that is gone; one that did may just have been cut.
        if not self._used:
            self._channel.forget()
        self._used = True

    async def close(self) -> None:
        try:
            stream = await self._stream()
        except DledgerError:
            return  # never opened, or its channel was closed meanwhile: there is nothing to close
        await stream.close()
