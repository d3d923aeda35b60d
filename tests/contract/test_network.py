"""What every implementation of ``dledger_wire.rpc.transport.Network`` must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dledger_wire.errors import (
    AddressInUseError,
    DeadlineExceededError,
    DledgerError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnreachableError,
)
from dledger_wire.rpc.transport import ByteStream, CallContext, Server

from .network_worlds import WORLDS, World

UNARY = "/test.Contract/Unary"
STREAM = "/test.Contract/Stream"


@pytest.fixture(params=WORLDS, ids=lambda make: make().name)
def world(request: pytest.FixtureRequest) -> World:
    return request.param()


async def echo(request: bytes, _context: CallContext) -> bytes:
    return request


async def echo_stream(stream: ByteStream, _context: CallContext) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(message)


async def started(world: World, address: str, add: Callable[[Server], None]) -> Server:
    server = world.network().serve(address)
    add(server)
    await server.start()
    return server


def serves_stream(handler: Callable[[ByteStream, CallContext], Awaitable[None]]) -> Callable[[Server], None]:
    return lambda server: server.add_stream(STREAM, handler)


def serves_unary(handler: Callable[[bytes, CallContext], Awaitable[bytes]]) -> Callable[[Server], None]:
    return lambda server: server.add_unary(UNARY, handler)


@pytest.mark.parametrize("size", [0, 1, 1 << 10, 9 << 20])
def test_a_unary_call_brings_the_answer(world: World, size: int) -> None:
    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_unary(echo))
        channel = world.network().connect(address)
        request = b"x" * size
        assert await channel.call(UNARY, request, timeout_s=5) == request
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_typed_error_of_the_handler_is_raised_at_the_caller(world: World) -> None:
    async def refuse(_request: bytes, _context: CallContext) -> bytes:
        raise NotLeaderError("n0 is not the leader of g0 – ask n1", leader_address="127.0.0.1:10912")

    async def out_of_range(_stream: ByteStream, _context: CallContext) -> None:
        raise OffsetOutOfRangeError("below the start", min_offset=7, max_offset=9)

    async def scenario(world: World) -> None:
        address = world.address()
        server = world.network().serve(address)
        server.add_unary(UNARY, refuse)
        server.add_stream(STREAM, out_of_range)
        await server.start()
        channel = world.network().connect(address)
        with pytest.raises(NotLeaderError) as caught:
            await channel.call(UNARY, b"", timeout_s=5)
        assert caught.value.leader_address == "127.0.0.1:10912"
        assert caught.value.message == "n0 is not the leader of g0 – ask n1"
        with pytest.raises(OffsetOutOfRangeError) as caught_range:
            await channel.open(STREAM).read()
        assert (caught_range.value.min_offset, caught_range.value.max_offset) == (7, 9)
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_bug_of_the_handler_is_an_internal_error_and_the_server_goes_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def fails(request: bytes, _context: CallContext) -> bytes:
        if request == b"bad":
            raise ZeroDivisionError("a bug")
        return request

    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_unary(fails))
        channel = world.network().connect(address)
        with pytest.raises(DledgerError) as caught:
            await channel.call(UNARY, b"bad", timeout_s=5)
        assert caught.value.code == "INTERNAL"
        assert await channel.call(UNARY, b"good", timeout_s=5) == b"good"
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_method_nobody_serves_is_an_error_at_once(world: World) -> None:
    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_unary(echo))
        channel = world.network().connect(address)
        with pytest.raises(DledgerError) as caught:
            await channel.call("/test.Contract/Unknown", b"", timeout_s=5)
        assert not isinstance(caught.value, DeadlineExceededError)
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_slow_handler_meets_the_deadline(world: World) -> None:
    async def never(_request: bytes, _context: CallContext) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""

    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_unary(never))
        channel = world.network().connect(address)
        with pytest.raises(DeadlineExceededError) as caught:
            await channel.call(UNARY, b"", timeout_s=0.05)
        assert caught.value.outcome_unknown
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_nobody_listening_is_unreachable(world: World) -> None:
    async def scenario(world: World) -> None:
        channel = world.network().connect(world.address())
        with pytest.raises(UnreachableError):
            await channel.call(UNARY, b"", timeout_s=5)
        with pytest.raises(UnreachableError):
            await channel.open(STREAM).read()
        with pytest.raises(UnreachableError):
            await channel.open(STREAM).write(b"x")
        await channel.close()

    world.run(scenario)


def test_messages_of_a_stream_arrive_whole_and_in_order(world: World) -> None:
    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_stream(echo_stream))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        sent = [bytes([n % 251]) * (n * n * 40) for n in range(120)]

        async def write_all() -> None:
            for message in sent:
                await stream.write(message)
            await stream.close()
            await stream.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(write_all())
            for message in sent:
                assert await stream.read() == message
            assert await stream.read() is None
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_the_end_of_the_callers_side_is_seen_as_none_and_answers_still_pass(world: World) -> None:
    async def count(stream: ByteStream, _context: CallContext) -> None:
        messages = 0
        while await stream.read() is not None:
            messages += 1
        await stream.write(str(messages).encode())

    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_stream(count))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"a")
        await stream.write(b"b")
        await stream.close()
        assert await stream.read() == b"2"
        assert await stream.read() is None
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_metadata_and_the_callers_address_reach_the_handler(world: World) -> None:
    async def tell(stream: ByteStream, context: CallContext) -> None:
        await stream.write(f"{context.metadata['node-id']}|{context.metadata['cluster']}|{bool(context.peer)}".encode())

    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_stream(tell))
        channel = world.network().connect(address)
        stream = channel.open(STREAM, metadata={"node-id": "n1", "cluster": "größe"})
        assert await stream.read() == "n1|größe|True".encode()
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_closed_channel_breaks_its_streams_on_both_sides(world: World) -> None:
    async def scenario(world: World) -> None:
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def watch(stream: ByteStream, _context: CallContext) -> None:
            try:
                while await stream.read() is not None:
                    await stream.write(b"hello")
                seen.set_result("finished")
            except UnreachableError:
                seen.set_result("broken")

        address = world.address()
        server = await started(world, address, serves_stream(watch))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"x")
        assert await stream.read() == b"hello"
        await channel.close()
        assert await seen == "broken"
        with pytest.raises(UnreachableError):
            await stream.read()
        with pytest.raises(UnreachableError):
            channel.open(STREAM)
        with pytest.raises(UnreachableError):
            await channel.call(UNARY, b"", timeout_s=1)
        await server.stop(0)

    world.run(scenario)


@pytest.mark.parametrize("head_start", [0, 1, 3])
def test_closing_a_stream_and_its_channel_at_once_is_quiet(world: World, head_start: int) -> None:
    """A stream just opened may not have reached its server yet: nothing of it is to be closed, and nothing raises."""

    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_stream(echo_stream))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        closing = asyncio.ensure_future(stream.close())
        for _ in range(head_start):
            await asyncio.sleep(0)
        await channel.close()
        await asyncio.wait_for(closing, 10)
        await stream.close()
        await server.stop(0)

    world.run(scenario)


def test_a_writer_held_back_learns_that_the_other_side_went_away(world: World) -> None:
    async def scenario(world: World) -> None:
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def pour(stream: ByteStream, _context: CallContext) -> None:
            await stream.read()
            try:
                while True:
                    await stream.write(bytes(1 << 20))
            except UnreachableError:
                seen.set_result("broken")

        address = world.address()
        server = await started(world, address, serves_stream(pour))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"x")
        assert len(await stream.read() or b"") == 1 << 20
        await asyncio.sleep(0.05)  # until the writer is held back; if it is not yet, the test only shows less
        await channel.close()
        assert await asyncio.wait_for(seen, 5) == "broken"
        await server.stop(0)

    world.run(scenario)


def test_a_stopped_server_breaks_its_streams_and_a_new_one_is_reached_again(world: World) -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        address = world.address()
        server = await started(world, address, serves_stream(echo_stream))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"x")
        assert await stream.read() == b"x"
        await server.stop(0)
        with pytest.raises(UnreachableError):
            await stream.read()
        with pytest.raises(UnreachableError):
            await stream.write(b"y")
        server = await started(world, address, serves_unary(echo))
        until = loop.time() + 3
        while True:
            try:
                assert await channel.call(UNARY, b"again", timeout_s=1) == b"again"
                break
            except UnreachableError:
                assert loop.time() < until, "not reconnected within 3 s"
                await asyncio.sleep(0.02)
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_server_stops_although_a_handler_hangs(world: World) -> None:
    async def scenario(world: World) -> None:
        entered = asyncio.Event()

        async def hang(_stream: ByteStream, _context: CallContext) -> None:
            entered.set()
            await asyncio.get_running_loop().create_future()

        address = world.address()
        server = await started(world, address, serves_stream(hang))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"x")
        await entered.wait()
        await asyncio.wait_for(server.stop(0), 10)
        with pytest.raises(UnreachableError):
            await stream.read()
        await channel.close()

    world.run(scenario)


def test_an_address_in_use_is_refused_by_name(world: World) -> None:
    async def scenario(world: World) -> None:
        address = world.address()
        first = await started(world, address, serves_unary(echo))
        with pytest.raises(AddressInUseError, match=address):
            await world.network().serve(address).start()
        await first.stop(0)

    world.run(scenario)


def test_a_slow_reader_holds_the_writer_back(world: World) -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        release = asyncio.Event()
        received: asyncio.Future[int] = loop.create_future()

        async def slow(stream: ByteStream, _context: CallContext) -> None:
            await release.wait()
            total = 0
            while (message := await stream.read()) is not None:
                total += len(message)
            received.set_result(total)

        address = world.address()
        server = await started(world, address, serves_stream(slow))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        written = 0

        async def write_all() -> None:
            nonlocal written
            for _ in range(200):
                await stream.write(bytes(1 << 20))
                written += 1
            await stream.close()

        task = asyncio.ensure_future(write_all())
        before = -1
        while written > before:
            before = written
            await asyncio.sleep(0.2)
        assert written < 100, "200 MiB were accepted for a reader that reads nothing"
        release.set()
        await task
        assert await received == 200 << 20
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_messages_are_received_one_by_one_until_the_receiver_wants_no_more(world: World) -> None:
    async def scenario(world: World) -> None:
        received: list[bytes] = []
        seen: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()

        def take(message: bytes) -> bool:
            received.append(message)
            return message != b"stop"

        async def handler(stream: ByteStream, _context: CallContext) -> None:
            stopped = await stream.receive(take)
            waited, read = list(received), await stream.read()
            finished = await stream.receive(take)
            seen.set_result([stopped, waited, read, finished])

        address = world.address()
        server = await started(world, address, serves_stream(handler))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        for message in (b"a", b"b", b"stop", b"read", b"c", b"d"):
            await stream.write(message)
        await stream.close()
        assert await seen == [True, [b"a", b"b", b"stop"], b"read", False]
        assert received == [b"a", b"b", b"stop", b"c", b"d"]
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_receiver_that_is_waiting_stops_at_one_message_and_the_next_ones_wait(world: World) -> None:
    async def scenario(world: World) -> None:
        address = world.address()
        server = await started(world, address, serves_stream(echo_stream))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        received: list[bytes] = []

        def take(message: bytes) -> bool:
            received.append(message)
            return False

        receiving = asyncio.ensure_future(stream.receive(take))
        await asyncio.sleep(0.05)
        for message in (b"1", b"2", b"3"):
            await stream.write(message)
        assert await receiving
        assert received == [b"1"]
        assert await stream.read() == b"2"
        assert await stream.receive(take)
        assert received == [b"1", b"3"]
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_what_the_receiver_raises_is_raised_where_it_is_awaited(world: World) -> None:
    async def scenario(world: World) -> None:
        def refuse(message: bytes) -> bool:
            raise NotLeaderError(message.decode())

        async def handler(stream: ByteStream, _context: CallContext) -> None:
            await stream.write(b"ready")
            await stream.receive(refuse)

        address = world.address()
        server = await started(world, address, serves_stream(handler))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        assert await stream.read() == b"ready"
        await stream.write(b"why not")
        with pytest.raises(NotLeaderError, match="why not"):
            await stream.receive(lambda _message: True)
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_a_waiting_receiver_learns_that_the_connection_broke(world: World) -> None:
    async def scenario(world: World) -> None:
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def watch(stream: ByteStream, _context: CallContext) -> None:
            try:
                await stream.write(b"hello")
                await stream.receive(lambda _message: True)
                seen.set_result("finished")
            except UnreachableError:
                seen.set_result("broken")

        address = world.address()
        server = await started(world, address, serves_stream(watch))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        assert await stream.read() == b"hello"
        receiving = asyncio.ensure_future(stream.receive(lambda _message: True))
        await asyncio.sleep(0.01)
        await channel.close()
        assert await asyncio.wait_for(seen, 10) == "broken"
        with pytest.raises(UnreachableError):
            await receiving
        await server.stop(0)

    world.run(scenario)


def test_a_cancelled_receiver_takes_nothing_more(world: World) -> None:
    async def scenario(world: World) -> None:
        received: list[bytes] = []
        taken, ended = asyncio.Event(), asyncio.Event()

        def take(message: bytes) -> bool:
            received.append(message)
            taken.set()
            return True

        async def handler(stream: ByteStream, _context: CallContext) -> None:
            receiving = asyncio.ensure_future(stream.receive(take))
            await taken.wait()
            receiving.cancel()
            await asyncio.wait([receiving])
            ended.set()
            await asyncio.sleep(0.05)

        address = world.address()
        server = await started(world, address, serves_stream(handler))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"before")
        await ended.wait()
        assert not stream.write_now(b"after") or received == [b"before"]
        await asyncio.sleep(0.02)
        assert received == [b"before"]
        await channel.close()
        await server.stop(0)

    world.run(scenario)


def test_what_is_written_now_keeps_the_order_and_is_refused_where_writing_would_wait_or_fail(world: World) -> None:
    async def scenario(world: World) -> None:
        release = asyncio.Event()
        received: list[bytes] = []

        async def slow(stream: ByteStream, _context: CallContext) -> None:
            await release.wait()
            while (message := await stream.read()) is not None:
                received.append(message)
            await stream.write(b"all")

        address = world.address()
        server = await started(world, address, serves_stream(slow))
        channel = world.network().connect(address)
        stream = channel.open(STREAM)
        await stream.write(b"first")
        sent = [b"first"]
        for number in range(400):
            message = bytes([number % 251]) * (1 << 20)
            if not stream.write_now(message):
                break
            sent.append(message)
        assert len(sent) < 400, "400 MiB were accepted for a reader that reads nothing"
        release.set()
        await stream.write(b"last")
        await stream.close()
        assert await stream.read() == b"all"
        assert received == [*sent, b"last"]
        await channel.close()
        assert not stream.write_now(b"too late")
        await server.stop(0)

    world.run(scenario)
