"""The network seam over plain TCP (or TLS).

Owns the dialling side: a channel has one connection for all its calls, made at the first call, closed when none was made for a while and
made again when it is lost; each stream has a connection of its own, so that bulk bytes never stand before a call (docs/adr/0010).

    dialler: "DLTP" | length u32 | JSON {"method", "metadata"} or {"calls": true}        once, first; then frames (``tcp_connection``)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from dledger_wire.errors import AuthenticationFailedError, DeadlineExceededError, MessageTooLargeError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.delivery import Take
from dledger_wire.rpc.methods import request_limit
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import Principal
from dledger_wire.security.tls import handshake_failure
from dledger_wire.tcp.arrivals import Arrivals
from dledger_wire.tcp.authentication import DialledAuthentication, certified
from dledger_wire.tcp.calls import Calls
from dledger_wire.tcp.connection import PREFACE, Connection
from dledger_wire.tcp.dead_peers import end_when_silent
from dledger_wire.tcp.received_bytes import RECEIVED_BYTES_LIMIT, ReceivedBytes
from dledger_wire.tcp.resolver import RESOLVER, Resolver
from dledger_wire.tcp.server import Accepted, TcpServer
from dledger_wire.tcp.stream import Stream

if TYPE_CHECKING:
    from dledger_wire.security.credentials import Credentials

C = TypeVar("C", Stream, Calls)
CONNECT_TIMEOUT_S = 2.0
AUTHENTICATION_S = 5.0
UNSENT_BYTES = 1 << 20  # what the kernel takes of a producer's requests before it can send it: what it has cannot be recalled
CALLS_IDLE_S = 20.0  # without a call, before the connection is closed: less than clients look at routes; a server waits longer


class _Dialled:
    """A stream of the dialler's: connects at first use."""

    def __init__(self, channel: TcpChannel, method: str, metadata: Mapping[str, str]) -> None:
        opening: dict[str, object] = {"method": method, "metadata": dict(metadata)}
        self._connecting: asyncio.Task[Stream] = asyncio.get_running_loop().create_task(channel.dial_stream(opening), name="dial a stream")
        self._connecting.add_done_callback(_retrieve)

    def __del__(self) -> None:
        """A caller that left a stream before its end reads nothing more of it: that must not count as received and not yet taken."""
        dialled = self._connecting
        if dialled.done() and not dialled.cancelled() and dialled.exception() is None and (stream := dialled.result()).may_bring_more:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all with it
                dialled.get_loop().call_soon_threadsafe(stream.leave)

    async def _stream(self) -> Stream:
        return await asyncio.shield(self._connecting)

    async def read(self) -> bytes | None:
        return await (await self._stream()).read()

    async def receive(self, take: Take) -> bool:
        return await (await self._stream()).receive(take)

    async def write(self, message: bytes) -> None:
        await (await self._stream()).write(message)

    def write_now(self, message: bytes) -> bool:
        dialled = self._connecting
        if not dialled.done() or dialled.cancelled() or dialled.exception() is not None:
            return False
        return dialled.result().write_now(message)

    def recall(self) -> bool:
        dialled = self._connecting
        return dialled.done() and not dialled.cancelled() and dialled.exception() is None and dialled.result().recall()

    async def close(self) -> None:
        try:
            stream = await self._stream()
        except UnreachableError:
            return
        await stream.close()


def _retrieve(task: asyncio.Task[Stream] | asyncio.Task[Calls]) -> None:
    if not task.cancelled():
        task.exception()


