"""The listening socket of the console: TLS that follows its files, and an end with the process that started it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from typing import Any

import uvicorn

from dledger_wire.security.tls import TlsContexts, TlsSettings


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.  OSError, with the address as its file, when that cannot be."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(256)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from None
    return listening


def tls_factory(settings: TlsSettings) -> Any:
    """What uvicorn makes its context with; each connection gets the certificate as it is then."""
    contexts = TlsContexts(settings, alpn=("http/1.1",))
    contexts.server()  # ConfigError now when the files cannot be used
    return lambda *_: _server_context(contexts)


def _server_context(contexts: TlsContexts) -> ssl.SSLContext:
    return contexts.server()


async def serve(config: uvicorn.Config, listening: socket.socket, *, ends_with_stdin: bool) -> None:
    """Serve until a signal, and with ``ends_with_stdin`` until the process at the other end of the standard input has ended."""
    server = uvicorn.Server(config)
    if ends_with_stdin:
        loop = asyncio.get_running_loop()

        def on_input() -> None:
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin.fileno())
                server.should_exit = True
                server.force_exit = True

        loop.add_reader(sys.stdin.fileno(), on_input)
    await server.serve(sockets=[listening])
