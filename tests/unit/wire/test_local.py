"""Calls within a process: as over a network, without one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dledger_wire.errors import BusyError, DeadlineExceededError, InvalidArgumentError, UnreachableError
from dledger_wire.rpc import local
from dledger_wire.rpc.local import LocalCaller, LocalServer
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.security.principal import user

ECHO = "/test.Local/Echo"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run


async def echo(stream: ByteStream, caller: CallContext) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(caller.principal.name.encode() + message)


@in_loop
async def test_a_call_is_answered_with_its_caller() -> None:
    server = LocalServer()

    async def answer(request: bytes, caller: CallContext) -> bytes:
        return request + caller.principal.name.encode()

    server.add_unary(ECHO, answer)
    assert await server.connect(LocalCaller(principal=user("ann"))).call(ECHO, b"by ", timeout_s=1) == b"by ann"


@in_loop
async def test_errors_and_deadlines_are_those_of_calls() -> None:
    server = LocalServer()

    async def refuse(request: bytes, _caller: CallContext) -> bytes:
        if request:
            await asyncio.Event().wait()
        raise BusyError("full")

    server.add_unary(ECHO, refuse)
    channel = server.connect(LocalCaller())
    with pytest.raises(BusyError, match="full"):
        await channel.call(ECHO, b"", timeout_s=1)
    with pytest.raises(DeadlineExceededError):
        await channel.call(ECHO, b"wait", timeout_s=0.01)
    with pytest.raises(InvalidArgumentError, match="not served here"):
        await channel.call("/test.Local/Other", b"", timeout_s=1)


@in_loop
async def test_a_stream_carries_messages_both_ways_and_ends() -> None:
    server = LocalServer()
    server.add_stream(ECHO, echo)
    stream = server.connect(LocalCaller(principal=user("ann"))).open(ECHO)
    for number in range(100):
        await stream.write(b"%d" % number)
    await stream.close()
    assert [await stream.read() for _ in range(101)] == [*(b"ann%d" % number for number in range(100)), None]


@in_loop
async def test_the_error_of_a_handler_comes_behind_what_it_sent() -> None:
    server = LocalServer()

    async def send_and_fail(stream: ByteStream, _caller: CallContext) -> None:
        await stream.write(b"first")
        raise BusyError("then")

    server.add_stream(ECHO, send_and_fail)
    stream = server.connect(LocalCaller()).open(ECHO)
    assert await stream.read() == b"first"
    with pytest.raises(BusyError, match="then"):
        await stream.read()
    with pytest.raises(BusyError, match="then"):
        await stream.write(b"late")


@in_loop
async def test_a_writer_waits_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "UNREAD_BYTES", 10)
    server, read = LocalServer(), asyncio.Event()

    async def slow(stream: ByteStream, _caller: CallContext) -> None:
        await read.wait()
        while await stream.read() is not None:
            pass

    server.add_stream(ECHO, slow)
    stream = server.connect(LocalCaller()).open(ECHO)
    await stream.write(b"x" * 11)
    assert not stream.write_now(b"y")
    writing = asyncio.ensure_future(stream.write(b"y"))
    await asyncio.sleep(0)
    assert not writing.done()
    read.set()
    await writing
    await stream.close()
    assert await stream.read() is None


@in_loop
async def test_receive_takes_messages_as_they_come_until_it_has_enough() -> None:
    server = LocalServer()
    server.add_stream(ECHO, echo)
    stream = server.connect(LocalCaller()).open(ECHO)
    taken: list[bytes] = []

    def take(message: bytes) -> bool:
        taken.append(message)
        return len(taken) % 3 != 0

    for number in range(5):
        await stream.write(b"%d" % number)
    assert await stream.receive(take)
    assert taken == [b"0", b"1", b"2"]
    await stream.close()
    assert not await stream.receive(take)
    assert taken == [b"0", b"1", b"2", b"3", b"4"]


@in_loop
async def test_a_stopped_server_ends_its_streams() -> None:
    server = LocalServer()
    server.add_stream(ECHO, echo)
    stream = server.connect(LocalCaller()).open(ECHO)
    await server.stop(0.01)
    with pytest.raises(UnreachableError):
        await stream.read()
