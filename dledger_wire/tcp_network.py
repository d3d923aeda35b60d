"""The network seam over plain TCP (or TLS): length-prefixed frames, one connection a stream.

Owns the framing and the life of connections.  It carries what moves most bytes (docs/adr/0004) at a fraction of the CPU of an HTTP/2
stack; everything that foreign clients may call goes over gRPC.

    dialler: "DLTP" | length u32 | JSON {"method", "unary", "metadata"}        once, first
    both:    kind u8 | length u32 | payload                                    1 message, 2 end of this side, 3 error (ErrorDetail)

A connection lost before both sides ended is a broken stream.  Large messages are received straight into their own buffer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import ssl
import struct
from collections import deque
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from dledger_wire._pb import types_pb2
from dledger_wire.error_detail import from_detail, to_detail
from dledger_wire.errors import AddressInUseError, DeadlineExceededError, DledgerError, MessageTooLargeError, UnreachableError
from dledger_wire.rpc import StreamHandler, UnaryHandler

PREFACE = b"DLTP"
MAX_MESSAGE_BYTES = 64 << 20
MAX_OPENING_BYTES = 64 << 10
QUEUED_BYTES_LIMIT = 8 << 20  # received and not yet read: then the socket is left alone
WRITE_BUFFER_BYTES = 4 << 20
SCRATCH_BYTES = 128 << 10
CONNECT_TIMEOUT_S = 2.0

_FRAME = struct.Struct(">BI")
_MESSAGE, _END, _ERROR, _OPENING = 1, 2, 3, 0

_logger = logging.getLogger(__name__)


class _Stream(asyncio.BufferedProtocol):
    """One connection as a ByteStream, for either side."""

    def __init__(self, peer: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer = peer
        self.opening: asyncio.Future[dict[str, object]] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(SCRATCH_BYTES)
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_kind = _MESSAGE
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._paused_reading = False
        self._ended = False  # the other side said that it is done
        self._end_sent = False
        self._error: DledgerError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._expects_opening = False

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)  # type: ignore[union-attr]

    def expect_opening(self) -> None:
        self._expects_opening = True

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._large_filled += nbytes
            if self._large_filled == len(self._large):
                done, self._large = self._large, None
                self._frame(self._large_kind, done)
            return
        self._filled += nbytes
        self._parse()

    def _parse(self) -> None:
        """Take whole frames out of the scratch buffer; a message that does not fit gets a buffer of its own."""
        at = 0
        while self._expects_opening or self._filled - at >= _FRAME.size:
            if self._expects_opening:
                head, kind = 8, _OPENING
                if self._filled - at < head:
                    break
                length = int.from_bytes(self._scratch[at + 4 : at + 8], "big")
                if self._scratch[at : at + 4] != PREFACE or length > MAX_OPENING_BYTES:
                    return self._violate("no opening of ours")
            else:
                kind, length = _FRAME.unpack_from(self._scratch, at)
                head = _FRAME.size
                if kind not in (_MESSAGE, _END, _ERROR) or length > MAX_MESSAGE_BYTES:
                    return self._violate(f"frame of kind {kind} and {length} bytes")
            if self._filled - at - head < length:
                if head + length > SCRATCH_BYTES // 2:
                    self._start_large(kind, at + head, length)
                    return None
                break
            start = at + head
            at = start + length
            self._frame(kind, bytes(memoryview(self._scratch)[start:at]))
        if at:
            rest = self._filled - at
            self._scratch[:rest] = self._scratch[at : self._filled]
            self._filled = rest
        return None

    def _start_large(self, kind: int, start: int, length: int) -> None:
        self._large, self._large_kind = bytearray(length), kind
        self._large_filled = self._filled - start
        self._large[: self._large_filled] = memoryview(self._scratch)[start : self._filled]
        self._filled = 0

    def _frame(self, kind: int, payload: bytes | bytearray) -> None:
        if kind == _MESSAGE:
            self._queue.append(payload)  # type: ignore[arg-type]
            self._queued_bytes += len(payload)
            if self._queued_bytes > QUEUED_BYTES_LIMIT and not self._paused_reading and self._transport is not None:
                self._paused_reading = True
                self._transport.pause_reading()
        elif kind == _END:
            self._ended = True
        elif kind == _ERROR:
            try:
                self._error = from_detail(types_pb2.ErrorDetail.FromString(bytes(payload)))
            except DecodeError:
                self._error = DledgerError(f"{self.peer} answered with an unreadable error detail")
        else:
            self._open(payload)
        self._wake_reader()

    def _open(self, payload: bytes | bytearray) -> None:
        self._expects_opening = False
        try:
            opening = json.loads(payload)
            if not isinstance(opening, dict):
                raise ValueError("not an object")
        except ValueError:
            self._violate("an opening that is no JSON object")
            return
        if not self.opening.done():
            self.opening.set_result(opening)

    def _violate(self, what: str) -> None:
        _logger.warning("%s sent %s: connection closed", self.peer, what)
        self._filled = 0
        self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._error is None and not (self._ended and self._end_sent):
            self._error = UnreachableError(f"{self.peer}: connection lost", address=self.peer)
        if not self.opening.done():
            self.opening.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self.resume_writing()  # whoever is held back learns that the connection is lost
        self._wake_reader()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # -- the seam

    async def read(self) -> bytes | None:
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            if self._transport is None:
                raise UnreachableError(f"{self.peer}: connection lost", address=self.peer)
            self._reader = self._loop.create_future()
            await self._reader
        message = self._queue.popleft()
        self._queued_bytes -= len(message)
        if self._paused_reading and self._queued_bytes <= QUEUED_BYTES_LIMIT // 2 and self._transport is not None:
            self._paused_reading = False
            self._transport.resume_reading()
        return message

    async def write(self, message: bytes) -> None:
        if len(message) > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(f"message of {len(message)} bytes; expected at most {MAX_MESSAGE_BYTES}")
        while self._drained is not None:
            await asyncio.shield(self._drained)
        self._put(_MESSAGE, message)

    def _put(self, kind: int, payload: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._end_sent:
            raise self._error or UnreachableError(f"{self.peer}: connection lost", address=self.peer)
        head = _FRAME.pack(kind, len(payload))
        if len(payload) < 1 << 16:
            self._transport.write(b"".join([head, payload]))
        else:
            self._transport.write(head)
            self._transport.write(payload)

    async def close(self) -> None:
        self.finish(None)

    def finish(self, error: DledgerError | None) -> None:
        """Say that this side is done, with an error or without; closes the connection once both sides are."""
        if self._transport is None or self._end_sent:
            return
        if error is not None:
            self._put(_ERROR, to_detail(error).SerializeToString())
        self._put(_END, b"")
        self._end_sent = True

    def send_opening(self, opening: dict[str, object]) -> None:
        packed = json.dumps(opening).encode()
        if self._transport is not None:
            self._transport.write(PREFACE + struct.pack(">I", len(packed)) + packed)

    def close_after_flush(self) -> None:
        """Close once everything written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Dialled:
    """The dialler's end: connects at first use."""

    def __init__(self, channel: TcpChannel, method: str, metadata: Mapping[str, str], unary: bool) -> None:
        self._channel = channel
        opening: dict[str, object] = {"method": method, "unary": unary, "metadata": dict(metadata)}
        self._connecting: asyncio.Task[_Stream] = asyncio.get_running_loop().create_task(channel.dial(opening))
        self._connecting.add_done_callback(_retrieve)

    async def _stream(self) -> _Stream:
        return await asyncio.shield(self._connecting)

    async def read(self) -> bytes | None:
        stream = await self._stream()
        message = await stream.read()
        if message is None:
            self._channel.forget(stream)
        return message

    async def write(self, message: bytes) -> None:
        await (await self._stream()).write(message)

    async def close(self) -> None:
        try:
            stream = await self._stream()
        except UnreachableError:
            return
        await stream.close()

    def abort(self) -> None:
        if not self._connecting.done():
            self._connecting.cancel()
        elif not self._connecting.cancelled() and self._connecting.exception() is None:
            self._connecting.result().abort()


