"""Connections of RocketMQ's clients: frames in any pieces, and memory that stays bounded whatever clients send."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from broker.remoting.command import Command, decode, encode
from broker.remoting.connection import RemotingConnection
from dledger_wire.errors import BusyError
from dledger_wire.tcp.received_bytes import ReceivedBytes

KIB = 1 << 10


class Wire(asyncio.Transport):
    """What a connection does to its socket."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 4000), "sockname": ("10.0.0.1", 10921)})
        self.written: list[Command] = []
        self.reads, self.is_aborted = True, False

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def write(self, data: Any) -> None:
        self.written.append(decode(data))

    def abort(self) -> None:
        self.is_aborted = True


class Client:
    """A connection whose requests are answered once ``go_on`` is set."""

    def __init__(self, memory: ReceivedBytes) -> None:
        self.wire, self.go_on, self.served = Wire(), asyncio.Event(), list[Command]()
        self.connection = RemotingConnection(None, self._serve, memory)
        self.connection.connection_made(self.wire)

    async def _serve(self, _connection: RemotingConnection, request: Command) -> Command:
        self.served.append(request)
        await self.go_on.wait()
        return Command(0)

    async def answer(self) -> None:
        self.go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)

    def end(self) -> None:
        self.connection.connection_lost(None)


def frame(size: int, number: int = 0) -> bytes:
    return encode(Command(10, {}, bytes(size), opaque=number))


def test_frames_are_served_whole_however_they_come() -> None:
    async def scenario() -> None:
        rng, memory = random.Random(3), ReceivedBytes(64 << 20)
        client = Client(memory)
        data = b"".join(frame(rng.choice([0, 10, 5000, 300_000]), number) for number in range(40))
        while data:
            cut = rng.choice([1, 7, 100, 70_000])
            client.connection.data_received(data[:cut])
            data = data[cut:]
            await asyncio.sleep(0)
        await client.answer()
        assert [request.opaque for request in client.served] == list(range(40))
        assert sorted(answer.opaque for answer in client.wire.written) == list(range(40))
        assert memory.held == 0
        client.end()

    asyncio.run(scenario())


def test_a_large_frame_waits_for_credit_before_more_of_it_is_read() -> None:
    async def scenario() -> None:
        memory = ReceivedBytes(1600 * KIB)  # of which 1200 are for what is large
        first, second, data = Client(memory), Client(memory), frame(1000 * KIB)
        first.connection.data_received(data[: 100 * KIB])
        second.connection.data_received(data[: 100 * KIB])
        assert (first.wire.reads, second.wire.reads) == (True, False)
        first.connection.data_received(data[100 * KIB :])
        await asyncio.sleep(0)
        assert not second.wire.reads, "the first one is served still"
        await first.answer()
        assert second.wire.reads
        second.connection.data_received(data[100 * KIB :])
        await second.answer()
        assert memory.held == 0
        for client in (first, second):
            client.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_a_connection_held_is_free_when_it_is_gone(is_dropped: bool) -> None:
    async def scenario() -> None:
        memory = ReceivedBytes(1600 * KIB)
        client, other, data = Client(memory), Client(memory), frame(1000 * KIB)
        client.connection.data_received(frame(10 * KIB) + data[: 100 * KIB])
        other.connection.data_received(data[: 100 * KIB])
        assert not other.wire.reads
        if is_dropped:
            client.connection.drop(BusyError("full"))
            assert client.wire.is_aborted
        client.end()
        await asyncio.sleep(0)
        assert other.wire.reads
        other.end()
        assert memory.held == 0

    asyncio.run(scenario())


def test_a_connection_is_not_read_while_its_requests_hold_more_than_their_share() -> None:
    async def scenario() -> None:
        memory = ReceivedBytes(64 << 20)
        client = Client(memory)
        for number in range(12):
            client.connection.data_received(frame(1000 * KIB, number))
        assert not client.wire.reads
        await asyncio.sleep(0)
        await client.answer()
        assert client.wire.reads
        assert memory.held == 0
        client.end()

    asyncio.run(scenario())


def test_a_stranger_is_closed() -> None:
    async def scenario() -> None:
        client = Client(ReceivedBytes(64 << 20))
        client.connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert client.wire.is_aborted
        client.end()

    asyncio.run(scenario())
