"""The console at its port: connections that the product's own listener accepted, TLS that follows its files, and an end with the process
that started it.

Owns what joins that listener to the web server: uvicorn has no bound on connections that are in their handshake or bring no request.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.tls import TlsContexts, TlsSettings
from dledger_wire.tcp.arrivals import Arrival, Arrivals
from dledger_wire.tcp.counted import Counted
from dledger_wire.tcp.listener import Listener

# Browsers behind one proxy are one source.
LIMITS = Limits(connections=500, per_source=400, reserve=0, unknown=128, chance_s=0.25, handshake_s=5.0)


_counted: dict[asyncio.Transport, Counted] = {}


class _Http(HttpToolsProtocol):
    """A connection, until it is upgraded to a web socket."""

    def __init__(self, counted: Counted, **given: Any) -> None:
        super().__init__(**given)
        self._own = counted

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _counted[transport] = self._own
        self._own.opened(transport)

    def on_headers_complete(self) -> None:
        self._own.asked()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        _lost(self.transport)
        super().connection_lost(exc)


class _WebSocket(WebSocketsSansIOProtocol):
    """A connection that was upgraded."""

    def connection_lost(self, exc: Exception | None) -> None:
        _lost(self.transport)
        super().connection_lost(exc)


def _lost(transport: asyncio.Transport) -> None:
    counted = _counted.pop(transport, None)
    if counted is not None:
        counted.lost()


class ConsoleServer(uvicorn.Server):
    """Serves an application at ``address``."""

    def __init__(self, config: uvicorn.Config, address: str, tls: TlsSettings | None = None, limits: Limits = LIMITS) -> None:
        config.http, config.ws = _Http, _WebSocket
        super().__init__(config)
        self.arrivals = Arrivals(limits)
        contexts = TlsContexts(tls, alpn=("http/1.1",)) if tls is not None else None
        if contexts is not None:
            contexts.server()  # ConfigError now when the files cannot be used
        self._address = address
        self._security = NetworkSecurity(contexts, limits=limits)
        self._listener: Listener | None = None

    @property
    def port(self) -> int:
        """The port that it listens at: the one of its address, or the free one that was found for 0."""
        return self._listener.port if self._listener is not None else 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """AddressInUseError when it cannot listen."""
        await super().startup(sockets=[])  # with none to accept from
        self._listener = Listener(self._address, self._security, self.arrivals, self._made)
        try:
            await self._listener.start()
        except BaseException:
            await self.lifespan.shutdown()
            raise

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every connection."""
        assert self._listener is not None  # noqa: S101 - it has started
        self._listener.close()
        await super().shutdown()
        await self._listener.closed()

    def _made(self, arrival: Arrival) -> asyncio.Protocol:
        counted = Counted(self.arrivals, arrival)
        return _Http(counted, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


async def serve(server: ConsoleServer, *, ends_with_stdin: bool) -> None:
    """Serve until a signal, and with ``ends_with_stdin`` until the process at the other end of the standard input has ended."""
    if ends_with_stdin:
        loop = asyncio.get_running_loop()

        def on_input() -> None:
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin.fileno())
                server.should_exit = True
                server.force_exit = True

        loop.add_reader(sys.stdin.fileno(), on_input)
    await server.serve()
