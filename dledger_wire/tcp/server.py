"""The accepting side of our protocol over TCP: what a new connection is, how many there may be, and the handlers that serve them.

Owns the listener.  The first bytes of a connection decide: our preface and an opening lead to a stream or to calls, the preface of HTTP/2
to ``foreign`` where there is one (``mixed_network``); anything else is closed.  A connection that has not said within ``OPENING_S`` what
it wants is closed, and so is one for calls that has carried none for ``CALLS_IDLE_S``.

Handles: the kernel gives the lowest free number to a new connection, so its number tells how many are in use.  In the last ``reserve``
numbers below the process's limit only links between replicas are served, everybody else is told BUSY; in the last half of them nobody is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import resource
from collections.abc import Callable, Mapping

from dledger_wire.errors import AddressInUseError, AuthenticationFailedError, BusyError, DledgerError
from dledger_wire.rpc.methods import is_raft, request_limit
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, StreamHandler, UnaryHandler
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import ANONYMOUS, Principal
from dledger_wire.tcp.authentication import MAX_FRAME, AcceptedAuthentication, certified
from dledger_wire.tcp.calls import ServedCalls
from dledger_wire.tcp.connection import Connection, RareWarning, ReceivedBytes
from dledger_wire.tcp.stream import Stream

PREFACE = b"DLTP"
HTTP2_PREFACE = b"PRI * HTTP/2.0"
MAX_OPENING_BYTES = 64 << 10
OPENING_S = 5.0
CALLS_IDLE_S = 180.0
SWEEP_S = 15.0
LEAST_RESERVE, MOST_RESERVE = 64, 1024
BACKLOG = 1024

_HEAD = len(PREFACE) + 4

_logger = logging.getLogger(__name__)


class _Context:
    def __init__(self, peer: str, metadata: Mapping[str, str], principal: Principal) -> None:
        self.peer = peer
        self.metadata = metadata
        self.principal = principal


class _Accepted(Connection):
    """A connection just accepted."""

    def __init__(self, server: TcpServer, memory: ReceivedBytes) -> None:
        super().__init__("a peer", memory)
        self.prologue = self._opening
        self.max_frame = MAX_FRAME  # until it is known who this is
        self.near_limit = False
        self._unwatch: Callable[[], object] | None = None
        self._server = server
        self._deadline = self._loop.call_later(OPENING_S, self._too_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        self._server.accepted(self, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        super().connection_lost(exc)
        self._server.parted(self)

    def _too_late(self) -> None:
        self._server.warning.tell(f"{self.peer}: closed: no opening within {OPENING_S:g} s")
        self.abort()

    def _opening(self, begun: memoryview) -> int:
        head = bytes(begun[:_HEAD])
        start = head[: len(PREFACE)]
        if self._server.foreign is not None and HTTP2_PREFACE.startswith(start):
            if len(start) < len(PREFACE):
                return -1
            self._deadline.cancel()
            self.prologue = None
            self._server.foreign(self)
            return 0
        if not PREFACE.startswith(start):
            self.violate("no opening of ours")
            return 0
        if len(head) < _HEAD:
            return -1
        length = int.from_bytes(head[len(PREFACE) :], "big")
        if length > MAX_OPENING_BYTES:
            self.violate(f"an opening of {length} bytes")
            return 0
        if len(begun) < _HEAD + length:
            return -1
        self.prologue = None
        self._open(bytes(begun[_HEAD : _HEAD + length]))
        return _HEAD + length

    def _open(self, packed: bytes) -> None:
        try:
            opening = json.loads(packed)
        except (ValueError, RecursionError):
            opening = None
        if isinstance(opening, dict):
            self._authenticate(opening)
        else:
            self.violate("an opening that is no JSON object")

    def _authenticate(self, opening: dict[str, object]) -> None:
        admission, given = self._server.admission, opening.get("auth")
        certificate = certified(self.transport)
        if admission is not None:
            AcceptedAuthentication(self, admission, certificate, lambda principal: self._admitted(opening, principal)).begin(given)
        elif given is not None:
            self.refuse(AuthenticationFailedError("this cluster has no users; expected none"))
        else:
            self._admitted(opening, certificate or ANONYMOUS)

    def _admitted(self, opening: dict[str, object], principal: Principal) -> None:
        self._deadline.cancel()
        self.max_frame = MAX_MESSAGE_BYTES
        if self._server.admission is not None:
            self._unwatch = self._server.admission.watch(principal, self.revoke)
        self._server.opened(self, opening, principal)


class TcpServer:
    """Serves registered handlers on one address.  ``foreign`` takes over connections that speak HTTP/2."""

    def __init__(self, address: str, security: NetworkSecurity, memory: ReceivedBytes) -> None:
        self.foreign: Callable[[Connection], None] | None = None
        self.warning = RareWarning()
        self._address = address
        self.admission = security.admission
        self._tls = security.tls
        self._memory = memory
        self._unary: dict[bytes, tuple[str, UnaryHandler]] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._server: asyncio.Server | None = None
        self._connections: dict[_Accepted, None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on; the one asked for, or the free one found when that was 0."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._unary[method.encode()] = (method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._streams[method] = handler

    async def start(self) -> None:
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        tls = self._tls.server() if self._tls is not None else None
        handshake_s = OPENING_S if tls is not None else None
        try:
            self._server = await loop.create_server(
                self._accept, host.strip("[]"), int(port), backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise AddressInUseError(f"{self._address}: cannot listen: {error.strerror}", address=self._address) from None
            raise
        self._sweep = loop.call_later(SWEEP_S, self._close_idle)

    def _accept(self) -> _Accepted:
        return _Accepted(self, self._memory)

    # -- connections

    def accepted(self, connection: _Accepted, transport: asyncio.BaseTransport) -> None:
        """A connection is there; near the limit of handles it may be one too many."""
        self._connections[connection] = None
        found = transport.get_extra_info("socket")
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if found is None or limit == resource.RLIM_INFINITY:
            return
        left = limit - found.fileno()
        reserve = min(MOST_RESERVE, max(LEAST_RESERVE, limit // 8))
        if left > reserve:
            return
        self.warning.tell(f"{self._address}: {left} of {limit} file handles left: connections are refused (raise the limit of open files)")
        if left > reserve // 2:
            connection.near_limit = True
        else:
            connection.abort()

    def parted(self, connection: _Accepted) -> None:
        self._connections.pop(connection, None)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_S, self._close_idle)
        before_s = loop.time() - CALLS_IDLE_S
        for connection in list(self._connections):
            calls = connection.receiver
            if connection.last_received_s < before_s and isinstance(calls, ServedCalls) and calls.is_idle:
                connection.close_after_flush()

    def opened(self, connection: _Accepted, opening: dict[str, object], principal: Principal) -> None:
        """A connection has said what it is for, and ``principal`` is who dialled it."""
        method, given = str(opening.get("method") or ""), opening.get("metadata")
        if connection.near_limit and not is_raft(method):
            connection.refuse(BusyError(f"{self._address}: too many connections"))
            return
        metadata = {str(key).lower(): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
        context = _Context(connection.peer, metadata, principal)
        if opening.get("calls"):
            connection.receiver = ServedCalls(connection, self._unary, context)
            return
        stream = connection.receiver = Stream(connection, dialled=False)
        connection.max_frame = request_limit(method)
        task = asyncio.get_running_loop().create_task(self._serve(stream, method, context), name=method)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, stream: Stream, method: str, context: _Context) -> None:
        error: DledgerError | None = None
        try:
            handler = self._streams.get(method)
            if handler is None:
                text = f"method {method} is not served here" if method else "the stream names no method"
                raise DledgerError(f"{self._address}: {text}")
            await handler(stream, context)
        except DledgerError as refused:
            error = refused.with_traceback(None)
        except Exception as failure:  # a bug in one handler must not end the server; the caller learns that it was one
            _logger.exception("%s: handler failed", method)
            error = DledgerError(f"{method}: internal error {type(failure).__name__}")
        except asyncio.CancelledError:
            stream.connection.abort()
            return
        with contextlib.suppress(asyncio.CancelledError):
            await stream.part(error)

    async def stop(self, grace_s: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        if self._server is not None:
            self._server.close()
        tasks = self._tasks()
        if tasks and grace_s > 0:
            await asyncio.wait(tasks, timeout=grace_s)
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _tasks(self) -> list[asyncio.Task[None]]:
        calls = [task for one in self._connections if isinstance(one.receiver, ServedCalls) for task in one.receiver.tasks]
        return [*self._serving, *calls]
