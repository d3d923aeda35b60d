"""Connections of the simulated network: two ordered pipes, windows, and the ways a connection ends.

Owns the life of one bidirectional stream.  Each side learns of an end on its own: at once when it causes it, a message's time later when
the other side does, and after ``give_up_s`` when the cable between them is cut.  Message faults (drop, duplicate, reorder) exist only
where the settings name the method; everything else keeps TCP's promise.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dledger_wire.errors import DledgerError, UnreachableError, error_from_code
from dledger_wire.rpc.delivery import Delivery, Take
from dledger_wire.rpc.stored import StoredBytes
from dledger_wire.security.principal import ANONYMOUS, Principal
from tests.sim.loop import Process

if TYPE_CHECKING:
    from tests.sim.network import Caller, Listener, SimNetwork

BROKEN_STREAM_GRACE_S = 1.0  # as in grpc_server: how long the handler of a broken stream may go on before it is cancelled

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallContext:
    peer: str
    metadata: Mapping[str, str]
    principal: Principal = ANONYMOUS


def as_travelled(error: DledgerError) -> DledgerError:
    """The error as the other side gets it: rebuilt from code, text and details."""
    return error_from_code(error.code, error.message, error.details)


def internal_error(net: SimNetwork, method: str, error: Exception) -> DledgerError:
    """A handler's bug: told to the run, and to the caller as the real network tells it.

    After the run the coroutines of dead processes are freed, which looks like errors and is none.
    """
    if net.loop.is_closed():
        return DledgerError(f"{method}: the run is over")
    net.loop.call_exception_handler({"message": f"{method}: handler failed", "exception": error})
    _logger.error("%s: handler failed", method, exc_info=error)
    return DledgerError(f"{method}: internal error {type(error).__name__}")


class _End:
    """What travels behind the last message; ``error`` is what the handler ended with."""

    __slots__ = ("error",)

    def __init__(self, error: DledgerError | None) -> None:
        self.error = error


class Side:
    """One end of a connection: what arrived and is not read yet, and what waits for the cable."""

    __slots__ = (
        "_delivery",
        "_reader",
        "_stalled",
        "_writer",
        "broken",
        "connection",
        "end",
        "inbox",
        "not_before",
        "other",
        "process",
        "unread",
    )

    other: Side

    def __init__(self, connection: Connection, process: Process) -> None:
        self.connection = connection
        self.process = process
        self.inbox: deque[bytes] = deque()
        self.unread = 0  # bytes sent to this side that nobody has read
        self.end: _End | None = None
        self.broken: UnreachableError | None = None
        self.not_before = 0.0  # arrival of the newest message sent from here
        self._stalled: deque[bytes | _End] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._delivery: Delivery | None = None
        self._writer: asyncio.Future[None] | None = None

    # Sending

    def check_writable(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.end is not None and self is self.connection.caller:
            raise self.end.error or self.connection.unreachable("the stream has ended")

    async def write(self, message: bytes) -> None:
        net, target = self.connection.net, self.other
        self.check_writable()
        while target.unread >= net.settings.window_bytes:
            self._writer = net.loop.create_future()
            await self._writer
            self.check_writable()
        self.send(message)

    def write_now(self, message: bytes) -> bool:
        ended = self.end is not None and self is self.connection.caller
        if self.broken is not None or ended or self.other.unread >= self.connection.net.settings.window_bytes:
            return False
        self.send(message)
        return True

    def send(self, item: bytes | _End) -> None:
        connection, target = self.connection, self.other
        net = connection.net
        link = net.link(self.process.host, target.process.host)
        if not isinstance(item, _End):
            if connection.faulty and not self._stalled and not link.cut and self is connection.caller:
                self._send_faulty(item)
                return
            target.unread += len(item)
        if self._stalled or link.cut:
            self._stalled.append(item)
            connection.stalled()
            return
        at = self.not_before = max(net.loop.now_s + net.delay_s(link), self.not_before)
        net.loop.call_for(target.process, at, target._arrive, item)

    def _send_faulty(self, message: bytes) -> None:
        net, target = self.connection.net, self.other
        settings, link, draw = net.settings, net.link(self.process.host, target.process.host), net.rng.random
        drawn = draw()
        if drawn < settings.drop_chance:
            return
        for _ in range(2 if drawn < settings.drop_chance + settings.duplicate_chance else 1):
            target.unread += len(message)
            at = net.loop.now_s + net.delay_s(link)
            if draw() < settings.reorder_chance:
                at += 10 * draw() * (settings.delay_s + settings.delay_jitter_s)
            else:
                at = self.not_before = max(at, self.not_before)
            net.loop.call_for(target.process, at, target._arrive, message)

    @property
    def is_stalled(self) -> bool:
        return bool(self._stalled)

    def drop_stalled(self) -> bool:
        """Never send what waits for the cable; whether anything does."""
        dropped, self._stalled = self._stalled, deque()
        self.other.unread -= sum(len(item) for item in dropped if not isinstance(item, _End))
        return bool(dropped)

    def flow_again(self) -> None:
        """The cable is back: what was stalled is sent again, as TCP does a while later."""
        stalled, self._stalled = self._stalled, deque()
        net, target = self.connection.net, self.other
        self.not_before = max(self.not_before, net.loop.now_s + net.rng.random() * 0.2)
        for item in stalled:
            if not isinstance(item, _End):
                target.unread -= len(item)
            self.send(item)

    # Receiving

    def _arrive(self, item: bytes | _End) -> None:
        if self.end is not None or self.broken is not None:
            return
        connection = self.connection
        net, source, target = connection.net, self.other.process.host, self.process.host
        if isinstance(item, _End):
            self.end = item
            net.trace.carry(source, target, b"" if item.error is None else item.error.code.encode())
            if self is connection.caller:
                self.wake_writer()
                connection.forget()
        else:
            net.trace.carry(source, target, item)
            if net.trace.readable:
                words = net.describe(connection.method, item) if net.describe is not None else f"{len(item)} bytes"
                net.trace.line("message", f"{source}>{target}", words)
            if self._delivery is not None and self._delivery.is_open:
                self._taken(item)
                self._delivery.deliver(item)
                return
            self.inbox.append(item)
        self.wake_reader()

    async def read(self) -> bytes | None:
        while True:
            if self.broken is not None:
                raise self.broken
            if self.inbox:
                return self._taken(self.inbox.popleft())
            if self.end is not None:
                if self.end.error is not None:
                    raise self.end.error
                return None
            self._reader = self.connection.net.loop.create_future()
            await self._reader

    async def receive(self, take: Take) -> bool:
        while True:
            if self.broken is not None:
                raise self.broken
            if self.inbox:
                if not take(self._taken(self.inbox.popleft())):
                    return True
                continue
            if self.end is not None:
                if self.end.error is not None:
                    raise self.end.error
                return False
            delivery = self._delivery = Delivery(take)
            try:
                await delivery.over
            finally:
                self._delivery = None
            if delivery.stopped:
                return True

    def _taken(self, message: bytes) -> bytes:
        self.unread -= len(message)
        self.other.wake_writer()
        return message

    def wake_reader(self) -> None:
        if self._delivery is not None:
            self._delivery.end()
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def wake_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None and not writer.done():
            writer.set_result(None)

    def learn_broken(self, why: str) -> None:
        """This side knows that the connection is gone."""
        if self.broken is not None or (self.end is not None and self is self.connection.caller):
            return
        self.broken = self.connection.unreachable(why)
        self._stalled.clear()
        self.wake_reader()
        self.wake_writer()
        self.connection.side_broke(self)


class Connection:
    """One stream between two processes; the callee's side exists once something listens at the address."""

    def __init__(
        self, net: SimNetwork, caller: Caller, address: str, method: str, metadata: Mapping[str, str], owner: dict[Connection, None]
    ) -> None:
        self.net = net
        self.address = address
        self.method = method
        self.metadata = metadata
        settings = net.settings
        self.faulty = (settings.drop_chance + settings.duplicate_chance + settings.reorder_chance) > 0 and method.endswith(
            settings.fault_method
        )
        self.target_host = net.host_of(address)
        self.listener: Listener | None = net.listeners.get(address)
        self._who = caller
        self.caller = Side(self, caller.process)
        self.callee = Side(self, self.listener.process if self.listener is not None else net.loop.world)
        self.caller.other, self.callee.other = self.callee, self.caller
        self.handler: asyncio.Task[None] | None = None
        self.established: asyncio.Future[None] = net.loop.create_future()
        self._owner = owner
        self._giving_up = False

    # Opening

    def dial(self) -> None:
        net, loop = self.net, self.net.loop
        host = self.caller.process.host
        there, back = net.link(host, self.target_host), net.link(self.target_host, host)
        net.connections[self] = None
        self._owner[self] = None
        if there.cut or back.cut:
            loop.call_for(self.caller.process, loop.now_s + net.settings.connect_timeout_s, self.caller.learn_broken, "no connection")
            return
        at = self.caller.not_before = loop.now_s + net.delay_s(there)
        if self.listener is None:
            loop.call_for(self.caller.process, at + net.delay_s(back), self.caller.learn_broken, "connection refused")
            return
        loop.call_for(self.listener.process, at, self._accepted)

    def _accepted(self) -> None:
        net, listener = self.net, self.listener
        if listener is None or net.listeners.get(self.address) is not listener or self.callee.broken is not None:
            self.break_from(self.callee, "the server has stopped")
            return
        listener.connections[self] = None
        host = self.caller.process.host
        net.trace.carry(host, listener.process.host, self.method.encode())
        if net.trace.readable:
            net.trace.line("open", f"{host}>{listener.process.host}", self.method)
        self.callee.not_before = net.loop.now_s + net.delay_s(net.link(listener.process.host, host))
        net.loop.call_for(self.caller.process, self.callee.not_before, self._established)
        self.handler = net.loop.spawn(listener.process, self._serve(listener), self.method)

    def _established(self) -> None:
        if not self.established.done():
            self.established.set_result(None)

    async def _serve(self, listener: Listener) -> None:
        callee = self.callee
        try:
            principal = listener.admit(self._who)
            handler = listener.streams.get(self.method)
            if handler is None:
                raise DledgerError(f"{self.address} {self.method}: UNIMPLEMENTED method")
            await handler(ServerStream(self), CallContext(f"sim:{self.caller.process.host}", self.metadata, principal))
            end = _End(None)
        except DledgerError as error:
            end = _End(as_travelled(error))
        except asyncio.CancelledError:
            end = _End(self.unreachable("the handler was stopped"))
        except Exception as error:
            end = _End(internal_error(self.net, self.method, error))
        if callee.broken is None:
            callee.send(end)
        listener.connections.pop(self, None)

    # Ending

    def unreachable(self, why: str) -> UnreachableError:
        return UnreachableError(f"{self.address} {self.method}: {why}", address=self.address)

    def break_from(self, side: Side, why: str) -> None:
        """``side`` ends the connection; the other side hears of it by a message, or by silence when the cable is cut."""
        net, other = self.net, side.other
        side.learn_broken(why)
        if other.broken is None:
            link = net.link(side.process.host, other.process.host)
            wait_s = net.settings.give_up_s if link.cut else max(net.delay_s(link), side.not_before - net.loop.now_s)
            net.loop.call_for(other.process, net.loop.now_s + wait_s, other.learn_broken, "the connection broke")

    def break_up(self, why: str = "the connection was reset") -> None:
        """Something between the two resets the connection."""
        for side in (self.caller, self.callee):
            self.net.loop.call_for(side.process, self.net.loop.now_s + self.net.rng.random() * 0.001, side.learn_broken, why)

    def process_died(self, process: Process, *, silent: bool) -> None:
        """The kernel of a killed process resets its connections; a machine without power says nothing."""
        net = self.net
        survivor = self.caller if self.callee.process is process else self.callee
        if survivor.process is process:
            self.forget()
            return
        link = net.link(process.host, survivor.process.host)
        wait_s = net.settings.give_up_s * (0.5 + 0.5 * net.rng.random()) if silent or link.cut else net.delay_s(link)
        net.loop.call_for(survivor.process, net.loop.now_s + wait_s, survivor.learn_broken, "the connection broke")

    def stalled(self) -> None:
        """Something waits for a cut cable: give the connection up after a while."""
        if not self._giving_up:
            self._giving_up = True
            self.net.loop.call_for(self.net.loop.world, self.net.loop.now_s + self.net.settings.give_up_s, self._give_up)

    def _give_up(self) -> None:
        self._giving_up = False
        if self.caller.is_stalled or self.callee.is_stalled:
            self.break_up("keepalive: no answer")

    def link_healed(self, source: str, target: str) -> None:
        for side in (self.caller, self.callee):
            if side.is_stalled and side.process.host == source and side.other.process.host == target:
                if self.net.rng.random() < 0.5:
                    side.flow_again()
                else:
                    self.break_up()

    def recall(self) -> bool:
        """Break from the caller if what it wrote last still waits for the cable; whether it does."""
        if not self.caller.drop_stalled():
            return False
        self.break_from(self.caller, "recalled")
        return True

    def side_broke(self, side: Side) -> None:
        if side is self.caller:
            if not self.established.done():
                self.established.set_result(None)
            self._owner.pop(self, None)
        elif self.handler is not None and not self.handler.done():
            self.net.loop.call_for(side.process, self.net.loop.now_s + BROKEN_STREAM_GRACE_S, self.handler.cancel)
        if self.listener is not None and side is self.callee:
            self.listener.connections.pop(self, None)
        if self.caller.broken is not None and self.callee.broken is not None:
            self.forget()

    def forget(self) -> None:
        self.net.connections.pop(self, None)
        self._owner.pop(self, None)


