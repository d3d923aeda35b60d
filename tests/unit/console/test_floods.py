"""The port of the console while strangers open connections: what is closed, what is counted, and pages that are answered."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from websockets.asyncio.client import connect

from dledger_cli.local.ports import free_ports
from dledger_console.web.server import ConsoleServer
from dledger_wire.errors import AddressInUseError
from dledger_wire.security.limits import Limits
from dledger_wire.security.tls import TlsSettings
from tests.contract import secured
from tests.flood import BROKEN_HELLO, HALF_HELLO, Flood
from tests.waiting import LIMIT_S, until

FLOOD = 300
LONG_S = 10 * LIMIT_S


async def application(scope: dict[str, str], receive: Callable[[], Awaitable[object]], send: Callable[[object], Awaitable[None]]) -> None:
    """Says ok, or accepts a web socket and waits for its end."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()


def tls() -> TlsSettings:
    path = secured.certificate(secured.NODE, "n0")
    return TlsSettings(str(secured.folder() / "ca.crt"), f"{path}.crt", f"{path}.key", client_auth="none")


def run(scenario: Callable[[ConsoleServer], Awaitable[None]], limits: Limits, over: TlsSettings | None = None) -> None:
    """With a server that has started; it ends."""

    async def whole() -> None:
        config = uvicorn.Config(application, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = ConsoleServer(config, f"127.0.0.1:{free_ports(1)[0]}", over, limits)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.port > 0)
        try:
            await asyncio.wait_for(scenario(server), LIMIT_S)
        finally:
            server.should_exit = True
            await serving
        await until(lambda: len(server.arrivals) == 0)

    asyncio.run(whole())


async def get(port: int, context: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = await reader.readline()
    writer.close()
    return head


@pytest.mark.parametrize("begin", [b"", HALF_HELLO, BROKEN_HELLO], ids=["silent", "half a hello", "a broken hello"])
def test_a_flood_before_the_handshake_is_bounded(begin: bytes) -> None:
    limits = Limits(unknown=8, reserve=0, chance_s=0.0, handshake_s=LONG_S)

    async def scenario(server: ConsoleServer) -> None:
        with Flood(server.port, FLOOD, begin) as flood:
            await until(lambda: flood.closed() >= FLOOD - limits.unknown, LIMIT_S)
            assert len(server.arrivals) <= limits.unknown
            context = ssl.create_default_context(cafile=tls().ca)
            assert await get(server.port, context) == b"HTTP/1.1 200 OK\r\n"

    run(scenario, limits, tls())


def test_without_tls_requests_that_do_not_come_are_bounded_in_number_and_time() -> None:
    async def crowded(server: ConsoleServer) -> None:
        with Flood(server.port, FLOOD, b"GET / HTTP/1.1\r\nHost: ") as flood:
            await until(lambda: flood.closed() >= FLOOD - 8, LIMIT_S)
            assert await get(server.port) == b"HTTP/1.1 200 OK\r\n"

    async def late(server: ConsoleServer) -> None:
        with Flood(server.port, 5, b"GET / HTTP/1.1\r\nHost: ") as flood:
            await until(lambda: flood.closed() == 5, LIMIT_S)
        assert server.arrivals.counts["slow"] == 5

    run(crowded, Limits(unknown=8, reserve=0, chance_s=0.0, handshake_s=LONG_S))
    run(late, Limits(reserve=0, handshake_s=0.2))


def test_open_pages_count_and_one_source_has_its_share() -> None:
    async def scenario(server: ConsoleServer) -> None:
        address = f"ws://127.0.0.1:{server.port}/"
        async with connect(address), connect(address):
            assert server.arrivals.by_kind() == {"known": 2, "unknown": 0}
            with Flood(server.port, 1) as refused:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                assert await reader.read() == b"", "the third of this source"
                writer.close()
                assert refused.closed() == 0, "it is of another one"
        await until(lambda: len(server.arrivals) == 0)
        assert await get(server.port) == b"HTTP/1.1 200 OK\r\n"

    run(scenario, Limits(per_source=2, reserve=0))


def test_an_address_that_is_taken_is_named() -> None:
    async def scenario(server: ConsoleServer) -> None:
        config = uvicorn.Config(application, log_config=None, lifespan="off")
        with pytest.raises(AddressInUseError, match=f"127.0.0.1:{server.port}: cannot listen"):
            await ConsoleServer(config, f"127.0.0.1:{server.port}").serve()

    run(scenario, Limits())
