"""Credit: what connections may send before it is read.  Never more than the limit, in the order of asking, and none lost or made."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dledger_cli.local.ports import free_ports
from dledger_wire.errors import BusyError, DledgerError, UnreachableError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, RecallingStream, TimedStream
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.tcp import received_bytes
from dledger_wire.tcp.network import TcpNetwork
from dledger_wire.tcp.received_bytes import Credit, ReceivedBytes, Receiving
from dledger_wire.tcp.server import TcpServer
from tests.waiting import until

CALL, STREAM, LINK = "/test.Credit/Call", "/test.Credit/Stream", methods.RAFT_LINK.path
KIB, MIB = 1 << 10, 1 << 20
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "as in production"])
Loop = Callable[[], asyncio.AbstractEventLoop]
Dialled = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Watched(ReceivedBytes):
    """Remembers the most that was held, and who got credit in which order."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.most, self.asked, self.granted = 0, list[Credit](), list[Credit]()

    def _count(self, connection: Receiving, change: int) -> None:
        super()._count(connection, change)
        self.most = max(self.most, self.held)
        assert self.held == sum(self._by.values()) >= sum(each.size for each in self._given) >= 0

    def ask(self, connection: Receiving, size: int) -> Credit:
        credit = super().ask(connection, size)
        self.asked.append(credit)
        return credit

    def _grant(self, credit: Credit) -> None:
        self.granted.append(credit)
        super()._grant(credit)


class Rig:
    """A server whose streams take a message only while ``takes`` is set, and ``TAKE_S`` apart."""

    def __init__(self, limit: int, security: NetworkSecurity) -> None:
        self.memory = Watched(limit)
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.server = TcpServer(self.address, security, self.memory)
        self.takes = asyncio.Event()
        self.takes.set()
        self.taken, self.since = list[int](), list[float]()  # sizes of messages, and when each began to come
        self.server.add_unary(CALL, self.call)
        self.server.add_stream(STREAM, self.take_slowly)
        self.server.add_stream(LINK, self.take_all)

    async def call(self, request: bytes, _context: CallContext) -> bytes:
        return str(len(request)).encode()

    async def take_slowly(self, stream: ByteStream, _context: CallContext) -> None:
        """As Produce does: a message is taken, and waits for room before the next one is."""
        taken: list[bytes] = []

        def take(message: bytes) -> bool:
            taken.append(message)
            assert isinstance(stream, TimedStream)
            self.taken.append(len(message))
            self.since.append(stream.since_s)
            return False

        while await stream.receive(take):
            await self.takes.wait()
            await asyncio.sleep(0)
            await stream.write(str(len(taken.pop())).encode())

    async def take_all(self, stream: ByteStream, _context: CallContext) -> None:
        async for message in _messages(stream):
            await stream.write(str(len(message)).encode())

    async def dial(self, method: str = STREAM) -> Dialled:
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        purpose = {"calls": True} if method == CALL else {"method": method, "metadata": {}}
        packed = json.dumps(purpose).encode()
        writer.write(b"DLTP" + struct.pack(">I", len(packed)) + packed)
        return reader, writer

    async def occupied(self, size: int) -> asyncio.StreamWriter:
        """A connection with a message of that size which is not taken."""
        self.takes.clear()
        _, holder = await self.dial()
        holder.write(frame(size))
        await until(lambda: self.memory.held >= size)
        return holder

    @property
    def waiting(self) -> int:
        return len(self.memory.queue)


async def _messages(stream: ByteStream) -> AsyncIterator[bytes]:
    while (each := await stream.read()) is not None:
        yield each


def run(
    limit: int, scenario: Callable[[Rig], Awaitable[None]], loop: Loop = asyncio.new_event_loop, security: NetworkSecurity = OPEN
) -> Watched:
    async def whole() -> Watched:
        rig = Rig(limit, security)
        await rig.server.start()
        try:
            await asyncio.wait_for(scenario(rig), 60)
            rig.takes.set()
            await until(lambda: not rig.server._connections, 30)
            assert (rig.memory.held, rig.waiting, len(rig.memory._given)) == (0, 0, 0)
        finally:
            await rig.server.stop(0)
        return rig.memory

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(whole())