class ClientStream:
    """The dialler's end (``ByteStream``).  A task cancelled inside ``read`` or ``write`` breaks its stream, as with grpc.aio."""

    __slots__ = ("_closed", "_connection")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = False

    async def read(self) -> bytes | None:
        try:
            return await self._connection.caller.read()
        except asyncio.CancelledError:
            self._connection.break_from(self._connection.caller, "cancelled on this side")
            raise

    async def receive(self, take: Take) -> bool:
        try:
            return await self._connection.caller.receive(take)
        except asyncio.CancelledError:
            self._connection.break_from(self._connection.caller, "cancelled on this side")
            raise

    async def write(self, message: bytes) -> None:
        connection = self._connection
        try:
            if not connection.established.done():
                await asyncio.shield(connection.established)
            await connection.caller.write(message)
        except asyncio.CancelledError:
            connection.break_from(connection.caller, "cancelled on this side")
            raise

    def write_now(self, message: bytes) -> bool:
        return self._connection.established.done() and self._connection.caller.write_now(message)

    def recall(self) -> bool:
        return self._connection.caller.broken is None and self._connection.recall()

    async def close(self) -> None:
        if not self._closed and self._connection.caller.broken is None and self._connection.caller.end is None:
            self._closed = True
            self._connection.caller.send(_End(None))


