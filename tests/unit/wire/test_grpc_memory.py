"""What stock gRPC clients can make a node keep in memory: bodies that are too large, calls that do not end, streams that go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest

from dledger_cli.local.ports import free_ports
from dledger_wire.event_loop import new_event_loop
from dledger_wire.rpc.grpc_server import SERVED_BYTES
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.tcp.http2_bytes import Http2Bytes
from dledger_wire.tcp.mixed_network import MixedNetwork
from dledger_wire.tcp.received_bytes import ReceivedBytes
from tests.waiting import LIMIT_S, until

CALL, WAITS, STREAM = "/test.Memory/Call", "/test.Memory/Waits", "/test.Memory/Stream"
MIB = 1 << 20
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Watched(ReceivedBytes):
    """Remembers the most that was held."""

    most = 0

    def wait(self, connection: object, change: int) -> None:
        self.most = max(self.most, self.held + change)
        super().wait(connection, change)  # type: ignore[arg-type]


class Rig:
    """A node's port with a limit for what gRPC holds."""

    def __init__(self, limit: int) -> None:
        self.memory = Watched(limit)
        self.go_on = asyncio.Event()
        self.address = f"127.0.0.1:{free_ports(1)[0]}"

    async def call(self, request: bytes, _context: CallContext) -> bytes:
        return str(len(request)).encode()

    async def waits(self, request: bytes, _context: CallContext) -> bytes:
        await self.go_on.wait()
        return str(len(request)).encode()

    async def stream(self, stream: ByteStream, _context: CallContext) -> None:
        while (message := await stream.read()) is not None:
            await stream.write(str(len(message)).encode())

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address, options=UNLIMITED)


def run(limit: int, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        rig, network = Rig(limit), MixedNetwork()
        network.grpc_memory = rig.memory
        server = network.serve(rig.address)
        server.add_unary(CALL, rig.call)
        server.add_unary(WAITS, rig.waits)
        server.add_stream(STREAM, rig.stream)
        await server.start()
        try:
            await asyncio.wait_for(scenario(rig), LIMIT_S)
            await until(lambda: rig.memory.held == 0, LIMIT_S)
        finally:
            await server.stop(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(whole())


async def failure(call: Awaitable[bytes]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


def test_a_body_that_is_too_large_is_refused_before_all_of_it_has_come() -> None:
    async def scenario(rig: Rig) -> None:
        body = bytes(60 * MIB)
        async with rig.channel() as channel:
            assert await channel.unary_unary(CALL)(bytes(SERVED_BYTES - 1024)) == str(SERVED_BYTES - 1024).encode()
            for _ in range(5):
                assert await failure(channel.unary_unary(CALL)(body)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rig.memory.most <= 2 * SERVED_BYTES

    run(1 << 30, scenario)


def test_calls_that_are_not_answered_are_bounded_over_all_connections() -> None:
    """The connection that holds the most is closed; small callers are served."""
    limit = 16 * MIB

    async def scenario(rig: Rig) -> None:
        channels = [rig.channel() for _ in range(6)]
        body = bytes(5 * MIB)
        calls = [asyncio.ensure_future(channel.unary_unary(WAITS)(body)) for channel in channels]
        await until(lambda: sum(call.done() for call in calls) >= 3, LIMIT_S)
        async with rig.channel() as small:
            assert await small.unary_unary(CALL)(b"x") == b"1"
        rig.go_on.set()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in done} == {grpc.aio.AioRpcError, bytes}
        assert sum(isinstance(each, bytes) for each in done) == 3
        assert rig.memory.most <= limit + MIB
        for channel in channels:
            await channel.close()

    run(limit, scenario)


def test_what_handlers_have_read_of_a_stream_does_not_count() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.channel() as channel:
            stream = channel.stream_stream(STREAM)()
            for _ in range(30):
                await stream.write(bytes(MIB))
                assert await stream.read() == str(MIB).encode()
                assert await channel.unary_unary(CALL)(bytes(1000)) == b"1000"
            await until(lambda: rig.memory.held < 100_000, LIMIT_S)
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
        assert rig.memory.most <= 4 * MIB

    run(8 * MIB, scenario)


def test_frames_are_found_wherever_the_bytes_are_cut() -> None:
    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    asked = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"x" * 6)
    asked += frame(1, 4, 1, b"h" * 20) + frame(0, 0, 1, b"d" * 300) + frame(1, 4, 3, b"h" * 5)
    asked += frame(0, 1, 3, b"e" * 50) + frame(0, 0, 1, b"")
    answered = frame(4, 0, 0, b"") + frame(1, 4, 3, b"h") + frame(0, 0, 3, b"answer") + frame(1, 5, 3, b"trailers")
    for step in (1, 7, 9, 10_000):
        count = Http2Bytes()
        for at in range(0, len(asked), step):
            count.asked(asked[at : at + step])
        assert count.held == 350
        for at in range(0, len(answered), step):
            count.answered(answered[at : at + step])
        assert count.held == 300
        count.read(200)
        assert count.held == 100
        count.asked(frame(3, 0, 1, b"\0\0\0\x08"))
        assert count.held == 0
