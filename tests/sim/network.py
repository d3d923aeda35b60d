"""A simulated network: ``dledger_wire.rpc.transport.Network`` between simulated hosts.

Owns who listens where, what every directed link between two hosts does (delay, cuts, message faults), and connecting.  Connections and
streams are in ``stream.py``.  A cut link behaves as cut cables do under TCP: what is sent waits, and arrives when the cable is back,
unless the connection was given up before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dledger_wire.errors import AddressInUseError, DeadlineExceededError, DledgerError, UnreachableError
from dledger_wire.rpc.transport import ByteStream, StreamHandler, UnaryHandler
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.security.principal import ANONYMOUS, Principal
from tests.sim.loop import Process, SimLoop
from tests.sim.security import prove
from tests.sim.stream import BROKEN_STREAM_GRACE_S, CallContext, ClientStream, Connection, as_travelled, internal_error
from tests.sim.trace import Trace


@dataclass(slots=True)
class NetworkSettings:
    """Durations in seconds; message faults hit only streams whose method ends with ``fault_method``."""

    delay_s: float = 0.0003
    delay_jitter_s: float = 0.0007
    slow_chance: float = 0.0
    slow_s: float = 0.05
    window_bytes: int = 4 << 20
    connect_timeout_s: float = 1.0
    give_up_s: float = 3.0  # a connection over a cut link is given up after this long (keepalive)
    fault_method: str = "/Link"
    drop_chance: float = 0.0
    duplicate_chance: float = 0.0
    reorder_chance: float = 0.0


@dataclass(slots=True)
class Link:
    """What happens to bytes from one host to another."""

    cut: bool = False
    extra_s: float = 0.0


@dataclass(slots=True, eq=False)
class Listener:
    """A server that listens."""

    process: Process
    security: NetworkSecurity
    unary: dict[str, UnaryHandler] = field(default_factory=dict)
    streams: dict[str, StreamHandler] = field(default_factory=dict)
    connections: dict[Connection, None] = field(default_factory=dict)
    calls: dict[asyncio.Task[None], None] = field(default_factory=dict)
    callers: dict[Caller, Principal] = field(default_factory=dict)  # who has proved who it is

    def admit(self, caller: Caller) -> Principal:
        """Who calls.  AuthenticationFailedError when it is not let in."""
        known = self.callers.get(caller)
        if known is None:
            known = self.callers[caller] = prove(caller.security.credentials, self.security.admission, f"sim:{caller.process.host}")
        return known


# Who wants to see every answer to a call: (process that answers, who asked, method, request, answer or error).
Answered = Callable[[Process, Principal, str, bytes, bytes | DledgerError], None]


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """A process, and what it proves who it is with."""

    process: Process
    security: NetworkSecurity


class SimNetwork:
    """The cables and switches; ``of`` gives a process its own view of them."""

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace, settings: NetworkSettings | None = None) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.settings = settings or NetworkSettings()
        self.listeners: dict[str, Listener] = {}
        self.connections: dict[Connection, None] = {}
        self.describe: Callable[[str, bytes], str] | None = None  # method, message -> words for the trace
        self.on_answer: list[Answered] = []
        self._links: dict[tuple[str, str], Link] = {}
        self.calls: dict[UnaryCall, None] = {}

    def of(self, process: Process, security: NetworkSecurity = OPEN) -> ProcessNetwork:
        return ProcessNetwork(self, Caller(process, security))

    @staticmethod
    def host_of(address: str) -> str:
        return address.rpartition(":")[0]

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[(source, target)] = Link()
        return link

    def delay_s(self, link: Link) -> float:
        settings, draw = self.settings, self.rng.random
        taken = settings.delay_s + draw() * settings.delay_jitter_s + link.extra_s
        if settings.slow_chance and draw() < settings.slow_chance:
            taken += draw() * settings.slow_s
        return taken

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from ``source`` to ``target`` any more (one way)."""
        self.link(source, target).cut = True
        self.trace.note("cut", f"{source}>{target}")

    def heal(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if link.cut:
            link.cut = False
            self.trace.note("heal", f"{source}>{target}")
            for connection in list(self.connections):
                connection.link_healed(source, target)

    def heal_all(self) -> None:
        for source, target in list(self._links):
            self.heal(source, target)
        for link in self._links.values():
            link.extra_s = 0.0

    def break_connections(self, one: str, other: str) -> None:
        """Reset everything between two hosts."""
        self.trace.note("reset", f"{one}-{other}")
        for connection in list(self.connections):
            if sorted((connection.caller.process.host, connection.callee.process.host)) == sorted((one, other)):
                connection.break_up()

    def process_died(self, process: Process, *, silent: bool) -> None:
        """Its listeners close; its peers are told by their connections' end, or not when the whole machine went (``silent``)."""
        for address in [address for address, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[address]
        for connection in list(self.connections):
            if process is connection.caller.process or process is connection.callee.process:
                connection.process_died(process, silent=silent)
        for call in list(self.calls):
            call.process_died(process, silent=silent)


class ProcessNetwork:
    """``Network`` for one process."""

    def __init__(self, net: SimNetwork, caller: Caller) -> None:
        self.net = net
        self._caller = caller

    def connect(self, address: str) -> SimChannel:
        return SimChannel(self.net, self._caller, address)

    def serve(self, address: str) -> SimServer:
        return SimServer(self.net, self._caller, address)


class SimServer:
    """``Server``: serves registered handlers on one address."""

    def __init__(self, net: SimNetwork, own: Caller, address: str) -> None:
        self.address = address
        self._net = net
        self._listener = Listener(own.process, own.security)

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._listener.unary[method] = handler

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._listener.streams[method] = handler

    async def start(self) -> None:
        if self.address in self._net.listeners:
            raise AddressInUseError(f"{self.address}: cannot listen: address already in use", address=self.address)
        self._net.listeners[self.address] = self._listener

    async def stop(self, grace_s: float) -> None:
        listener = self._listener
        if self._net.listeners.get(self.address) is not listener:
            return
        del self._net.listeners[self.address]
        served = [*listener.calls, *self._handlers()]
        if grace_s > 0 and served:
            await asyncio.wait(served, timeout=grace_s)
        handlers = self._handlers()
        for connection in list(listener.connections):
            connection.break_from(connection.callee, "the server has stopped")
        for call in list(listener.calls):
            call.cancel()
        if handlers:
            await asyncio.wait(handlers, timeout=2 * BROKEN_STREAM_GRACE_S)

    def _handlers(self) -> list[asyncio.Task[None]]:
        return [connection.handler for connection in self._listener.connections if connection.handler is not None]


class SimChannel:
    """``Channel``: calls and streams to one address."""

    def __init__(self, net: SimNetwork, caller: Caller, address: str) -> None:
        self._net = net
        self._caller = caller
        self._address = address
        self._is_closed = False
        self._connections: dict[Connection, None] = {}
        self._waiting: dict[asyncio.Future[bytes], None] = {}

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        self._check_open(method)
        loop = self._net.loop
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[answer] = None
        call = UnaryCall(self._net, self._caller, self._address, method, request, answer)
        deadline = loop.call_later(max(timeout_s, 0.0), call.deadline)
        call.send()
        try:
            return await answer
        finally:
            deadline.cancel()
            self._net.calls.pop(call, None)
            self._waiting.pop(answer, None)

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        self._check_open(method)
        connection = Connection(self._net, self._caller, self._address, method, dict(metadata or {}), self._connections)
        connection.dial()
        return ClientStream(connection)

    async def close(self) -> None:
        self._is_closed = True
        for connection in list(self._connections):
            connection.break_from(connection.caller, "the channel was closed on this side")
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_exception(self._closed_error("call"))

    def _check_open(self, method: str) -> None:
        if self._is_closed:
            raise self._closed_error(method)

    def _closed_error(self, method: str) -> UnreachableError:
        return UnreachableError(f"{self._address} {method}: the channel was closed on this side", address=self._address)


class UnaryCall:
    """One request and its answer, each a message over one directed link."""

    __slots__ = ("_address", "_answer", "_caller", "_listener", "_method", "_net", "_process", "_request")

    def __init__(self, net: SimNetwork, caller: Caller, address: str, method: str, request: bytes, answer: asyncio.Future[bytes]) -> None:
        self._net = net
        self._caller, self._process = caller, caller.process
        self._address = address
        self._method = method
        self._request = request
        self._answer = answer
        self._listener: Listener | None = None

    def send(self) -> None:
        net = self._net
        target = net.host_of(self._address)
        link = net.link(self._process.host, target)
        if link.cut or net.link(target, self._process.host).cut:
            # No connection can be made; an existing one would let the call wait for its deadline, which the deadline does anyway.
            at = net.loop.now_s + net.settings.connect_timeout_s
            net.loop.call_for(self._process, at, self._fail, self._not_connected("no connection"))
            return
        listener = self._listener = net.listeners.get(self._address)
        net.calls[self] = None
        at = net.loop.now_s + net.delay_s(link)
        if listener is None:
            net.loop.call_for(self._process, at, self._fail, self._not_connected("connection refused"))
        else:
            net.loop.call_for(listener.process, at, self._arrive, listener)

    def _arrive(self, listener: Listener) -> None:
        net = self._net
        net.trace.carry(self._process.host, listener.process.host, self._request)
        if net.trace.readable:
            words = net.describe(self._method, self._request) if net.describe is not None else f"{len(self._request)} bytes"
            net.trace.line("call", f"{self._process.host}>{listener.process.host}", f"{self._method} {words}")
        if net.listeners.get(self._address) is not listener:
            self._reply(listener, self._unreachable("the server has stopped"))
        else:
            work = self._serve(listener)
            task = net.loop.spawn(listener.process, work, self._method)
            listener.calls[task] = None

    async def _serve(self, listener: Listener) -> None:
        task = asyncio.current_task()
        try:
            principal = listener.admit(self._caller)
            handler = listener.unary.get(self._method)
            if handler is None:
                raise DledgerError(f"{self._address} {self._method}: UNIMPLEMENTED method")
            result: bytes | DledgerError = await handler(self._request, CallContext(f"sim:{self._process.host}", {}, principal))
        except DledgerError as error:
            result = as_travelled(error)
        except asyncio.CancelledError:
            result = self._unreachable("the server has stopped")
        except Exception as error:
            result = internal_error(self._net, self._method, error)
        if task is not None:
            listener.calls.pop(task, None)
        for watch in self._net.on_answer:
            watch(listener.process, listener.callers.get(self._caller, ANONYMOUS), self._method, self._request, result)
        self._reply(listener, result)

    def _reply(self, listener: Listener, result: bytes | DledgerError) -> None:
        net = self._net
        link = net.link(listener.process.host, self._process.host)
        if not link.cut:
            net.loop.call_for(self._process, net.loop.now_s + net.delay_s(link), self._answered, listener.process.host, result)

    def _answered(self, source: str, result: bytes | DledgerError) -> None:
        if isinstance(result, DledgerError):
            self._net.trace.carry(source, self._process.host, result.code.encode())
            self._fail(result)
        else:
            self._net.trace.carry(source, self._process.host, result)
            if not self._answer.done():
                self._answer.set_result(result)

    def process_died(self, process: Process, *, silent: bool) -> None:
        """A killed callee's kernel resets the connection; after a power failure nobody does before the deadline."""
        net, listener = self._net, self._listener
        if listener is not None and listener.process is process and not silent:
            link = net.link(process.host, self._process.host)
            if not link.cut:
                at = net.loop.now_s + net.delay_s(link)
                net.loop.call_for(self._process, at, self._fail, self._unreachable("the connection broke"))

    def deadline(self) -> None:
        self._fail(DeadlineExceededError(f"{self._address} {self._method}: no answer in time", address=self._address))

    def _fail(self, error: DledgerError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    def _not_connected(self, why: str) -> UnreachableError:
        """As real networks tell that nothing was sent."""
        return UnreachableError(f"{self._address} {self._method}: {why}", address=self._address, reason=why)

    def _unreachable(self, why: str) -> UnreachableError:
        return UnreachableError(f"{self._address} {self._method}: {why}", address=self._address)