class ServerStream:
    """The acceptor's end."""

    __slots__ = ("_connection", "_finished")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._finished = False

    async def read(self) -> bytes | None:
        if self._finished and self._connection.callee.broken is None:
            return None
        try:
            return await self._connection.callee.read()
        except asyncio.CancelledError:
            self._connection.break_from(self._connection.callee, "cancelled at the server")
            raise

    async def receive(self, take: Take) -> bool:
        if self._finished and self._connection.callee.broken is None:
            return False
        try:
            return await self._connection.callee.receive(take)
        except asyncio.CancelledError:
            self._connection.break_from(self._connection.callee, "cancelled at the server")
            raise

    async def write(self, message: bytes) -> None:
        try:
            await self._connection.callee.write(message)
        except asyncio.CancelledError:
            self._connection.break_from(self._connection.callee, "cancelled at the server")
            raise

    def write_now(self, message: bytes) -> bool:
        return self._connection.callee.write_now(message)

    @property
    def sends_stored(self) -> bool:
        return True

    async def write_stored(self, head: bytes, stored: StoredBytes) -> None:
        """Nothing but bytes in memory can be sent here; when they are read, the files may be gone as on a real node."""
        async with stored.opened() as opened:
            try:
                rest = await opened.read(0)
            except BaseException:
                self._connection.break_from(self._connection.callee, "a message could not be finished")
                raise
            await self.write(head + rest)

    async def close(self) -> None:
        """The acceptor's side finishes when its handler returns; closing early only stops further reads."""
        self._finished = True
