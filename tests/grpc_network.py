"""The network seam over grpc.aio alone: what a stock gRPC client sees of a node, with nodes' own ``GrpcServer``.

Nodes and clients speak the protocol of ``dledger_wire.tcp``; only tests and benchmarks dial with gRPC.
A task cancelled inside ``read`` or ``write`` breaks its stream (grpc.aio's rule).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from dledger_wire._pb import types_pb2
from dledger_wire.errors import DeadlineExceededError, DledgerError, MessageTooLargeError, UnreachableError
from dledger_wire.rpc.delivery import Take, receive_by_reading
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.grpc_callers import GrpcCallers
from dledger_wire.rpc.grpc_errors import ERROR_KEY, cancelled_from_outside
from dledger_wire.rpc.grpc_server import COMMON_OPTIONS, GrpcServer
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES, ByteStream

CHANNEL_OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # in truth the limit of one connection attempt
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: bulk on one channel never waits behind another's
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # retries are ours: only we know what may be sent twice
]
_NOT_OF_THE_CONNECTION = frozenset(
    (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    )
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
            if cancelled_from_outside():
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
            if cancelled_from_outside():
                raise
            raise self._closed_here() from None

    async def close(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            return  # ended already
        except asyncio.CancelledError:
            if cancelled_from_outside():
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

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
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
            if cancelled_from_outside():
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


class GrpcNetwork:
    """Serves with gRPC at any address, while a node's ``GrpcServer`` listens on a Unix socket behind its port."""

    def connect(self, address: str) -> GrpcChannel:
        return GrpcChannel(address)

    def serve(self, address: str) -> GrpcServer:
        return GrpcServer(address, GrpcCallers())


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
    if code in _NOT_OF_THE_CONNECTION:
        return DledgerError(f"{address} {method}: {code.name} {text}")
    if "failed to connect to all addresses" in text:
        reason = text.rpartition(": ")[2].lower()
        return UnreachableError(f"{address}: {reason}", address=address, reason=reason)
    return UnreachableError(f"{address} {method}: {code.name} {text}", address=address)


def _to_wire(metadata: Mapping[str, str]) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata as gRPC takes it: printable ASCII only, so anything else goes as bytes under the same name with -bin."""
    return tuple(
        (key, value) if value.isascii() and value.isprintable() and value == value.strip() else (key + "-bin", value.encode())
        for key, value in metadata.items()
    )
