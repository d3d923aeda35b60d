"""The serving side of the network seam over grpc.aio: generic handlers, and the life of the streams they serve.

A broken stream raises UnreachableError in its server handler from ``read`` or ``write``, and only later by cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from dledger_wire.errors import AddressInUseError, AuthenticationFailedError, BusyError, DledgerError, UnreachableError
from dledger_wire.rpc.delivery import Take, receive_by_reading
from dledger_wire.rpc.grpc_callers import GrpcCallers, Reading
from dledger_wire.rpc.grpc_errors import abort, cancelled_from_outside
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, StreamHandler, UnaryHandler
from dledger_wire.tasks import wait_up_to

SERVED_BYTES = 16 << 20  # of one message of a stock gRPC client; larger ones come by our protocol
BROKEN_STREAM_GRACE_S = 1.0  # how long the handler of a broken stream may go on before it is cancelled
MESSAGE_HEAD = 5  # bytes before a message in its stream
END_OR_BREAK_S = 0.03  # how long after the end of messages a break may still show

# Large frames and a window of several messages keep 256 KiB - 1 MiB messages moving.
COMMON_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", 4 << 20),
    ("grpc.http2.write_buffer_size", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.max_receive_message_length", SERVED_BYTES),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 300_000),
]

_logger = logging.getLogger(__name__)


class _ServerStream:
    """The acceptor's end.  ``broken`` is set when gRPC reports that the caller is gone."""

    def __init__(self, context: Any, peer: str, reading: Reading) -> None:
        self._context = context
        self._peer = peer
        self._reading = reading
        self._bytes = 0
        self._finished = False
        self.broken = asyncio.Event()

    async def read(self) -> bytes | None:
        if self.broken.is_set():
            raise self._gone()
        if self._finished:
            return None
        try:
            message = await self._context.read()
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise self._gone() from None
        except (grpc.aio.UsageError, grpc.aio.InternalError):
            raise self._gone() from None
        if message is not grpc.aio.EOF:
            size = MESSAGE_HEAD + len(message)
            self._bytes += size
            self._reading.read(size)
            return bytes(message)
        # A broken connection shows as end of messages first and as cancellation a moment later.
        await wait_up_to(END_OR_BREAK_S, self.broken.wait())
        if self.broken.is_set():
            raise self._gone()
        self._finished = True
        return None

    async def receive(self, take: Take) -> bool:
        return await receive_by_reading(self.read, take)

    def write_now(self, message: bytes) -> bool:
        return False  # gRPC's own write waits for its turn

    async def write(self, message: bytes) -> None:
        if self.broken.is_set():
            raise self._gone()
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise self._gone() from None
        except (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.BaseError):
            raise self._gone() from None

    async def close(self) -> None:
        """The acceptor's side finishes when its handler returns; closing early only stops further reads."""
        self._finished = True

    def returned(self) -> None:
        """Its handler has."""
        self._reading.returned(self._bytes)

    def _gone(self) -> UnreachableError:
        self.broken.set()
        return UnreachableError(f"{self._peer}: the caller's connection is gone")


def _unary_behaviour(method: str, handler: UnaryHandler, callers: GrpcCallers) -> Callable[[bytes, Any], Awaitable[bytes | None]]:
    async def serve(request: bytes, context: Any) -> bytes | None:
        try:
            return await handler(request, await callers.caller(method, context))
        except DledgerError as error:
            await abort(context, error)
        except Exception as error:  # supervisor of one request: a bug neither takes the server down nor passes silently
            _logger.exception("%s: handler failed", method, extra={"event": "handler_failed"})
            await abort(context, DledgerError(f"{method}: internal error {type(error).__name__}"))
        return None

    return serve


def _stream_behaviour(method: str, handler: StreamHandler, callers: GrpcCallers) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_requests: Any, context: Any) -> None:
        try:
            caller = await callers.caller(method, context)
        except DledgerError as refusal:
            await abort(context, refusal)
            return
        with contextlib.suppress(grpc.aio.UsageError, grpc.aio.InternalError):  # the caller has gone, which shows when it is read from
            await context.send_initial_metadata(())  # some clients wait for it before they send anything
        stream = _ServerStream(context, caller.peer, caller.reading)
        # A task of its own, so that a broken connection reaches the handler at its next read, as the contract says.
        task = asyncio.ensure_future(handler(stream, caller))
        revoked: list[AuthenticationFailedError] = []

        def revoke(error: AuthenticationFailedError) -> None:
            revoked.append(error)
            task.cancel()

        try:
            unwatch = callers.watch(caller, revoke)
        except BusyError as refusal:
            task.cancel()
            await abort(context, refusal)
            return
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            stream.broken.set()
            await _end_broken(task)
            _log_failure(method, task)
            raise
        finally:
            unwatch()
            stream.returned()
        if revoked and not stream.broken.is_set():
            await abort(context, revoked[0])
        if task.cancelled():
            await abort(context, UnreachableError(f"{method}: the handler was stopped"))
        error = task.exception()
        if isinstance(error, DledgerError):
            if not stream.broken.is_set():
                await abort(context, error)
        elif error is not None:
            _log_failure(method, task)
            await abort(context, DledgerError(f"{method}: internal error {type(error).__name__}"))

    return serve


async def _end_broken(task: asyncio.Future[None]) -> None:
    await asyncio.wait((task,), timeout=BROKEN_STREAM_GRACE_S)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=BROKEN_STREAM_GRACE_S)


def _log_failure(method: str, task: asyncio.Future[None]) -> None:
    if not task.done() or task.cancelled():
        return
    error = task.exception()
    if error is not None and not isinstance(error, DledgerError):
        _logger.error("%s: handler failed", method, exc_info=error, extra={"event": "handler_failed"})


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no stubs
    """Looks handlers up by the full method name."""

    def __init__(self) -> None:
        self.by_method: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self.by_method.get(handler_call_details.method)


class GrpcServer:
    """Serves registered handlers on one address: ``unix:`` and the path of a socket in a node."""

    def __init__(self, address: str, callers: GrpcCallers) -> None:
        self._address = address
        self._callers = callers
        self._handlers = _Handlers()
        self._server: grpc.aio.Server | None = None

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._handlers.by_method[method] = grpc.unary_unary_rpc_method_handler(_unary_behaviour(method, handler, self._callers))

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._handlers.by_method[method] = grpc.stream_stream_rpc_method_handler(_stream_behaviour(method, handler, self._callers))

    async def start(self) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers,))
        try:
            server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise AddressInUseError(f"{self._address}: cannot listen: {error}", address=self._address) from None
        await server.start()
        self._server = server

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None
