"""The HTTP side of the metrics port: paths, formats, passwords, and limits against slow and many callers.

Runs in a thread with an event loop of its own, so that neither rendering nor a caller holds up the node, and a probe is answered when the
node's loop hangs.  Owns none of the content: a ``Source`` does.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aiohttp import BasicAuth, web
from aiohttp.http_exceptions import HttpProcessingError

from broker.metrics.health import Check
from dledger_wire.errors import AddressInUseError, AuthenticationFailedError, BusyError, DledgerError, NotReadyError, PermissionDeniedError
from dledger_wire.security.limits import Limits
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.security.tls import TlsContexts
from dledger_wire.tcp.arrivals import RESERVE_SHARE, Arrival, Arrivals
from dledger_wire.tcp.counted import Counted
from dledger_wire.tcp.listener import Listener, named

# A source with a quarter of the places for ``unknown`` loses its own oldest: it cannot take those of others, nor keep a probe out.
LIMITS = Limits(connections=512, per_source=512, reserve=0, unknown=256, chance_s=0.25, handshake_s=5.0)
MAX_REQUESTS = 64
ANSWER_S = 20.0  # for it to be answered, and the answer to be read
MAX_HEAD_BYTES = 8190
_PLAIN = {"Server": "dledger", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Source(Protocol):
    """The content of the port.  Every method is called on the port's thread."""

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

    def __init__(self, address: str, source: Source, tls: TlsContexts | None) -> None:
        self._address, self._source = address, source
        self._security = NetworkSecurity(tls, limits=LIMITS)
        self._listener: Listener | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Listen.  AddressInUseError when the port is taken."""
        arrivals = Arrivals(LIMITS)
        bounded = _BoundedServer(self._handle, arrivals)
        self._runner = web.ServerRunner(bounded, handle_signals=False, access_log=None)
        await self._runner.setup()
        self._listener = Listener(self._address, self._security, arrivals, bounded.made, probed=True)
        try:
            await self._listener.start()
        except AddressInUseError as error:
            await self.stop()
            raise AddressInUseError(f"metrics: {error.message}") from None

    async def stop(self) -> None:
        """End every connection.  Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._listener is not None:
            await self._listener.closed()

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
    """Makes a protocol for each connection that the listener hands over: so many requests at a time, each for a bounded time.

    One too many ends the oldest, of the same source if that has many: no caller can keep a probe out by holding connections.
    """

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], arrivals: Arrivals) -> None:
        async def begun(request: web.BaseRequest) -> web.StreamResponse:
            self._begin(request.protocol)
            return await handler(request)

        log = _RequestsLog(logging.getLogger(__name__))
        super().__init__(begun, logger=log, access_log=None, max_line_size=MAX_HEAD_BYTES, max_field_size=MAX_HEAD_BYTES)
        self._arrivals = arrivals
        self._counted: dict[web.RequestHandler, Counted] = {}
        self._ends: dict[web.RequestHandler, asyncio.TimerHandle] = {}  # of those whose request has come, oldest first

    def made(self, arrival: Arrival) -> asyncio.Protocol:
        """The protocol of a connection."""
        made: web.RequestHandler = self()
        self._counted[made] = Counted(self._arrivals, arrival)
        return made

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._counted[handler].opened(transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        timer = self._ends.pop(handler, None)
        if timer is not None:
            timer.cancel()
        self._counted.pop(handler).lost()
        super().connection_lost(handler, exc)

    def _begin(self, handler: web.RequestHandler) -> None:
        counted = self._counted.get(handler)
        if counted is None or handler in self._ends:  # it is gone, or begins a second one although its connection is for one
            return
        if len(self._ends) >= MAX_REQUESTS:
            same = [each for each in self._ends if self._counted[each].source == counted.source]
            self._end(same[0] if len(same) * RESERVE_SHARE >= MAX_REQUESTS else next(iter(self._ends)))
        self._ends[handler] = asyncio.get_running_loop().call_later(ANSWER_S, self._end, handler)
        counted.asked()

    def _end(self, handler: web.RequestHandler) -> None:
        self._ends.pop(handler).cancel()
        self._counted[handler].abort()
