"""Calls within a process: the services of a server called by what runs beside them, without sockets.

Owns a server that listens nowhere, the channel to it, and both ends of its streams.  A message is passed on as it is, not copied.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError, UnreachableError
from dledger_wire.rpc.delivery import Delivery, Take
from dledger_wire.rpc.transport import ByteStream, StreamHandler, UnaryHandler
from dledger_wire.security.principal import ANONYMOUS, Principal

UNREAD_BYTES = 4 << 20  # on one side of a stream: a writer waits while there are more

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalCaller:
    """Implements ``CallContext``: ``peer`` is the one for whom the call is made."""

    peer: str = "local"
    principal: Principal = ANONYMOUS
    metadata: Mapping[str, str] = field(default_factory=dict)


class LocalServer:
    """Implements ``Server``; ``connect`` makes a channel to what is registered here."""

    def __init__(self) -> None:
        self._unary: dict[str, UnaryHandler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._running: set[asyncio.Task[None]] = set()

    def add_unary(self, method: str, handler: UnaryHandler) -> None:
        self._unary[method] = handler

    def add_stream(self, method: str, handler: StreamHandler) -> None:
        self._streams[method] = handler

    async def start(self) -> None:
        """There is nothing to listen on."""

    async def stop(self, grace_s: float) -> None:
        """End every stream, after giving it ``grace_s`` to end by itself."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def connect(self, caller: LocalCaller) -> LocalChannel:
        return LocalChannel(self, caller)

    async def call(self, method: str, request: bytes, caller: LocalCaller) -> bytes:
        handler = self._unary.get(method)
        if handler is None:
            raise InvalidArgumentError(f"{method} is not served here")
        return await handler(request, caller)

    def open(self, method: str, caller: LocalCaller) -> ByteStream:
        handler = self._streams.get(method)
        if handler is None:
            raise InvalidArgumentError(f"{method} is not served here")
        near, far = _LocalStream(), _LocalStream()
        near.other, far.other = far, near
        task = asyncio.get_running_loop().create_task(self._serve(handler, far, caller), name=f"local {method}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return near

    async def _serve(self, handler: StreamHandler, stream: _LocalStream, caller: LocalCaller) -> None:
        error: DledgerError | None = UnreachableError("the stream was ended")
        try:
            await handler(stream, caller)
            error = None
        except DledgerError as refusal:
            error = refusal.with_traceback(None)
        except Exception:
            _logger.exception("a stream: handler failed", extra={"event": "handler_failed"})
        finally:
            stream.leave(error)


class LocalChannel:
    """Implements ``Channel``."""

    def __init__(self, server: LocalServer, caller: LocalCaller) -> None:
        self._server, self._caller = server, caller

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._server.call(method, request, self._caller)
        except TimeoutError:
            raise DeadlineExceededError(f"no answer to {method} within {timeout_s:g} s") from None

    def open(self, method: str, *, metadata: Mapping[str, str] | None = None) -> ByteStream:
        caller = self._caller
        return self._server.open(method, LocalCaller(caller.peer, caller.principal, metadata or caller.metadata))

    async def close(self) -> None:
        """Streams end by themselves."""


class _LocalStream:
    """One end of a stream; ``other`` is the end that reads what is written here."""

    def __init__(self) -> None:
        self.other: _LocalStream = self
        self._queue: deque[bytes] = deque()
        self._unread_bytes = 0
        self._ended = False  # the other side has finished
        self._left = False  # this side has gone: what is sent to it is lost
        self._error: DledgerError | None = None
        self._waiting: asyncio.Future[None] | None = None  # a reader
        self._room: asyncio.Future[None] | None = None  # a writer on the other side
        self._delivery: Delivery | None = None

    def leave(self, error: DledgerError | None) -> None:
        """This side has gone; the other side reads ``error`` after what was sent before, or its end."""
        self._left = True
        self._queue.clear()
        self._take_out(self._unread_bytes)
        self.other._end(error)

    def _end(self, error: DledgerError | None) -> None:
        self._ended, self._error = True, self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        if self._delivery is not None:
            self._delivery.end()

    def _put(self, message: bytes) -> None:
        if self._delivery is not None and self._delivery.is_open:
            self._delivery.deliver(message)
            return
        self._queue.append(message)
        self._unread_bytes += len(message)
        self._wake()

    def _next(self) -> bytes:
        message = self._queue.popleft()
        self._take_out(len(message))
        return message

    def _take_out(self, size_bytes: int) -> None:
        self._unread_bytes -= size_bytes
        if self._room is not None and not self._room.done() and self._unread_bytes <= UNREAD_BYTES:
            self._room.set_result(None)

    def _is_over(self) -> bool:
        if self._ended and self._error is not None:
            raise self._error.with_traceback(None)
        return self._ended

    async def read(self) -> bytes | None:
        while not self._queue:
            if self._is_over():
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._next()

    async def receive(self, take: Take) -> bool:
        while True:
            while self._queue:
                if not take(self._next()):
                    return True
            if self._is_over():
                return False
            delivery = self._delivery = Delivery(take)
            try:
                await delivery.over
            finally:
                self._delivery = None
            if delivery.stopped:
                return True

    async def write(self, message: bytes) -> None:
        other = self.other
        while not other._left and other._unread_bytes > UNREAD_BYTES:
            other._room = asyncio.get_running_loop().create_future()
            await other._room
        if not self.write_now(message):
            raise (self._error or UnreachableError("the other side has left the stream")).with_traceback(None)

    def write_now(self, message: bytes) -> bool:
        other = self.other
        if other._left or other._unread_bytes > UNREAD_BYTES:
            return False
        other._put(message)
        return True

    async def close(self) -> None:
        self.other._end(None)
