"""Messages that end with bytes of a file: what goes around the transport keeps its place on the connection, whatever else happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dledger.runtime.env import File
from dledger.runtime.real_disk import RealDisk
from dledger_cli.local.ports import free_ports
from dledger_wire.errors import OffsetOutOfRangeError, StorageDamagedError, UnreachableError
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc.stored import OpenBytes, SocketHandle, sender_of
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security.network_security import OPEN, NetworkSecurity
from dledger_wire.tcp.connection import MESSAGE
from dledger_wire.tcp.network import TcpChannel, TcpNetwork
from dledger_wire.tcp.stream import Stream
from tests.contract import secured
from tests.waiting import until

METHOD = "/test.Stored/Stream"
SIZE = 24 << 20  # more than sockets take while nobody reads
CONTENT = os.urandom(1 << 20) * (SIZE >> 20)

Handler = Callable[[Stream, File], Awaitable[None]]
Scenario = Callable[[ByteStream], Awaitable[None]]


class InFile:
    """The bytes of a file; ``fails_at``: from there on they cannot be sent, ``unreadable``: nor read."""

    def __init__(self, file: File, size: int = SIZE, *, fails_at: int = SIZE + 1, unreadable: bool = False, gone: bool = False) -> None:
        self.file, self.size, self.fails_at, self.unreadable, self.gone = file, size, fails_at, unreadable, gone
        self.begun = asyncio.Event()
        self.sent = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[OpenBytes]:
        if self.gone:
            raise OffsetOutOfRangeError("deleted")
        yield self

    async def send(self, target: SocketHandle, done: int) -> int:
        end = min(self.size, self.fails_at)
        if done >= end:
            raise OSError(errno.EIO, "input/output error")
        sent = await self.file.send(target, [(done, end - done)])
        self.sent += sent
        self.begun.set()
        return sent

    async def read(self, done: int) -> bytes:
        if self.unreadable:
            raise StorageDamagedError("damaged")
        return await self.file.pread(done, self.size - done)


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "installed"])
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Handler, Scenario], None]:
    """Runs a scenario at one end of a stream and a handler at the other, on each kind of event loop."""

    async def run(handler: Handler, scenario: Scenario) -> None:
        disk = RealDisk(str(tmp_path))
        file = await disk.open("content", create=True)
        await file.pwrite(0, [CONTENT])
        async with served(lambda stream: handler(stream, file), OPEN) as channel:
            await scenario(channel.open(METHOD))
        await file.close()
        disk.close()

    def both(handler: Handler, scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(run(handler, scenario), 40))

    return both


@asynccontextmanager
async def served(handler: Callable[[Stream], Awaitable[None]], security: NetworkSecurity) -> AsyncIterator[TcpChannel]:
    network = TcpNetwork(security)
    server = network.serve(f"127.0.0.1:{free_ports(1)[0]}")

    test = asyncio.current_task()

    async def handle(stream: ByteStream, _context: CallContext) -> None:
        assert isinstance(stream, Stream)
        try:
            await handler(stream)
        except AssertionError:
            assert test is not None
            test.cancel()
            raise

    server.add_stream(METHOD, handle)
    await server.start()
    channel = network.connect(f"127.0.0.1:{server.port}")
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(0)


async def ended(stream: ByteStream) -> None:
    """Ask, and read what comes to its end."""
    await stream.close()
    assert await stream.read() is None


def test_large_and_small_messages_keep_their_order(serving: Callable[[Handler, Scenario], None]) -> None:
    async def handler(stream: Stream, file: File) -> None:
        assert sender_of(stream) is stream
        for number in range(3):
            await stream.write(b"before %d" % number)
            await stream.write_stored(b"head %d" % number, InFile(file))
            await stream.write_stored(b"small", InFile(file, 1))
            assert stream.write_now(b"after %d" % number)
        await stream.write_stored(b"x" * (2 << 20), InFile(file, 5))

    async def scenario(stream: ByteStream) -> None:
        for number in range(3):
            expected = [b"before %d" % number, b"head %d" % number + CONTENT, b"small" + CONTENT[:1], b"after %d" % number]
            for each in expected:
                assert await stream.read() == each
        assert await stream.read() == b"x" * (2 << 20) + CONTENT[:5]
        await ended(stream)

    serving(handler, scenario)


def test_a_slow_reader_is_waited_for_without_holding_memory(serving: Callable[[Handler, Scenario], None]) -> None:
    held_back = asyncio.Event()

    async def handler(stream: Stream, file: File) -> None:
        stored = InFile(file)
        writing = asyncio.ensure_future(stream.write_stored(b"head", stored))
        await until(lambda: stream.connection.held_back is not None)
        assert not writing.done()
        assert stored.sent < SIZE
        assert stream.connection.unsent == 0
        assert stream.connection.waits_for_reader_since(1 << 30) < math.inf
        assert not stream.write_now(b"not now")
        held_back.set()
        await writing
        assert stream.connection.held_back is None
        await stream.write(b"then")

    async def scenario(stream: ByteStream) -> None:
        await stream.write(b"go")
        connection = (await stream._stream()).connection  # type: ignore[attr-defined]
        connection.pause_reading()
        await held_back.wait()
        connection.resume_reading()
        assert await stream.read() == b"head" + CONTENT
        assert await stream.read() == b"then"
        await ended(stream)

    serving(handler, scenario)


def test_what_is_put_meanwhile_waits_behind_and_closing_too(serving: Callable[[Handler, Scenario], None]) -> None:
    async def handler(stream: Stream, file: File) -> None:
        stored = InFile(file)
        writing = asyncio.ensure_future(stream.write_stored(b"head", stored))
        await stored.begun.wait()
        assert not writing.done()
        stream.connection.put(MESSAGE, b"behind")
        stream.connection.put(MESSAGE, b"y" * (1 << 17))
        assert stream.connection.unsent > 1 << 17
        stream.connection.close_after_flush()
        assert not stream.connection.is_open
        await writing

    async def scenario(stream: ByteStream) -> None:
        assert await stream.read() == b"head" + CONTENT
        assert await stream.read() == b"behind"
        assert await stream.read() == b"y" * (1 << 17)
        with pytest.raises(UnreachableError):
            await stream.read()

    serving(handler, scenario)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_connection_lost_in_the_middle_of_a_message(serving: Callable[[Handler, Scenario], None], steps: int) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def handler(stream: Stream, file: File) -> None:
        sockets = open_sockets()
        stored = InFile(file)
        stored.begun = begun
        with pytest.raises(UnreachableError):
            await stream.write_stored(b"head", stored)
        await stream.connection.closed
        assert open_sockets() == sockets - 2, "nothing keeps either end open"
        over.set()

    async def scenario(stream: ByteStream) -> None:
        await stream.write(b"go")
        connection = (await stream._stream()).connection  # type: ignore[attr-defined]
        connection.pause_reading()
        await begun.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        connection.abort()
        await over.wait()

    serving(handler, scenario)


def open_sockets() -> int:
    """How many descriptors of this process are sockets."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
    return count


