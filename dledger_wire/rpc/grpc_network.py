"""The network seam over grpc.aio: generic handlers, identity serializers, so that what travels is the caller's bytes.

Owns the mapping between gRPC statuses and typed errors, the channel and server options, and the life of streams.  An operating error
travels as an ErrorDetail in the trailing metadata ``dledger-error-bin``; a failure without one becomes UnreachableError,
DeadlineExceededError or a plain DledgerError.  Knows nothing of what the methods mean.

A stream that breaks tells its server handler by UnreachableError from ``read`` or ``write``, and only later by cancellation; a task
cancelled inside ``read`` or ``write`` breaks its stream (grpc.aio's rule).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from dledger_wire._pb import types_pb2
from dledger_wire.errors import (
    AddressInUseError,
    AuthenticationFailedError,
    DeadlineExceededError,
    DledgerError,
    MessageTooLargeError,
    UnreachableError,
)
from dledger_wire.rpc.delivery import Take, receive_by_reading
from dledger_wire.rpc.error_detail import from_detail, to_detail
from dledger_wire.rpc.grpc_callers import GrpcCallers
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, ByteStream, StreamHandler, UnaryHandler

UNIX = "unix:"  # an address that is the path of a socket
ERROR_KEY = "dledger-error-bin"
BROKEN_STREAM_GRACE_S = 1.0  # how long the handler of a broken stream may go on before it is cancelled
END_OR_BREAK_S = 0.03  # how long after the end of messages a break may still show

_logger = logging.getLogger(__name__)

Options = list[tuple[str, int | str]]

# Figures from benchmarks/grpc_options.py: large frames and a window of several messages keep 256 KiB - 1 MiB messages moving.
_COMMON_OPTIONS: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", 4 << 20),
    ("grpc.http2.write_buffer_size", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CHANNEL_OPTIONS: Options = [
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # in truth the limit of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: bulk on one channel never waits behind another's
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # retries are ours: only we know what may be sent twice
]
_SERVER_OPTIONS: Options = [
    *_COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 300_000),
]

# What a stock gRPC client sees; ours read the ErrorDetail.
_STATUS_OF_CODE = {
    "NOT_LEADER": grpc.StatusCode.FAILED_PRECONDITION,
    "BUSY": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "READ_ONLY": grpc.StatusCode.UNAVAILABLE,
    "NOT_READY": grpc.StatusCode.UNAVAILABLE,
    "NOT_YET": grpc.StatusCode.UNAVAILABLE,
    "OUTCOME_UNKNOWN": grpc.StatusCode.ABORTED,
    "UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "DEADLINE_EXCEEDED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "SERVICE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TOPIC_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "TOPIC_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "TOPIC_PERMISSION": grpc.StatusCode.PERMISSION_DENIED,
    "OFFSET_OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "STORAGE_DAMAGED": grpc.StatusCode.DATA_LOSS,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}

_NOT_A_CONNECTION_FAILURE = frozenset(
    (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    )
)


def _error_from_status(method: str, address: str, error: grpc.aio.AioRpcError) -> DledgerError:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            try:
                return from_detail(types_pb2.ErrorDetail.FromString(value))
            except DecodeError:
                return DledgerError(f"{address} {method}: answered with an unreadable error detail")
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"{address} {method}: no answer in time", address=address)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return MessageTooLargeError(f"{address} {method}: {text}")
    if code in (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    ):
        return DledgerError(f"{address} {method}: {code.name} {text}")
    if "failed to connect to all addresses" in text:
        reason = text.rpartition(": ")[2].lower()
        return UnreachableError(f"{address}: {reason}", address=address, reason=reason)
    return UnreachableError(f"{address} {method}: {code.name} {text}", address=address)


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _to_wire(metadata: Mapping[str, str]) -> tuple[tuple[str, str | bytes], ...]:
    # gRPC carries printable ASCII only; anything else goes as bytes under the same name with -bin.
    return tuple(
        (key, value) if value.isascii() and value.isprintable() and value == value.strip() else (key + "-bin", value.encode())
        for key, value in metadata.items()
    )


class _ClientStream:
    """The dialler's end."""

    def __init__(self, call: Any, method: str, address: str) -> None:
        self._call = call
        self._method = method
        self._address = address

    async def read(self) -> bytes | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _error_from_status(self._method, self._address, error) from None
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise self._closed_here() from None
        return None if message is grpc.aio.EOF else message

    async def receive(self, take: Take) -> bool:
        return await receive_by_reading(self.read, take)

    def write_now(self, message: bytes) -> bool:
        return False  # gRPC's own write waits for its turn

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _error_from_status(self._method, self._address, error) from None
        except asyncio.InvalidStateError:
            raise await self._why_ended() from None
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise self._closed_here() from None

    async def close(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            return  # ended already
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise

    def _closed_here(self) -> UnreachableError:
        return UnreachableError(f"{self._address} {self._method}: the channel was closed on this side", address=self._address)

    async def _why_ended(self) -> DledgerError:
        call = self._call
        if call.done() and not call.cancelled() and await call.code() is not grpc.StatusCode.OK:
            status = grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
            return _error_from_status(self._method, self._address, status)
        return UnreachableError(f"{self._address} {self._method}: the stream has ended", address=self._address)


class GrpcChannel:
    """A connection to one address, made on first use; gRPC reconnects it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self._address = address
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
        self._unary: dict[str, Any] = {}
        self._closed = False

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        self._check_open(method)
        callable_ = self._unary.get(method)
        if callable_ is None:
            callable_ = self._unary[method] = self._channel.unary_unary(method)
        try:
            answer: bytes = await callable_(request, timeout=max(timeout_s, 0.0))
        except grpc.aio.AioRpcError as error:
            raise _error_from_status(method, self._address, error) from None
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise UnreachableError(f"{self._address} {method}: the channel was closed on this side", address=self._address) from None
        return answer

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        self._check_open(method)
        call = self._channel.stream_stream(method)(metadata=_to_wire(metadata or {}))
        return _ClientStream(call, method, self._address)

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise UnreachableError(f"{self._address} {method}: the channel was closed on this side", address=self._address)


class _ServerStream:
    """The acceptor's end.  ``broken`` is set when gRPC reports that the caller is gone."""

    def __init__(self, context: Any, peer: str) -> None:
        self._context = context
        self._peer = peer
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
            if _cancelled_from_outside():
                raise
            raise self._gone() from None
        except (grpc.aio.UsageError, grpc.aio.InternalError):
            raise self._gone() from None
        if message is not grpc.aio.EOF:
            return bytes(message)
        # A broken connection shows as end of messages first and as cancellation a moment later.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_OR_BREAK_S):
                await self.broken.wait()
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
            if _cancelled_from_outside():
                raise
            raise self._gone() from None
        except (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.BaseError):
            raise self._gone() from None

    async def close(self) -> None:
        """The acceptor's side finishes when its handler returns; closing early only stops further reads."""
        self._finished = True

    def _gone(self) -> UnreachableError:
        self.broken.set()
        return UnreachableError(f"{self._peer}: the caller's connection is gone")


async def _abort(context: Any, error: DledgerError) -> None:
    metadata = ((ERROR_KEY, to_detail(error).SerializeToString()),)
    await context.abort(_STATUS_OF_CODE.get(error.code, grpc.StatusCode.INVALID_ARGUMENT), error.message[:200], metadata)


def _unary_behaviour(method: str, handler: UnaryHandler, callers: GrpcCallers) -> Callable[[bytes, Any], Awaitable[bytes | None]]:
    async def serve(request: bytes, context: Any) -> bytes | None:
        try:
            return await handler(request, await callers.caller(method, context))
        except DledgerError as error:
            await _abort(context, error)
        except Exception as error:  # supervisor of one request: a bug neither takes the server down nor passes silently
            _logger.exception("%s: handler failed", method, extra={"event": "handler_failed"})
            await _abort(context, DledgerError(f"{method}: internal error {type(error).__name__}"))
        return None

    return serve


def _stream_behaviour(method: str, handler: StreamHandler, callers: GrpcCallers) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(_requests: Any, context: Any) -> None:
        try:
            caller = await callers.caller(method, context)
        except DledgerError as refusal:
            await _abort(context, refusal)
            return
        stream = _ServerStream(context, caller.peer)
        # A task of its own, so that a broken connection reaches the handler at its next read, as the contract says.
        task = asyncio.ensure_future(handler(stream, caller))
        revoked: list[AuthenticationFailedError] = []

        def revoke(error: AuthenticationFailedError) -> None:
            revoked.append(error)
            task.cancel()

        unwatch = callers.watch(caller, revoke)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            stream.broken.set()
            await _end_broken(task)
            _log_failure(method, task)
            raise
        finally:
            unwatch()
        if revoked and not stream.broken.is_set():
            await _abort(context, revoked[0])
        if task.cancelled():
            await _abort(context, UnreachableError(f"{method}: the handler was stopped"))
        error = task.exception()
        if isinstance(error, DledgerError):
            if not stream.broken.is_set():
                await _abort(context, error)
        elif error is not None:
            _log_failure(method, task)
            await _abort(context, DledgerError(f"{method}: internal error {type(error).__name__}"))

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
    """Serves registered handlers on one address; ``address`` has the real port after ``start`` (port 0 takes a free one)."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ServerCredentials | None,
        configure: Callable[[grpc.aio.Server], None] | None,
        callers: GrpcCallers,
    ) -> None:
        self.address = address
        self._callers = callers
        self._credentials = credentials
        self._configure = configure
        self._handlers = _Handlers()
        self._server: grpc.aio.Server | None = None

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._handlers.by_method[method] = grpc.unary_unary_rpc_method_handler(_unary_behaviour(method, handler, self._callers))

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._handlers.by_method[method] = grpc.stream_stream_rpc_method_handler(_stream_behaviour(method, handler, self._callers))

    async def start(self) -> None:
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._handlers,))
        if self._configure is not None:
            self._configure(server)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self.address)
            else:
                port = server.add_secure_port(self.address, self._credentials)
        except RuntimeError:
            raise AddressInUseError(f"{self.address}: cannot listen: {_why_not_bound(self.address)}", address=self.address) from None
        if not self.address.startswith(UNIX):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await server.start()
        self._server = server

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


def _why_not_bound(address: str) -> str:
    """gRPC hides the reason of a failed bind; a plain socket tells it."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, proto, _name, target = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return "address already in use"


class GrpcNetwork:
    """The real network.  ``configure_server`` may add services to every server before it starts (health, reflection)."""

    def __init__(
        self,
        *,
        channel_credentials: grpc.ChannelCredentials | None = None,
        server_credentials: grpc.ServerCredentials | None = None,
        configure_server: Callable[[grpc.aio.Server], None] | None = None,
        callers: GrpcCallers | None = None,
    ) -> None:
        self._channel_credentials = channel_credentials
        self._server_credentials = server_credentials
        self._configure_server = configure_server
        self._callers = callers or GrpcCallers()

    def connect(self, address: str) -> GrpcChannel:
        return GrpcChannel(address, self._channel_credentials)

    def serve(self, address: str) -> GrpcServer:
        return GrpcServer(address, self._server_credentials, self._configure_server, self._callers)
