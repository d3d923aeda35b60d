"""The dialling side of the network seam over grpc.aio: a channel, its calls and its streams.

A task cancelled inside ``read`` or ``write`` breaks its stream (grpc.aio's rule).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from dledger_wire.errors import DledgerError, UnreachableError
from dledger_wire.rpc.delivery import Take, receive_by_reading
from dledger_wire.rpc.grpc_errors import cancelled_from_outside, error_from_status
from dledger_wire.rpc.grpc_metadata import to_wire
from dledger_wire.rpc.grpc_options import CHANNEL_OPTIONS
from dledger_wire.rpc.transport import ByteStream


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
            raise error_from_status(self._method, self._address, error) from None
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
            raise error_from_status(self._method, self._address, error) from None
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
            return error_from_status(self._method, self._address, status)
        return UnreachableError(f"{self._address} {self._method}: the stream has ended", address=self._address)


class GrpcChannel:
    """A connection to one address, made on first use; gRPC reconnects it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self._address = address
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
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
            raise error_from_status(method, self._address, error) from None
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise UnreachableError(f"{self._address} {method}: the channel was closed on this side", address=self._address) from None
        return answer

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        self._check_open(method)
        call = self._channel.stream_stream(method)(metadata=to_wire(metadata or {}))
        return _ClientStream(call, method, self._address)

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise UnreachableError(f"{self._address} {method}: the channel was closed on this side", address=self._address)