def test_a_cancelled_writer_breaks_the_connection(serving: Callable[[Handler, Scenario], None]) -> None:
    async def handler(stream: Stream, file: File) -> None:
        stored = InFile(file)
        writing = asyncio.ensure_future(stream.write_stored(b"head", stored))
        await stored.begun.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not stream.connection.is_open

    async def scenario(stream: ByteStream) -> None:
        with pytest.raises(UnreachableError):
            await stream.read()

    serving(handler, scenario)


@pytest.mark.parametrize("fails_at", [0, 1, 5 << 20, SIZE - 1])
def test_what_cannot_be_sent_is_read(serving: Callable[[Handler, Scenario], None], fails_at: int) -> None:
    async def handler(stream: Stream, file: File) -> None:
        await stream.write_stored(b"head", InFile(file, fails_at=fails_at))
        await stream.write(b"then")

    async def scenario(stream: ByteStream) -> None:
        assert await stream.read() == b"head" + CONTENT
        assert await stream.read() == b"then"
        await ended(stream)

    serving(handler, scenario)


def test_what_can_neither_be_sent_nor_read_breaks_the_connection(serving: Callable[[Handler, Scenario], None]) -> None:
    async def handler(stream: Stream, file: File) -> None:
        with pytest.raises(StorageDamagedError):
            await stream.write_stored(b"head", InFile(file, fails_at=5 << 20, unreadable=True))
        assert not stream.connection.is_open

    async def scenario(stream: ByteStream) -> None:
        with pytest.raises(UnreachableError):
            await stream.read()

    serving(handler, scenario)


def test_what_is_gone_before_it_begins_is_an_error_of_its_own(serving: Callable[[Handler, Scenario], None]) -> None:
    async def handler(stream: Stream, file: File) -> None:
        with pytest.raises(OffsetOutOfRangeError):
            await stream.write_stored(b"head", InFile(file, gone=True))
        await stream.write(b"not that")

    async def scenario(stream: ByteStream) -> None:
        assert await stream.read() == b"not that"
        await ended(stream)

    serving(handler, scenario)


def test_a_file_that_ends_too_early_is_read(serving: Callable[[Handler, Scenario], None]) -> None:
    async def handler(stream: Stream, file: File) -> None:
        with socket.socket() as target, pytest.raises(OSError, match="No data"):
            await file.send(target, [(SIZE, 1)])
        await stream.write(b"ok")

    async def scenario(stream: ByteStream) -> None:
        assert await stream.read() == b"ok"
        await ended(stream)

    serving(handler, scenario)


def test_over_tls_nothing_goes_around() -> None:
    async def run() -> None:
        async def handler(stream: Stream) -> None:
            assert sender_of(stream) is None
            await stream.write(b"whole")

        async with served(handler, secured.everything()) as channel:
            stream = channel.open(METHOD)
            assert await stream.read() == b"whole"

    asyncio.run(asyncio.wait_for(run(), 40))
