"""The metrics port while strangers open connections and finish no handshake: handles, memory, and probes that are answered."""

from __future__ import annotations

import asyncio
import gc
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator

import pytest

from broker.metrics import http_server
from broker.metrics.http_server import HttpServer
from dledger_cli.local.ports import free_ports
from dledger_wire.security.limits import Limits
from tests.contract import secured
from tests.flood import BROKEN_HELLO, HALF_HELLO, Flood
from tests.unit.cli.test_probe import Told, contexts
from tests.waiting import LIMIT_S, until

FLOOD = 300


@pytest.fixture
def without_collector() -> Iterator[None]:
    """A node collects old objects so rarely that what waits for it counts as kept."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def handshakes() -> int:
    """Those in memory, with 256 KiB each."""
    return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())


async def livez(port: int) -> bytes:
    context = ssl.create_default_context(cafile=str(secured.folder() / "ca.crt"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readline()
    writer.close()
    return head


@pytest.mark.parametrize("begin", [b"", HALF_HELLO, BROKEN_HELLO], ids=["silent", "half a hello", "a broken hello"])
def test_a_flood_before_the_handshake_is_bounded(begin: bytes, monkeypatch: pytest.MonkeyPatch, without_collector: None) -> None:
    limits = Limits(unknown=8, reserve=0, chance_s=0.0, handshake_s=10 * LIMIT_S)
    monkeypatch.setattr(http_server, "LIMITS", limits)

    async def scenario() -> None:
        (port,) = free_ports(1)
        server = HttpServer(f"127.0.0.1:{port}", Told(), contexts())
        await server.start()
        try:
            with Flood(port, FLOOD, begin) as flood:
                await until(lambda: flood.closed() >= FLOOD - limits.unknown, LIMIT_S)
                assert handshakes() <= limits.unknown
                assert await livez(port) == b"HTTP/1.1 200 OK\r\n"
            await until(lambda: handshakes() == 0, LIMIT_S)
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_one_source_does_not_push_out_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LIMITS", Limits(unknown=8, reserve=0, chance_s=0.0, handshake_s=10 * LIMIT_S))

    async def scenario() -> None:
        (port,) = free_ports(1)
        server = HttpServer(f"127.0.0.1:{port}", Told(), contexts())
        await server.start()
        try:
            with Flood(port, 1, network="127.0.78") as other, Flood(port, FLOOD, HALF_HELLO, sources=1) as flood:
                await until(lambda: flood.closed() >= FLOOD - 8, LIMIT_S)
                assert other.closed() == 0
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
