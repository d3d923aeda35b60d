"""How often a large message is copied between socket and log: counted in bytes and writes, which a slow machine does not change."""

from __future__ import annotations

import asyncio
import socket
import struct
import tracemalloc

import pytest

from dledger_wire.tcp.connection import MESSAGE, Connection
from dledger_wire.tcp.received_bytes import ReceivedBytes
from store.append.prepared import PreparedBatches
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run
from tests.waiting import until

LARGE = 2_080_000  # what a producer with several queues sends at once, and the entry that is made of it


class Kept:
    """A receiver that keeps the size of what came."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def frame(self, kind: int, payload: bytes) -> None:
        self.sizes.append(len(payload))

    def lost(self) -> None: ...


class Written(asyncio.Transport):
    """A transport that keeps what each write was given; ``gathers``: it has a way of its own to write several buffers, as uvloop's do."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[bytes]] = []

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.writes.append([data])

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def is_closing(self) -> bool:
        return False


class Gathered(Written):
    def writelines(self, list_of_data) -> None:  # type: ignore[no-untyped-def]
        self.writes.append(list(list_of_data))


def test_a_large_message_is_received_into_one_buffer() -> None:
    async def scenario() -> None:
        kept, made = Kept(), []

        def accept() -> Connection:
            connection = Connection("client", ReceivedBytes(1 << 30))
            connection.receiver = kept  # type: ignore[assignment]
            made.append(connection)
            return connection

        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        client, loop = socket.create_connection(server.sockets[0].getsockname()), asyncio.get_running_loop()
        client.setblocking(False)
        message = struct.pack(">BI", MESSAGE, LARGE) + bytes(LARGE)
        await loop.sock_sendall(client, message)
        await until(lambda: kept.sizes == [LARGE])
        tracemalloc.start()
        try:
            await loop.sock_sendall(client, message)
            await until(lambda: kept.sizes == [LARGE, LARGE])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        client.close()
        server.close()
        assert LARGE < peak < 1.3 * LARGE

    run(scenario)


@pytest.mark.parametrize(("transport", "writes"), [(Written(), 2), (Gathered(), 1)])
def test_head_and_body_of_a_large_message_leave_together_where_that_needs_no_copy(transport: Written, writes: int) -> None:
    async def scenario() -> None:
        connection = Connection("server", ReceivedBytes(1 << 30))
        connection.connection_made(transport)
        payload = bytes(LARGE)
        connection.put(MESSAGE, payload)
        assert len(transport.writes) == writes
        assert transport.writes[-1][-1] is payload

    run(scenario)


def test_a_payload_is_copied_once_when_it_is_sealed() -> None:
    async def scenario() -> None:
        rig = await StoreRig.open(CrashDisk())
        await rig.topic("orders")
        record = batch_of("orders", 0, [bytes(1000)] * 1000)
        prepared = rig.store.prepare(record)
        tracemalloc.start()
        try:
            (sealed,) = prepared.seal(rig.log.place(0), 2, rig.term)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(prepared, PreparedBatches)
        assert len(sealed) == len(record) < peak < 1.3 * len(record)

    run(scenario)