def _retrieve(task: asyncio.Task[_Stream]) -> None:
    if not task.cancelled():
        task.exception()


class TcpChannel:
    """Connections to one address."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._context = context
        self._streams: dict[_Stream, None] = {}
        self._closed = False

    async def dial(self, opening: dict[str, object]) -> _Stream:
        loop = asyncio.get_running_loop()
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, stream = await loop.create_connection(lambda: _Stream(self._address), host.strip("[]"), int(port), ssl=self._context)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{self._address}: {error or 'no answer'}", address=self._address) from None
        except asyncio.CancelledError:
            if self._closed:
                raise UnreachableError(f"{self._address}: channel closed", address=self._address) from None
            raise
        if self._closed:
            stream.abort()
            raise UnreachableError(f"{self._address}: channel closed", address=self._address)
        self._streams[stream] = None
        stream.closed.add_done_callback(lambda _: self._streams.pop(stream, None))
        stream.send_opening(opening)
        return stream

    def forget(self, stream: _Stream) -> None:
        """Both sides ended: the connection may go."""
        stream.finish(None)
        stream.close_after_flush()

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        self._check_open()
        stream = _Dialled(self, method, {}, unary=True)
        try:
            async with asyncio.timeout(timeout_s):
                await stream.write(request)
                await stream.close()
                answer = await stream.read()
        except TimeoutError:
            raise DeadlineExceededError(f"{self._address} {method}: no answer in time", address=self._address) from None
        finally:
            stream.abort()
        if answer is None:
            raise DledgerError(f"{self._address} {method}: ended without an answer")
        return answer

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> _Dialled:
        self._check_open()
        return _Dialled(self, method, metadata or {}, unary=False)

    def _check_open(self) -> None:
        if self._closed:
            raise UnreachableError(f"{self._address}: channel closed", address=self._address)

    async def close(self) -> None:
        self._closed = True
        for stream in list(self._streams):
            stream.abort()


class _Context:
    def __init__(self, peer: str, metadata: Mapping[str, str]) -> None:
        self.peer = peer
        self.metadata = metadata


class TcpServer:
    """Serves registered handlers on one address."""

    def __init__(self, address: str, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._context = context
        self._unary: dict[str, UnaryHandler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], _Stream] = {}

    @property
    def port(self) -> int:
        """The port listened on; the one asked for, or the free one found when that was 0."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server is not None else 0

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._unary[method] = handler

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._streams[method] = handler

    async def start(self) -> None:
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host.strip("[]"), int(port), ssl=self._context)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise AddressInUseError(f"cannot listen on {self._address}: {error.strerror}", address=self._address) from None
            raise

    def _accept(self) -> _Stream:
        stream = _Stream("a peer")
        stream.expect_opening()
        task = asyncio.get_running_loop().create_task(self._serve(stream))
        self._serving[task] = stream
        task.add_done_callback(lambda done: self._serving.pop(done, None))
        return stream

    async def _serve(self, stream: _Stream) -> None:
        try:
            opening = await stream.opening
        except asyncio.CancelledError:
            stream.abort()
            return
        error: DledgerError | None = None
        try:
            await self._handle(stream, opening)
        except DledgerError as refused:
            error = refused
        except Exception:  # a bug in one handler must not end the server; the caller learns that it was one
            _logger.exception("handler of %s failed", opening.get("method"))
            error = DledgerError("internal error")
        except asyncio.CancelledError:
            stream.abort()
            return
        await self._part(stream, error)

    async def _part(self, stream: _Stream, error: DledgerError | None) -> None:
        """End this side and leave closing to the dialler: closing while his last bytes are unread would reset what he has not read."""
        try:
            stream.finish(error)
            await stream.closed
        except UnreachableError:
            return
        except asyncio.CancelledError:
            stream.abort()

    async def _handle(self, stream: _Stream, opening: dict[str, object]) -> None:
        method, given = str(opening.get("method")), opening.get("metadata")
        metadata = {str(key).lower(): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
        context = _Context(stream.peer, metadata)
        if opening.get("unary"):
            handler = self._unary.get(method)
            request = await stream.read()
            if handler is not None and request is not None:
                await stream.write(await handler(request, context))
                return
        elif method in self._streams:
            await self._streams[method](stream, context)
            return
        raise DledgerError(f"{self._address}: method {method} is not served here")

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._serving)
        if tasks and grace_s > 0:
            await asyncio.wait(tasks, timeout=grace_s)
        for task, stream in list(self._serving.items()):
            task.cancel()
            stream.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()


class TcpNetwork:
    """Makes channels and servers over TCP; with contexts given, over TLS."""

    def __init__(self, *, client_context: ssl.SSLContext | None = None, server_context: ssl.SSLContext | None = None) -> None:
        self._client_context = client_context
        self._server_context = server_context

    def connect(self, address: str) -> TcpChannel:
        return TcpChannel(address, self._client_context)

    def serve(self, address: str) -> TcpServer:
        return TcpServer(address, self._server_context)
