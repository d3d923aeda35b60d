"""Accepting connections on one address, up to where their own bytes begin.

Owns the listening sockets, the choice between TLS and plaintext, and the handshake of TLS.  A connection is counted (``arrivals.py``)
before its first byte is looked at, and everything up to being known has one deadline.

While a cluster is on its way to TLS a port takes both: the first byte of TLS is one that nothing else begins with.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import resource
import socket
import ssl
import traceback
from collections.abc import Callable

from dledger_wire.errors import AddressInUseError, AuthenticationFailedError
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.tls import handshake_failure, refusals
from dledger_wire.tcp.arrivals import Arrival, Arrivals
from dledger_wire.tcp.connection import ERROR, FRAME, PREFACE

BACKLOG = 1024
AT_ONCE = 64  # accepted before others have their turn
PAUSE_S = 0.05
LEAST_RESERVE, MOST_RESERVE = 64, 1024
TLS_HANDSHAKE = 0x16
MOST_IGNORED, IGNORED_BYTES = 64, 4096  # of what a client says that does not speak TLS

Made = Callable[[Arrival], asyncio.BaseProtocol]


class _NotTlsError(Exception):
    """A caller that does not speak TLS where nothing else is spoken."""


class _Handshake(asyncio.Protocol):
    """Stands for the protocol of a connection until its handshake is over: most of what floods a port never gets there."""

    def __init__(self, made: Callable[[], asyncio.BaseProtocol]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._made()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class Listener:
    """Makes a protocol of each connection to ``address``; over TLS once its handshake is over.

    ``probed``: probes of health find out every few seconds whether the port speaks TLS, so a caller that does not is no warning.
    """

    def __init__(self, address: str, security: NetworkSecurity, arrivals: Arrivals, made: Made, *, probed: bool = False) -> None:
        self._address = address
        self._security = security
        self._arrivals = arrivals
        self._made = made
        self._probed = probed
        self._sockets: list[socket.socket] = []
        self._welcoming: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    async def start(self) -> None:
        """AddressInUseError when it cannot be listened on."""
        host, _, port = self._address.rpartition(":")
        if self._security.tls is not None:
            self._security.tls.server()
        try:
            found = await self._loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise AddressInUseError(f"{self._address}: cannot listen: {error.strerror}", address=self._address) from None
        try:
            for family, kind, protocol, _, name in dict.fromkeys(found):
                self._sockets.append(_listening(family, kind, protocol, name))
        except OSError as error:
            self.close()
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise AddressInUseError(f"{self._address}: cannot listen: {error.strerror}", address=self._address) from None
            raise
        self._go_on()

    def close(self) -> None:
        """Accept no more connections, and end the handshakes that are under way."""
        if self._paused is not None:
            self._paused.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._sockets.clear()
        for task in self._welcoming:
            task.cancel()

    async def closed(self) -> None:
        """Wait until nothing of it is left."""
        await asyncio.gather(*self._welcoming, return_exceptions=True)

    # -- accepting

    def _go_on(self) -> None:
        self._paused = None
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._acceptable, listening)

    def _pause(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
        self._paused = self._loop.call_later(PAUSE_S, self._go_on)

    def _acceptable(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if not self._arrivals.has_room():
                self._pause()
                return
            try:
                accepted, name = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._arrivals.refused("handles", f"{self._address}: cannot accept: {error.strerror}")
                self._pause()
                return
            self._arrived(accepted, str(name[0]))

    def _arrived(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        arrival = self._arrivals.enter(address)
        if arrival is None or not self._has_handle(accepted, arrival):
            if arrival is not None:
                self._arrivals.left(arrival)
            accepted.close()
            return
        ours = [accepted]
        task = self._loop.create_task(self._welcome(ours, arrival), name="accept")
        arrival.drop = task.cancel
        self._welcoming.add(task)
        task.add_done_callback(functools.partial(self._welcomed, ours, arrival))

    def _welcomed(self, ours: list[socket.socket], arrival: Arrival, task: asyncio.Task[None]) -> None:
        """``ours``: empty once a transport has the socket.  A task that was cancelled before its first step has done nothing at all."""
        self._welcoming.discard(task)
        if task.cancelled():
            self._arrivals.left(arrival)
        for accepted in ours:
            accepted.close()

    def _has_handle(self, accepted: socket.socket, arrival: Arrival) -> bool:
        """Near the limit of handles it may be one too many.  The kernel gives the lowest free number, which shows how many are in use."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return True
        left = limit - accepted.fileno()
        reserve = min(MOST_RESERVE, max(LEAST_RESERVE, limit // 8))
        if left > reserve:
            return True
        text = f"{self._address}: {left} of {limit} file handles left: connections are refused (raise the limit of open files)"
        self._arrivals.refused("handles", text)
        arrival.over = arrival.over or "too many connections"
        return left > reserve // 2

    # -- up to the first byte of its own

    async def _welcome(self, ours: list[socket.socket], arrival: Arrival) -> None:
        (accepted,) = ours
        peer = arrival.source
        refused: list[ssl.SSLError] = []
        refusals.set(refused)
        try:
            with contextlib.suppress(OSError):
                peer = named(accepted.getpeername())
            async with asyncio.timeout_at(self._loop.time() + self._arrivals.limits.handshake_s):
                tls = await self._context(accepted, peer)
                ours.clear()
                made = functools.partial(self._made, arrival)
                await self._loop.connect_accepted_socket(made if tls is None else functools.partial(_Handshake, made), accepted, ssl=tls)
        except _NotTlsError:
            if self._probed:
                self._arrivals.left(arrival)
            else:
                self._refused(arrival, "tls", f"{peer}: refused: no TLS connection: not TLS")
        except OSError as error:
            self._failed(arrival, peer, refused[0] if refused else error)
            _let_go(error)

    def _failed(self, arrival: Arrival, peer: str, error: OSError) -> None:
        if isinstance(error, TimeoutError):
            self._refused(arrival, "slow", f"{peer}: closed: no TLS within {self._arrivals.limits.handshake_s:g} s")
        elif isinstance(error, ssl.SSLError):
            expected = self._security.tls.settings.min_version if self._security.tls is not None else ""
            self._refused(arrival, "tls", f"{peer}: refused: {handshake_failure(error, expected)}")
        else:  # it went away
            self._arrivals.left(arrival)

    def _refused(self, arrival: Arrival, reason: str, text: str) -> None:
        self._arrivals.left(arrival)
        self._arrivals.refused(reason, text)

    async def _context(self, accepted: socket.socket, peer: str) -> ssl.SSLContext | None:
        security = self._security
        if security.tls is None:
            return None
        first = await self._first_byte(accepted)
        if first == TLS_HANDSHAKE:
            return security.tls.server()
        if security.plaintext:
            self._arrivals.plaintext(peer)
            return None
        if first == PREFACE[0]:
            await self._send_speaks_tls(accepted)
        raise _NotTlsError

    async def _send_speaks_tls(self, accepted: socket.socket) -> None:
        """To a client of ours that does not know it; read on, since what is unread would take the answer away with a reset."""
        error = AuthenticationFailedError(f"{self._address} speaks TLS; expected the authorities of the cluster (--tls-ca, tls=, tls.ca)")
        detail = to_detail(error).SerializeToString()
        await self._loop.sock_sendall(accepted, FRAME.pack(ERROR, len(detail)) + detail)
        accepted.shutdown(socket.SHUT_WR)
        for _ in range(MOST_IGNORED):
            if not await self._loop.sock_recv(accepted, IGNORED_BYTES):
                return

    async def _first_byte(self, accepted: socket.socket) -> int:
        """The byte stays where it is.  ConnectionResetError when none comes any more."""
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(accepted.fileno(), _done, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(accepted.fileno())
        first = accepted.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionResetError
        return first[0]


def _listening(family: int, kind: int, protocol: int, name: object) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(name)  # type: ignore[arg-type]
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _let_go(error: BaseException | None) -> None:
    """The frames of a failed handshake hold its buffers of 256 KiB, and are held by what they hold: until the next full collection."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _done(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def named(name: object) -> str:
    """An address of a socket as text."""
    if not isinstance(name, tuple):
        return "a peer"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