def frame(size: int, kind: int = 1) -> bytes:
    return struct.pack(">BI", kind, size) + bytes(size)


async def answer(reader: asyncio.StreamReader) -> bytes:
    _kind, length = struct.unpack(">BI", await reader.readexactly(5))
    return await reader.readexactly(length)


async def closed(reader: asyncio.StreamReader) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            found += data
    return found


@LOOPS
@pytest.mark.parametrize("size", [MIB, 60 * KIB, 6 * MIB], ids=["large", "small", "as large as the room"])
def test_whatever_they_send_no_more_is_held_than_the_limit_and_all_of_it_is_taken(size: int, loop: Loop) -> None:
    """Thirty connections that send five times as much as there is room for are slowed down, and none is refused."""
    limit, senders, each = 8 * MIB, 30, max(2, 6 * MIB // size // 3)

    async def send(rig: Rig) -> None:
        reader, writer = await rig.dial()
        for _ in range(each):
            writer.write(frame(size))
            await writer.drain()
        assert [await answer(reader) for _ in range(each)] == [str(size).encode()] * each
        writer.close()

    async def scenario(rig: Rig) -> None:
        rig.takes.clear()
        sent = asyncio.gather(*(send(rig) for _ in range(senders)))
        await until(lambda: rig.waiting > 0 or rig.memory.held > rig.memory.room, 30)
        rig.takes.set()
        await sent

    memory = run(limit, scenario, loop)
    assert memory.most <= limit


@LOOPS
def test_credit_is_given_in_the_order_of_asking(loop: Loop) -> None:
    async def scenario(rig: Rig) -> None:
        rig.takes.clear()
        dialled = [await rig.dial() for _ in range(12)]
        for _, writer in dialled:
            writer.write(frame(MIB))
        await until(lambda: len(rig.memory.asked) == 12)
        assert 0 < rig.waiting < 12
        rig.takes.set()
        for reader, writer in dialled:
            assert await answer(reader) == str(MIB).encode()
            writer.close()

    memory = run(4 * MIB, scenario, loop)
    assert memory.granted == memory.asked


@LOOPS
def test_a_message_that_waited_for_credit_is_known_to_have_waited(loop: Loop) -> None:
    async def scenario(rig: Rig) -> None:
        holder = await rig.occupied(MIB)
        reader, writer = await rig.dial()
        writer.write(frame(MIB))
        await until(lambda: rig.waiting == 1)
        asked_s = asyncio.get_running_loop().time()
        rig.takes.set()
        await answer(reader)
        assert 0 < rig.since[-1] <= asked_s
        for each in (holder, writer):
            each.close()

    run(2 * MIB, scenario, loop)


@LOOPS
def test_links_of_members_never_wait_and_producers_that_do_are_not_refused_for_them(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        rig.takes.clear()
        dialled = [await rig.dial() for _ in range(12)]
        for _, writer in dialled:
            writer.write(frame(MIB))
        await until(lambda: rig.waiting >= 4)
        channel = TcpNetwork().connect(rig.address)
        link = channel.open(LINK)
        for _ in range(5):
            await link.write(bytes(MIB))
            assert await link.read() == str(MIB).encode()
        assert rig.waiting >= 4
        await link.close()
        await channel.close()
        rig.takes.set()
        for reader, writer in dialled:
            assert await answer(reader) == str(MIB).encode()
            writer.close()

    run(8 * MIB, scenario, loop)
    assert not caplog.records


def test_who_has_credit_and_sends_nothing_loses_it_to_those_who_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(received_bytes, "LOOK_S", 0.02)

    async def scenario(rig: Rig) -> None:
        claim_reader, claim = await rig.dial()
        claim.write(frame(6 * MIB)[: 40 * KIB])
        await until(lambda: rig.memory.held > 0)
        reader, writer = await rig.dial()
        writer.write(frame(MIB))
        assert b"while others waited" in await closed(claim_reader)
        assert await answer(reader) == str(MIB).encode()
        for each in (claim, writer):
            each.close()

    with caplog.at_level(logging.WARNING):
        run(8 * MIB, scenario)
    assert len(caplog.records) == 1


def test_who_has_credit_may_take_his_time_while_no_other_one_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_bytes, "LOOK_S", 0.005)

    async def scenario(rig: Rig) -> None:
        reader, writer = await rig.dial()
        whole = frame(6 * MIB)
        writer.write(whole[: 40 * KIB])
        await until(lambda: rig.memory.held > 0)
        assert rig.memory._timer is None
        writer.write(whole[40 * KIB :])
        assert await answer(reader) == str(6 * MIB).encode()
        writer.close()

    run(8 * MIB, scenario)


def test_when_nothing_is_taken_for_long_the_holder_of_most_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait do not wait for ever behind messages that no reader takes."""
    monkeypatch.setattr(received_bytes, "LOOK_S", 0.01)

    async def scenario(rig: Rig) -> None:
        rig.takes.clear()
        dialled = [await rig.dial() for _ in range(3)]
        for _, writer in dialled:
            writer.write(frame(2 * MIB))
        await until(lambda: rig.waiting == 0 and len(rig.memory.granted) == 3)
        for _, writer in dialled:
            writer.close()

    run(5 * MIB, scenario)


def call_frames(call: int, size: int) -> list[bytes]:
    """A request in parts as a client sends it."""
    name, body, part = CALL.encode(), bytes(size), 48 * KIB
    first = struct.pack(">II", call, size) + bytes((len(name),)) + name + body[:part]
    rest = [struct.pack(">I", call) + body[at : at + part] for at in range(part, size, part)]
    return [struct.pack(">BI", kind, len(each)) + each for kind, each in [(4, first), *((7, each) for each in rest)]]


def test_a_request_in_parts_waits_for_credit_and_a_second_one_of_its_connection_is_refused() -> None:
    """A connection that has credit, and would not be read until it had more, could never use it."""

    async def scenario(rig: Rig) -> None:
        first_reader, first = await rig.dial(CALL)
        begun, *rest = call_frames(1, 2 * MIB)
        first.write(begun)
        await until(lambda: rig.memory.held == 2 * MIB)
        reader, writer = await rig.dial(CALL)
        writer.write(b"".join(call_frames(2, 3 * MIB)))
        await until(lambda: rig.waiting == 1)
        first.write(call_frames(3, 3 * MIB)[0])
        assert b"not complete; nothing of this one was kept" in await answer(first_reader)
        first.write(b"".join(rest))
        assert (await answer(first_reader))[8:] == str(2 * MIB).encode()
        assert (await answer(reader))[8:] == str(3 * MIB).encode()
        for each in (first, writer):
            each.close()

    run(4 * MIB, scenario)


def test_a_cancelled_request_that_waited_is_forgotten_and_its_connection_read_again() -> None:
    async def scenario(rig: Rig) -> None:
        holder = await rig.occupied(3 * MIB)
        reader, writer = await rig.dial(CALL)
        writer.write(call_frames(1, 2 * MIB)[0] + struct.pack(">BII", 8, 4, 1))
        writer.write(b"".join(call_frames(2, 100)))
        assert (await answer(reader))[8:] == b"100"
        assert rig.waiting == 0
        for each in (holder, writer):
            each.close()

    run(4 * MIB, scenario)


def test_a_request_that_is_not_read_for_want_of_credit_has_not_stalled() -> None:
    async def scenario(rig: Rig) -> None:
        holder = await rig.occupied(3 * MIB)
        reader, writer = await rig.dial(CALL)
        begun, *rest = call_frames(1, 2 * MIB)
        writer.write(begun)
        await until(lambda: rig.waiting == 1)
        stalled_reader, stalled = await rig.dial()
        stalled.write(frame(100)[:50])
        await closed(stalled_reader)  # it left off later than the request did
        writer.write(b"".join(rest))
        rig.takes.set()
        assert (await answer(reader))[8:] == str(2 * MIB).encode()
        for each in (holder, writer, stalled):
            each.close()

    run(4 * MIB, scenario, security=NetworkSecurity(limits=Limits(stalled_s=0.2)))


class Party:
    """A connection as ``ReceivedBytes`` sees it: drawn to ask, to end, to keep and to give back."""

    is_members = False
    is_paused = False
    peer = "a party"

    def __init__(self, memory: ReceivedBytes) -> None:
        self.memory, self.credit, self.kept = memory, None, 0  # type: tuple[ReceivedBytes, Credit | None, int]
        self.was_credited = False

    def credited(self, credit: Credit) -> None:
        assert credit is self.credit
        self.was_credited = True

    def drop(self, _error: DledgerError) -> None:
        kept, self.kept = self.kept, 0
        if kept:
            self.memory.wait(self, -kept)
        self.leave()

    def leave(self) -> None:
        credit, self.credit = self.credit, None
        if credit is not None:
            self.memory.end(credit)
            self.memory.give()


@pytest.mark.parametrize("seed", range(20))
def test_no_credit_is_lost_or_made(seed: int) -> None:
    """Whatever order things come in, what is held is what parties hold, and waits end when there is room."""
    draw = random.Random(seed)

    async def scenario() -> None:
        memory = Watched(1000)
        parties = [Party(memory) for _ in range(12)]
        for each in parties[:2]:
            each.is_members = True
        for _ in range(3000):
            each = draw.choice(parties)
            if each.credit is None and draw.random() < 0.6:
                each.credit = memory.ask(each, draw.randint(1, 900))
            elif each.credit is not None and each.credit.granted and draw.random() < 0.5:
                size, credit, each.credit = each.credit.size, each.credit, None
                memory.end(credit)
                each.kept += size
                memory.wait(each, size)
                memory.give()
            elif each.kept and draw.random() < 0.7:
                each.kept, size = 0, each.kept
                memory.wait(each, -size)
            elif draw.random() < 0.05:
                each.drop(BusyError("drawn"))
            granted = sum(one.credit.size for one in parties if one.credit is not None and one.credit.granted)
            assert memory.held == granted + sum(one.kept for one in parties)
            assert not memory.queue or not memory._fits(next(iter(memory.queue)).size)
            assert all(not one.is_members for credit in memory.queue for one in parties if credit is one.credit)
        for each in parties:
            each.drop(BusyError("over"))
        assert (memory.held, len(memory.queue), len(memory._given), len(memory._by)) == (0, 0, 0, 0)
        if memory._timer is not None:
            memory._timer.cancel()

    asyncio.run(scenario())


@LOOPS
def test_a_message_that_has_not_left_whole_is_recalled_and_never_taken(loop: Loop) -> None:
    size, taken = 32 * MIB, list[int]()

    async def scenario(rig: Rig) -> None:
        rig.taken = taken
        holder = await rig.occupied(MIB)
        channel = TcpNetwork().connect(rig.address)
        stream = channel.open(STREAM)
        assert isinstance(stream, RecallingStream)
        assert not stream.recall(), "it is not connected yet"
        await stream.write(bytes(10))
        assert not stream.recall(), "all of it has left"
        await stream.write(bytes(size))
        await until(lambda: any(credit.size >= MIB for credit in rig.memory.queue))
        assert stream.recall()
        with pytest.raises(UnreachableError):
            await stream.read()
        assert not stream.recall(), "the connection is gone"
        rig.takes.set()
        await channel.close()
        holder.close()

    run(2 * MIB, scenario, loop)
    assert sorted(taken) == [10, MIB]


@LOOPS
@pytest.mark.parametrize("steps", range(0, 60, 4))
def test_a_message_is_recalled_or_taken_whenever_it_is_recalled(steps: int, loop: Loop) -> None:
    """While it is being read: the loop has some of it to write in the moment in which the connection is given up."""
    size, taken, recalled = 8 * MIB, list[int](), False

    async def scenario(rig: Rig) -> None:
        nonlocal recalled
        rig.taken = taken
        channel = TcpNetwork().connect(rig.address)
        stream = channel.open(STREAM)
        await stream.write(bytes(10))
        await stream.read()
        await stream.write(bytes(size))
        for _ in range(steps):
            await asyncio.sleep(0)
        assert isinstance(stream, RecallingStream)
        recalled = stream.recall()
        with contextlib.suppress(UnreachableError):
            await stream.read()
        await channel.close()

    run(64 * MIB, scenario, loop)
    assert taken == ([10] if recalled else [10, size])
