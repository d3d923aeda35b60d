"""The HTTP side of the metrics port: paths, formats, passwords, and limits against slow and many callers.

Runs in a thread with an event loop of its own, so that neither rendering nor a caller holds up the node, and a probe is answered when the
node's loop hangs.  Owns nothing of what is told: a ``Source`` does.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aiohttp import BasicAuth, web
from aiohttp.http_exceptions import HttpProcessingError

from broker.config.values import split_address
from broker.metrics.health import Check
from dledger_wire.errors import AddressInUseError, AuthenticationFailedError, BusyError, DledgerError, NotReadyError, PermissionDeniedError
from dledger_wire.tcp.listener import named

MAX_CONNECTIONS = 64
HANDSHAKE_S = 5.0
HEAD_S = 2.0  # for a request to come
ANSWER_S = 20.0  # for it to be answered, and the answer to be read
MAX_HEAD_BYTES = 8190
_PLAIN = {"Server": "dledger", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Source(Protocol):
    """What is told at the port.  Every method is called on the port's thread."""

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Text and content type.  NotReadyError when the node's loop does not answer."""
        ...

    async def authorize(self, peer: str, name: str, password: str) -> None:
        """AuthenticationFailedError or PermissionDeniedError unless a caller from the address ``peer`` with these (empty: with none) may
        read metrics."""
        ...

    def alive(self) -> Sequence[Check]: ...
    async def ready(self) -> Sequence[Check]: ...


class HttpServer:
    """``start`` and ``stop`` it on the loop that it serves from."""

    def __init__(self, address: str, source: Source, tls: ssl.SSLContext | None) -> None:
        self._address, self._source, self._tls = address, source, tls
        self._server: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Listen.  AddressInUseError when the port is taken."""
        host, port = split_address(self._address)
        bounded = _BoundedServer(self._handle)
        self._runner = web.ServerRunner(bounded, handle_signals=False, access_log=None)
        await self._runner.setup()
        handshake_s = HANDSHAKE_S if self._tls is not None else None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                bounded.connection, host, port, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            await self.stop()
            raise AddressInUseError(f"metrics: cannot listen at {self._address}: {error.strerror or error}") from error

    async def stop(self) -> None:
        """End every connection.  Idempotent."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            answer = _text(405, "expected GET\n", {"Allow": "GET, HEAD"})
        elif request.path == "/metrics":
            answer = await self._metrics(request)
        elif request.path == "/livez":
            answer = _checked(self._source.alive(), request)
        elif request.path == "/readyz":
            answer = _checked([*self._source.alive(), *await self._source.ready()], request)
        else:
            answer = _text(404, "expected /metrics, /livez or /readyz\n")
        answer.force_close()  # a connection is for one request: none of them stays
        return answer

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        try:
            await self._source.authorize(_peer(request), *_credentials(request))
            body, content_type = await self._source.metrics(request.headers.get("Accept", ""))
        except AuthenticationFailedError as error:
            return _text(401, f"{error.message}\n", {"WWW-Authenticate": 'Basic realm="dledger", charset="UTF-8"'})
        except PermissionDeniedError as error:
            return _text(403, f"{error.message}\n")
        except (NotReadyError, BusyError) as error:
            return _text(503, f"{error.message}\n")
        except DledgerError as error:
            return _text(500, f"{error.message}\n")
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding", **_PLAIN}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        return web.Response(body=body, headers=headers)


def _peer(request: web.BaseRequest) -> str:
    return named(request.transport.get_extra_info("peername") if request.transport is not None else None)


def _credentials(request: web.BaseRequest) -> tuple[str, str]:
    """Name and password of the request; both empty when it has none, or something else."""
    try:
        found = BasicAuth.decode(request.headers.get("Authorization", ""), encoding="utf-8")
    except ValueError:
        return "", ""
    return found.login, found.password


def _checked(checks: Sequence[Check], request: web.BaseRequest) -> web.Response:
    """``ok`` or what failed; with ``?verbose`` every check."""
    failed = [check for check in checks if check.problem]
    shown = checks if "verbose" in request.query else failed
    lines = [*map(str, shown), "failed" if failed else "ok"]
    return _text(503 if failed else 200, "".join(f"{line}\n" for line in lines))


def _text(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=text, headers={**_PLAIN, **(headers or {})})


class _RequestsLog(logging.LoggerAdapter[logging.Logger]):
    """For aiohttp, which logs a traceback for each request that cannot be read: any caller could fill the log with them."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        level = logging.DEBUG if isinstance(exc_info, HttpProcessingError) else logging.ERROR
        self.log(level, msg, *args, exc_info=exc_info, **more)


class _BoundedServer(web.Server):
    """Makes a protocol for each connection: so many at a time, each for a bounded time.

    One too many ends the oldest, of those without a request if there is one: nobody can keep a probe out by holding connections.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        async def begun(request: web.BaseRequest) -> web.StreamResponse:
            self._asked.add(request.protocol)
            self._bound(request.protocol, ANSWER_S)
            return await handler(request)

        log = _RequestsLog(logging.getLogger(__name__))
        super().__init__(begun, logger=log, access_log=None, max_line_size=MAX_HEAD_BYTES, max_field_size=MAX_HEAD_BYTES)
        self._ends: dict[web.RequestHandler, asyncio.TimerHandle] = {}  # of every connection, oldest first
        self._asked: set[web.RequestHandler] = set()  # those whose request has come

    def connection(self) -> asyncio.Protocol:
        """The protocol of a connection that was just accepted; with TLS its handshake is still to come."""
        if len(self._ends) >= MAX_CONNECTIONS:
            self._end(next((made for made in self._ends if made not in self._asked), next(iter(self._ends))))
        made: web.RequestHandler = self()
        self._bound(made, HANDSHAKE_S)
        return made

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if handler in self._ends:
            self._bound(handler, HEAD_S)
        else:  # ended during its handshake, when there was no transport to end
            transport.abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        super().connection_lost(handler, exc)

    def _bound(self, made: web.RequestHandler, seconds: float) -> None:
        """From now on; in place of the bound that it had."""
        before = self._ends.get(made)
        if before is not None:
            before.cancel()
        self._ends[made] = asyncio.get_running_loop().call_later(seconds, self._end, made)

    def _forget(self, made: web.RequestHandler) -> None:
        self._asked.discard(made)
        timer = self._ends.pop(made, None)
        if timer is not None:
            timer.cancel()

    def _end(self, made: web.RequestHandler) -> None:
        self._forget(made)
        if isinstance(made.transport, asyncio.Transport):
            made.transport.abort()