class TcpChannel:
    """Connections to one address."""

    resolver: Resolver = RESOLVER

    def __init__(self, address: str, security: NetworkSecurity, memory: ReceivedBytes, answering: Principal | None = None) -> None:
        self._address = address
        self._security = security
        self._answering = answering
        self._memory = memory
        self._connections: dict[Connection, None] = {}
        self._calls: Calls | None = None
        self._dialling: asyncio.Task[Calls] | None = None
        self._closed = False

    # -- connections

    async def _dial(self) -> Connection:
        reason = "no answer"
        tls: ssl.SSLContext | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                tls = self._security.tls.client() if self._security.tls is not None and self._security.dials_tls else None
                connection = await self._connect(tls)
        except TimeoutError:
            pass
        except ssl.SSLError as error:
            reason = handshake_failure(error)
            raise AuthenticationFailedError(f"{self._address}: {reason}", address=self._address, reason=reason, in_handshake=True) from None
        except OSError as error:
            text = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            reason = text.lower() or type(error).__name__
            if tls is not None and isinstance(error, ConnectionResetError):
                reason = "closed in the handshake of TLS (a port without TLS?)"
        else:
            if self._closed:
                connection.abort()
                raise self._closed_here()
            self._check_answering(connection)
            if connection.socket is not None:
                end_when_silent(connection.socket)
            self._connections[connection] = None
            connection.closed.add_done_callback(lambda _: self._connections.pop(connection, None))
            return connection
        raise UnreachableError(f"{self._address}: {reason}", address=self._address, reason=reason)

    async def _connect(self, tls: ssl.SSLContext | None) -> Connection:
        """A connection to the first address of the host that answers; each gets its share of the time, lest a silent one takes it all."""
        loop = asyncio.get_running_loop()
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        end_s = loop.time() + CONNECT_TIMEOUT_S
        addresses = await self.resolver.addresses(host)
        failed: OSError = OSError(errno.EADDRNOTAVAIL, "the name has no address")
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            now_s = loop.time()
            try:
                async with asyncio.timeout_at(now_s + (end_s - now_s) / left):
                    name = host if tls is not None else None
                    return (await loop.create_connection(self._made, address, int(port), ssl=tls, server_hostname=name))[1]
            except ssl.SSLError:
                raise
            except OSError as error:  # a TimeoutError, too
                failed = error
        raise failed

    def _check_answering(self, connection: Connection) -> None:
        """A certificate without a name of ours will do where the other side proves the cluster's secret besides."""
        expected = self._answering
        if expected is None or self._security.tls is None or not self._security.dials_tls:
            return
        found = certified(connection.transport)
        if found is None and self._security.credentials is not None:
            return
        if found is None or not found.stands_for(expected):
            connection.abort()
            shown = "a certificate without a name of this cluster" if found is None else f"the certificate of {found}"
            raise AuthenticationFailedError(f"{self._address}: expected {expected}, found {shown}", address=self._address)

    def _made(self) -> Connection:
        return Connection(self._address, self._memory)

    async def dial_stream(self, opening: dict[str, object]) -> Stream:
        stream = await self._begun(opening, lambda connection: Stream(connection, dialled=True))
        if opening["method"] == methods.PRODUCE.path and (dialled := stream.connection.socket) is not None:
            with contextlib.suppress(OSError, AttributeError):
                dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        return stream

    async def _begun(self, opening: dict[str, object], made: Callable[[Connection], C]) -> C:
        """What a new connection carries, begun.  A member that refuses the own secret is asked once more by certificate alone."""
        connection = await self._dial()
        carried = made(connection)
        try:
            await self._begin(connection, opening, carried, self._security.credentials)
        except AuthenticationFailedError:
            if not self._certificates_do(connection):
                raise
        else:
            return carried
        connection = await self._dial()
        if not self._certificates_do(connection):  # another one answers now
            connection.abort()
            raise UnreachableError(f"{self._address}: another process answers now", address=self._address)
        carried = made(connection)
        await self._begin(connection, opening, carried, None)
        return carried

    def _certificates_do(self, connection: Connection) -> bool:
        """Whether both certificates name members of one cluster: each then knows the other without a secret."""
        own, found = self._security.certified, certified(connection.transport)
        return own is not None and found is not None and found.is_cluster and found.cluster == own.cluster

    async def _begin(
        self, connection: Connection, opening: dict[str, object], carried: Stream | Calls, credentials: Credentials | None
    ) -> None:
        """Send the connection's purpose and authenticate; closed again when that fails."""
        if credentials is None:
            connection.receiver = carried
            send_opening(connection, opening)
            return
        try:
            async with asyncio.timeout(AUTHENTICATION_S):
                exchange = await credentials.exchange()
                if not connection.is_connected:  # lost meanwhile, with no caller to notify
                    raise await connection.why_gone()
                authentication = DialledAuthentication(connection, exchange, carried)
                send_opening(connection, {**opening, "auth": authentication.opening()})
                await authentication.done()
        except TimeoutError:
            connection.abort()
            text = f"{self._address}: did not authenticate within {AUTHENTICATION_S:g} s"
            raise UnreachableError(text, address=self._address) from None
        except BaseException:
            connection.abort()
            raise

    async def _dial_calls(self) -> Calls:
        calls = await self._begun({"calls": True}, Calls)
        self._calls = calls
        self._watch_idle(calls)
        return calls

    def _watch_idle(self, calls: Calls) -> None:
        """Close a connection that has been idle for a while or is no longer needed."""
        loop = asyncio.get_running_loop()
        if not calls.connection.is_open:
            return
        if calls.is_idle and (calls is not self._calls or loop.time() - calls.used_s >= CALLS_IDLE_S):
            calls.connection.close_after_flush()
            return
        timer = loop.call_later(CALLS_IDLE_S / 4, self._watch_idle, calls)
        calls.connection.closed.add_done_callback(lambda _: timer.cancel())

    async def _usable_calls(self) -> Calls:
        calls = self._calls
        if calls is not None and calls.is_usable:
            return calls
        self._calls = None
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.get_running_loop().create_task(self._dial_calls(), name="dial for calls")
            self._dialling.add_done_callback(self._dialled)
        dialling = self._dialling
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if self._closed and dialling.cancelled():  # by close: the call itself was not cancelled
                raise self._closed_here() from None
            raise

    def _dialled(self, task: asyncio.Task[Calls]) -> None:
        _retrieve(task)
        if self._dialling is task:
            self._dialling = None

    # -- the seam

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        self._check_open()
        limit = request_limit(method)
        if len(request) > limit:
            raise MessageTooLargeError(f"{method}: request of {len(request)} bytes; expected at most {limit}")
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                calls = self._calls if self._calls is not None and self._calls.is_usable else await self._usable_calls()
                return await calls.call(method.encode(), request)
        except TimeoutError:
            raise DeadlineExceededError(f"{self._address} {method}: no answer in time", address=self._address) from None

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> _Dialled:
        self._check_open()
        return _Dialled(self, method, metadata or {})

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_here()

    def _closed_here(self) -> UnreachableError:
        return UnreachableError(f"{self._address}: channel closed", address=self._address)

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._connections):
            connection.abort()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])


