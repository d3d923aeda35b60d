"""What strangers and broken peers may cost a server: handles, memory, log lines.  (docs/reference/network.md, "Connections and handles")"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dledger_cli.local.ports import free_ports
from dledger_wire.errors import BusyError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.tcp import connection as tcp_connection
from dledger_wire.tcp import listener as tcp_listener
from dledger_wire.tcp import server as tcp_server
from dledger_wire.tcp.connection import Connection
from dledger_wire.tcp.network import TcpChannel, TcpNetwork
from dledger_wire.tcp.rare_warning import RareWarning
from dledger_wire.tcp.received_bytes import ReceivedBytes
from dledger_wire.tcp.server import TcpServer
from tests.waiting import until

CALL, STREAM, SMALL, LINK = "/test.Tcp/Call", "/test.Tcp/Stream", methods.FETCH.path, methods.RAFT_LINK.path
CLAIM = struct.pack(">BI", 1, 60 << 20)
ATTACKERS = 20
Writer = asyncio.StreamWriter


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


async def read_all(stream: ByteStream, _context: CallContext) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(str(len(message)).encode())


def opening(method: str) -> bytes:
    packed = json.dumps({"method": method, "metadata": {}}).encode()
    return b"DLTP" + struct.pack(">I", len(packed)) + packed


class Rig:
    def __init__(self, limit: int = 1 << 30, security: NetworkSecurity = OPEN) -> None:
        self.memory = ReceivedBytes(limit)
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.server = TcpServer(self.address, security, self.memory)
        self.server.add_unary(CALL, echo)
        for method in (STREAM, SMALL, LINK):
            self.server.add_stream(method, read_all)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            await self.server.start()
            try:
                await asyncio.wait_for(scenario(), 90)
            finally:
                await self.server.stop(0)

        asyncio.run(bounded())

    async def dial(self, begin: bytes) -> tuple[asyncio.StreamReader, Writer]:
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(begin)
        return reader, writer

    async def well(self) -> None:
        """The server goes on."""
        channel = TcpNetwork().connect(self.address)
        assert await channel.call(CALL, b"x", timeout_s=30) == b"x"
        await channel.close()


async def closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_connection, "violations", RareWarning())


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
        b"DLTP" + struct.pack(">I", 60_000) + b"[" * 60_000,
        b"DLTP" + struct.pack(">I", 2) + b"[]",
        b"DLTP\xff\xff\xff\xff",
        opening(STREAM) + b"\x09\x00\x00\x00\x00",
        opening(STREAM) + b"\x01\xff\xff\xff\xff" + b"x" * 70_000,
        opening(SMALL) + struct.pack(">BI", 1, 2 << 20),
        opening(STREAM) + struct.pack(">BI", 4, 0),
    ],
)
def test_what_is_not_our_protocol_is_closed_with_one_line(begin: bytes, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()

    async def scenario() -> None:
        for _ in range(5):
            reader, writer = await rig.dial(begin)
            await closed(reader)
            writer.close()
        await rig.well()

    with caplog.at_level(logging.WARNING):
        rig.run(scenario)
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize("begin", [b"", b"DLT", opening(STREAM)[:20], b"PRI"])
def test_whoever_does_not_say_what_he_wants_is_closed(begin: bytes) -> None:
    rig = Rig(security=NetworkSecurity(limits=Limits(handshake_s=0.05)))

    async def scenario() -> None:
        reader, writer = await rig.dial(begin)
        await closed(reader)
        writer.close()
        await rig.well()

    rig.run(scenario)


def test_idle_connections_for_calls_are_closed_and_streams_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "CALLS_IDLE_S", 0.0)
    monkeypatch.setattr(tcp_server, "SWEEP_S", 0.02)
    rig = Rig()

    async def scenario() -> None:
        network = TcpNetwork()
        channel = network.connect(rig.address)
        stream = channel.open(STREAM)
        await stream.write(b"x")
        assert await stream.read() == b"1"
        packed = b'{"calls": true}'
        reader, writer = await rig.dial(b"DLTP" + struct.pack(">I", len(packed)) + packed)
        await closed(reader)
        writer.close()
        await stream.write(b"xx")
        assert await stream.read() == b"2"
        await channel.close()

    rig.run(scenario)


def test_near_the_limit_of_handles_strangers_are_busy_and_replicas_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()

    async def scenario() -> None:
        channel = TcpNetwork().connect(rig.address)
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (10_000, 10_000))
        monkeypatch.setattr(tcp_listener, "MOST_RESERVE", 19_000)
        monkeypatch.setattr(tcp_listener, "LEAST_RESERVE", 19_000)  # handles up to 500 are in the first half of the reserve
        with pytest.raises(BusyError):
            await channel.call(CALL, b"x", timeout_s=30)
        with pytest.raises(BusyError):
            await channel.open(STREAM).read()
        link = channel.open(LINK)
        await link.write(b"abc")
        assert await link.read() == b"3"
        monkeypatch.setattr(tcp_listener, "LEAST_RESERVE", 1 << 20)
        monkeypatch.setattr(tcp_listener, "MOST_RESERVE", 1 << 20)
        with pytest.raises(UnreachableError):
            await channel.open(LINK).read()
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (1 << 20, 1 << 20))
        monkeypatch.setattr(tcp_listener, "MOST_RESERVE", 64)
        await channel.close()
        await rig.well()

    rig.run(scenario)


def test_claimed_lengths_take_no_memory_and_what_was_received_goes_with_its_connection() -> None:
    rig = Rig()

    def buffers() -> int:
        return sum(len(each._large or each._rest) for each in rig.server._connections)

    async def scenario() -> None:
        for _ in range(3):
            dialled = [await rig.dial(opening(STREAM) + struct.pack(">BI", 1, 20 << 20)) for _ in range(ATTACKERS)]
            await rig.well()
            await until(lambda: len(rig.server._connections) >= ATTACKERS)
            assert rig.memory.held < ATTACKERS * (64 << 10)
            for _, writer in dialled:
                writer.write(bytes(40 << 10))
                await writer.drain()
            await until(lambda: buffers() >= 40 * ATTACKERS << 10)
            assert buffers() <= 256 * ATTACKERS << 10
            for _, writer in dialled:
                writer.write(bytes(1 << 20))
                await writer.drain()
            await until(lambda: buffers() >= ATTACKERS << 20)
            assert buffers() <= tcp_connection.GROWTH * ATTACKERS << 20
            assert rig.memory.held == 20 * ATTACKERS << 20
            left = [connection.closed for connection in rig.server._connections]
            for _, writer in dialled:
                writer.close()
            await asyncio.wait(left)
            assert rig.memory.held == 0

    rig.run(scenario)


def message(size: int) -> bytes:
    return struct.pack(">BI", 1, size) + bytes(size)


def test_messages_that_nobody_takes_cost_their_own_connections_and_no_others() -> None:
    """Whoever fills a server with messages that wait loses them, and not a replica or a client that has sent a part of one."""
    rig, over = Rig(limit=32 << 20), asyncio.Event()

    async def take_none(_stream: ByteStream, _context: CallContext) -> None:
        await over.wait()

    rig.server.add_stream(STREAM, take_none)

    async def scenario() -> None:
        greedy = [await rig.dial(opening(STREAM)) for _ in range(40)]
        for _, writer in greedy:
            writer.write(message(1 << 20))
        await until(lambda: rig.memory.held >= 24 << 20)
        reader, small = await rig.dial(opening(SMALL) + struct.pack(">BI", 1, 1000) + bytes(500))
        channel = TcpNetwork().connect(rig.address)
        link = channel.open(LINK)
        for _ in range(2):
            await link.write(bytes(16 << 20))
            assert await link.read() == b"16777216"
        small.write(bytes(500))
        assert await reader.readexactly(9) == struct.pack(">BI", 1, 4) + b"1000"
        over.set()
        await channel.close()
        for writer in (small, *(writer for _, writer in greedy)):
            writer.close()
        await until(lambda: not rig.server._connections, 30)
        assert rig.memory.held == 0

    rig.run(scenario)


def test_callers_who_send_faster_than_a_server_takes_are_slowed_down_before_one_is_refused() -> None:
    rig, begun = Rig(limit=32 << 20), asyncio.Event()

    async def take_slowly(stream: ByteStream, _context: CallContext) -> None:
        await begun.wait()
        await stream.write(str(len([0 async for _ in _messages(stream)])).encode())

    rig.server.add_stream(STREAM, take_slowly)

    async def send(channel: TcpChannel) -> bytes | None:
        stream = channel.open(STREAM)
        for _ in range(48):
            await stream.write(bytes(256 << 10))
        await stream.close()
        return await stream.read()

    async def scenario() -> None:
        channel = TcpNetwork().connect(rig.address)
        sent = asyncio.gather(*(send(channel) for _ in range(16)))
        accepted = rig.server._connections
        await until(lambda: sent.done() or (len(accepted) == 16 and all(each._reading_paused for each in accepted)))
        begun.set()
        assert await sent == [b"48"] * 16
        await channel.close()

    rig.run(scenario)


async def _messages(stream: ByteStream) -> AsyncIterator[bytes]:
    while (each := await stream.read()) is not None:
        yield each


@pytest.mark.parametrize("begin", [b"", b"junk", opening(STREAM), opening(STREAM) + CLAIM + bytes(1 << 19), opening("/test.Tcp/None")])
def test_a_lost_connection_is_freed_without_the_collector(begin: bytes) -> None:
    rig = Rig()
    seen: list[weakref.ref[Connection]] = []
    accepted = rig.server.accepted

    def note(connection: tcp_server.Accepted) -> None:
        seen.append(weakref.ref(connection))
        accepted(connection)

    rig.server.accepted = note  # type: ignore[method-assign]

    async def scenario() -> None:
        gc.collect()
        gc.disable()
        try:
            reader, writer = await rig.dial(begin)
            await until(lambda: bool(seen))
            if len(begin) > 1000:
                await until(lambda: rig.memory.held > 0)
            writer.close()
            await closed(reader)
            await until(lambda: all(one() is None for one in seen))
        finally:
            gc.enable()

    rig.run(scenario)


def test_a_stream_that_names_no_method_is_told_so() -> None:
    rig = Rig()

    async def scenario() -> None:
        packed = b'{"metadata": {}}'
        reader, writer = await rig.dial(b"DLTP" + struct.pack(">I", len(packed)) + packed)
        assert b"the stream names no method" in await reader.read()
        writer.close()

    rig.run(scenario)


@pytest.mark.parametrize("messages", [3, 20], ids=["that wait", "that hold the sender up, too"])
def test_what_nobody_reads_any_more_of_a_stream_does_not_count(messages: int) -> None:
    """A client that leaves a stream before its end, as after a damaged message, has all its room again."""
    rig = Rig()
    network = TcpNetwork()

    async def give(stream: ByteStream, _context: CallContext) -> None:
        await stream.read()
        for _ in range(messages):
            await stream.write(bytes(1 << 20))

    rig.server.add_stream("/test.Tcp/Give", give)

    async def scenario() -> None:
        channel = network.connect(rig.address)
        stream = channel.open("/test.Tcp/Give")
        await stream.write(b"x")
        assert await stream.read() == bytes(1 << 20)
        await until(lambda: network._memory.held >= 2 << 20)
        await stream.close()
        del stream
        await until(lambda: network._memory.held == 0)
        await channel.close()

    rig.run(scenario)
