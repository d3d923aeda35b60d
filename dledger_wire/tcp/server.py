"""The accepting side of our protocol over TCP: what a new connection is, and the handlers that serve it.

Owns what becomes of connections that the listener accepted (``listener.py``).  The first bytes of a connection decide: our preface and an
opening lead to a stream or to calls, the preface of HTTP/2 to ``foreign`` where there is one (``mixed_network``); anything else is closed.
A connection that has not authenticated and stated its purpose in time is closed, and so is one for calls that has carried none for
``CALLS_IDLE_S``, one that leaves off in the middle of a message, and one whose caller does not read what it asked for.

One too many, or one in the last file handles: only links between replicas and other members are served, all others get BUSY.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from dledger_wire import strict_json
from dledger_wire.errors import AuthenticationFailedError, BusyError, DledgerError
from dledger_wire.rpc.methods import is_raft, request_limit
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, StreamHandler, UnaryHandler
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.principal import ANONYMOUS, Principal
from dledger_wire.tcp.arrivals import Arrival, Arrivals, nothing
from dledger_wire.tcp.authentication import MAX_FRAME, AcceptedAuthentication, certified
from dledger_wire.tcp.calls import ServedCalls
from dledger_wire.tcp.connection import PREFACE, WRITE_BUFFER_BYTES, Connection
from dledger_wire.tcp.listener import Listener, named
from dledger_wire.tcp.received_bytes import ReceivedBytes
from dledger_wire.tcp.stream import Stream

HTTP2_PREFACE = b"PRI * HTTP/2.0"
MAX_OPENING_BYTES = 64 << 10
CALLS_IDLE_S = 180.0
SWEEP_S = 15.0

_HEAD = len(PREFACE) + 4

_logger = logging.getLogger(__name__)


class _Context:
    def __init__(self, peer: str, metadata: Mapping[str, str], principal: Principal) -> None:
        self.peer = peer
        self.metadata = metadata
        self.principal = principal


class Accepted(Connection):
    """A connection just accepted."""

    is_members = False  # until it is known
    purpose = user = ""  # until it has said so

    def __init__(self, server: TcpServer, memory: ReceivedBytes, arrival: Arrival) -> None:
        super().__init__("a peer", memory)
        self.prologue = self._opening
        self.max_frame = MAX_FRAME  # until it is authenticated
        self.arrival = arrival
        self._unwatch: Callable[[], object] | None = None
        self._server = server
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = named(transport.get_extra_info("peername"))
        self.arrival.drop = self.abort
        self._deadline = self._loop.call_at(self.arrival.since_s + self._server.limits.handshake_s, self._too_late)
        self._server.accepted(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_deadline()
        self.arrival.drop = nothing
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        super().connection_lost(None)  # the handshake was to report this side's certificate
        self._server.parted(self)

    def not_ours(self, foreign: str) -> None:
        self.violate(f"no frame of dledger: it speaks {foreign}")

    def _too_late(self) -> None:
        if self.is_open:  # else it was refused, and does not read why
            self._server.arrivals.refused("slow", f"{self.peer}: closed: not authenticated within {self._server.limits.handshake_s:g} s")
        self.abort()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def known(self, *, is_member: bool) -> bool:
        """The connection is authenticated; False when it is one too many."""
        if not self._server.arrivals.known(self.arrival, is_member=is_member):
            return False
        self.is_members = is_member
        self._no_deadline()
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._server.held_back(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._server.goes_on(self)

    def _opening(self, begun: memoryview) -> int:
        head = bytes(begun[:_HEAD])
        start = head[: len(PREFACE)]
        if self._server.foreign is not None and HTTP2_PREFACE.startswith(start):
            if len(start) < len(PREFACE):
                return -1
            self.prologue = None
            self._server.joined(self)
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
            opening = strict_json.parse(packed)
        except ValueError:
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
            self.refuse(AuthenticationFailedError("user authentication is not enabled on this cluster; connect without a user"))
        else:
            self._admitted(opening, certificate or ANONYMOUS)

    def _admitted(self, opening: dict[str, object], principal: Principal) -> None:
        self.max_frame = MAX_MESSAGE_BYTES
        if self._server.admission is not None:
            try:
                self._unwatch = self._server.admission.watch(principal, self.revoke)
            except BusyError as error:
                self._server.arrivals.refused("quota", f"{self.peer}: {error.message}")
                self.refuse(error)
                return
        self._server.opened(self, opening, principal)


class TcpServer:
    """Serves registered handlers on one address.  ``foreign`` takes over connections that speak HTTP/2."""

    def __init__(self, address: str, security: NetworkSecurity, memory: ReceivedBytes, arrivals: Arrivals | None = None) -> None:
        self.foreign: Callable[[Connection, Callable[[Principal], bool]], None] | None = None
        self._address = address
        self._security = security
        self.admission = security.admission
        self.limits = security.limits
        self.arrivals = arrivals if arrivals is not None else Arrivals(security.limits, security.counts)
        self._memory = memory
        self._unary: dict[bytes, tuple[str, UnaryHandler]] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._listener: Listener | None = None
        self._connections: dict[Accepted, None] = {}
        self._held_back: dict[Accepted, None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on; the one asked for, or the free one found when that was 0."""
        return self._listener.port if self._listener is not None else 0

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._unary[method.encode()] = (method, handler)

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._streams[method] = handler

    async def start(self) -> None:
        self._listener = Listener(self._address, self._security, self.arrivals, self._accept)
        await self._listener.start()
        self._look_again()

    def _accept(self, arrival: Arrival) -> Accepted:
        return Accepted(self, self._memory, arrival)

    # -- connections

    def accepted(self, connection: Accepted) -> None:
        """A connection is there, behind TLS where there is any."""
        self._connections[connection] = None

    def parted(self, connection: Accepted) -> None:
        self._connections.pop(connection, None)
        self._held_back.pop(connection, None)
        self.arrivals.left(connection.arrival)

    def connections(self) -> list[Accepted]:
        """Those that are open now."""
        return list(self._connections)

    def joined(self, connection: Accepted) -> None:
        """A connection speaks HTTP/2; where callers have to authenticate, they have a limited time for it."""
        connection.purpose = "grpc"
        foreign = self.foreign
        if foreign is None or (self.admission is None and not connection.known(is_member=False)):
            connection.abort()
            return
        foreign(connection, lambda principal: connection.arrival.is_known or connection.known(is_member=principal.is_cluster))

    def held_back(self, connection: Accepted) -> None:
        """Stop reading from a caller that does not read its answers, and drop the one that has not read for longest."""
        self._held_back[connection] = None
        if isinstance(connection.receiver, ServedCalls):
            connection.pause_reading()
        most = self.limits.unsent
        while len(self._held_back) * WRITE_BUFFER_BYTES > most and sum(each.unsent for each in self._held_back) > most:
            longest = min(self._held_back, key=lambda each: each.waits_for_reader_since(self.limits.progress))
            del self._held_back[longest]  # at once: the next one held back in this turn is to find another one
            self._drop(longest, "unread", f"{most >> 20} MiB wait for callers that do not read them")

    def goes_on(self, connection: Accepted) -> None:
        if self._held_back.pop(connection, 1) is None and isinstance(connection.receiver, ServedCalls):
            connection.resume_reading()

    def _drop(self, connection: Accepted, reason: str, why: str) -> None:
        self.arrivals.refused(reason, f"{connection.peer}: closed: {why}")
        connection.abort()

    def _look_again(self) -> None:
        limits, loop = self.limits, asyncio.get_running_loop()
        self._sweep = loop.call_later(min(SWEEP_S, limits.stalled_s / 2, limits.unread_s / 2), self._look_again)
        now_s = loop.time()
        for connection in list(self._connections):
            carried = connection.receiver
            calls = carried if isinstance(carried, ServedCalls) else None
            if connection.waits_for_bytes_since(limits.progress) < now_s - limits.stalled_s:
                self._drop(connection, "stalled", f"it left off in the middle of a message {limits.stalled_s:g} s ago")
            elif connection.waits_for_reader_since(limits.progress) < now_s - limits.unread_s:
                self._drop(connection, "unread", f"it has not read for {limits.unread_s:g} s")
            elif calls is not None and calls.waits_since < now_s - limits.stalled_s:
                self._drop(connection, "stalled", f"it left off in the middle of a request {limits.stalled_s:g} s ago")
            elif calls is not None and calls.is_idle and connection.last_received_s < now_s - CALLS_IDLE_S:
                connection.close_after_flush()

    def opened(self, connection: Accepted, opening: dict[str, object], principal: Principal) -> None:
        """A connection has said what it is for, and ``principal`` is its dialler."""
        named, given = opening.get("method"), opening.get("metadata")
        method = named if isinstance(named, str) else ""
        is_proved = self.admission is not None and not self._security.plaintext
        is_member = principal.is_cluster or (not is_proved and is_raft(method))
        if not connection.known(is_member=is_member):
            connection.refuse(BusyError(f"{self._address}: {connection.arrival.over}: no more are served"))
            return
        known = given.items() if isinstance(given, dict) else ()
        metadata = {key.lower(): value for key, value in known if isinstance(value, str)}
        context = _Context(connection.peer, metadata, principal)
        connection.user, connection.purpose = principal.name, "calls" if opening.get("calls") else method
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
            _logger.exception("%s: handler failed", method, extra={"event": "handler_failed"})
            error = DledgerError(f"{method}: internal error {type(failure).__name__}")
        except asyncio.CancelledError:
            stream.connection.abort()
            return
        with contextlib.suppress(asyncio.CancelledError):
            await stream.part(error)

    async def stop(self, grace_s: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        if self._listener is not None:
            self._listener.close()
        tasks = self._tasks()
        if tasks and grace_s > 0:
            await asyncio.wait(tasks, timeout=grace_s)
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.closed()

    def _tasks(self) -> list[asyncio.Task[None]]:
        calls = [task for one in self._connections if isinstance(one.receiver, ServedCalls) for task in one.receiver.tasks]
        return [*self._serving, *calls]