def send_opening(connection: Connection, opening: dict[str, object]) -> None:
    packed = json.dumps(opening).encode()
    connection.put_raw(PREFACE + struct.pack(">I", len(packed)) + packed)


class TcpNetwork:
    """Makes channels and servers over TCP; ``security`` says whether over TLS, and which side authenticates.

    ``received_bytes``: what all connections together may have received that is not taken yet.
    """

    def __init__(self, security: NetworkSecurity = OPEN, received_bytes: int = RECEIVED_BYTES_LIMIT) -> None:
        self.security = security
        self._memory = ReceivedBytes(received_bytes)
        self.arrivals = Arrivals(security.limits, security.counts)
        self._servers: list[TcpServer] = []

    def connections(self) -> list[Accepted]:
        """Those that the servers of this network have accepted."""
        return [each for server in self._servers for each in server.connections()]

    def connect(self, address: str) -> TcpChannel:
        return TcpChannel(address, self.security, self._memory)

    def connect_to(self, address: str, answering: Principal) -> TcpChannel:
        """A channel on which only ``answering`` may answer."""
        return TcpChannel(address, self.security, self._memory, answering)

    def serve(self, address: str) -> TcpServer:
        server = TcpServer(address, self.security, self._memory, self.arrivals)
        self._servers.append(server)
        return server
