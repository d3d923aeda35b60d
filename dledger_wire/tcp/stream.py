"""A byte stream that has a connection of its own.

    1 message, 2 end of this side, 3 error (ErrorDetail)

A connection lost before both sides ended is a broken stream.  The dialler closes the connection once both sides have ended: closing while
the dialler's last bytes are unread would reset what it has not read yet.
"""

from __future__ import annotations

import asyncio
from collections import deque

from google.protobuf.message import DecodeError

from dledger_wire._pb import types_pb2
from dledger_wire.errors import DledgerError, MessageTooLargeError, UnreachableError
from dledger_wire.rpc.delivery import Delivery, Take
from dledger_wire.rpc.error_detail import from_detail, to_detail
from dledger_wire.rpc.stored import StoredBytes
from dledger_wire.rpc.transport import MAX_MESSAGE_BYTES
from dledger_wire.tcp.connection import END, ERROR, MESSAGE, Connection, Receiver, fresh
from dledger_wire.tcp.stored_frame import put_stored, sends_stored

MESSAGE_OVERHEAD_BYTES = 64  # the object and its place in the queue
LINGER_S = 5.0  # how long the acceptor waits for the dialler to close


class Stream(Receiver):
    """One connection as a ByteStream, for either side."""

    def __init__(self, connection: Connection, *, dialled: bool) -> None:
        self.connection = connection
        self._dialled = dialled
        self._queue: deque[bytes] = deque()
        self._since: deque[float] = deque()  # when each of them began to come
        self.since_s = 0.0  # see ``TimedStream``
        self._queued_bytes = 0  # with what keeping each of them takes: empty messages take memory, too
        self._last_bytes = 0  # of the message that ``receive`` ended with: it waits for what its reader waits for
        self._paused_reading = False
        self._parted = False  # the reader has finished
        self._ended = False  # the other side said that it is done
        self._end_sent = False
        self._error: DledgerError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._delivery: Delivery | None = None

    # -- the connection's receiver

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == MESSAGE:
            if self._parted:
                return
            if self._delivery is not None and self._delivery.is_open:
                self.since_s = self.connection.frame_since_s
                self._delivery.deliver(payload)
                if self._delivery.stopped:
                    self._count_last(payload)
                return
            self._queue.append(payload)
            self._since.append(self.connection.frame_since_s or self.connection.last_received_s)
            self._queued_bytes += MESSAGE_OVERHEAD_BYTES + len(payload)
            self.connection.took_in(MESSAGE_OVERHEAD_BYTES + len(payload))
            if self._queued_bytes > self.connection.waiting_bytes and not self._paused_reading:
                self._paused_reading = True
                self.connection.pause_reading()
        elif kind == END:
            self._ended = True
            self._close_if_over()
        elif kind == ERROR:
            self._error = error_of(payload, self.connection.peer)
        else:
            self.connection.violate(f"a frame of kind {kind} on a stream")
        self._wake_reader()

    def lost(self) -> None:
        if self._error is None and not (self._ended and self._end_sent):
            self._error = self.connection.gone()
        self._wake_reader()

    def shed(self) -> None:
        self.leave()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if self._delivery is not None:
            self._delivery.end()

    # -- the seam

    async def read(self) -> bytes | None:
        while not self._queue:
            if self._is_over():
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._next()

    async def receive(self, take: Take) -> bool:
        self._last_taken()
        while True:
            while self._queue:
                if not take(message := self._next()):
                    self._count_last(message)
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

    def _is_over(self) -> bool:
        """Whether the other side has finished.  Raises why nothing more can come."""
        if self._error is not None:
            raise fresh(self._error)
        if not self._ended and self.connection.transport is None:
            raise self.connection.gone()
        return self._ended

    def _next(self) -> bytes:
        message, self.since_s = self._queue.popleft(), self._since.popleft()
        self._queued_bytes -= MESSAGE_OVERHEAD_BYTES + len(message)
        self.connection.took_in(-MESSAGE_OVERHEAD_BYTES - len(message))
        if self._paused_reading and self._queued_bytes <= self.connection.waiting_bytes // 2:
            self._paused_reading = False
            self.connection.resume_reading()
        return message

    def _count_last(self, message: bytes) -> None:
        if not self._parted:
            self._last_bytes = len(message)
            self.connection.taker_waits(on=True)
            self.connection.took_in(len(message))

    def _last_taken(self) -> None:
        size, self._last_bytes = self._last_bytes, 0
        if size:
            self.connection.taker_waits(on=False)
            self.connection.took_in(-size)

    async def write(self, message: bytes) -> None:
        await self._ready_for(len(message))
        self.connection.put(MESSAGE, message)

    async def _ready_for(self, size: int) -> None:
        """Wait until a message of that size may be written.  Raises why it never may."""
        if size > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(f"message of {size} bytes; expected at most {MAX_MESSAGE_BYTES}")
        connection = self.connection
        if connection.held_back is not None:
            await connection.drained()
        if self._end_sent or not connection.is_open:
            raise fresh(self._error) if self._error is not None else connection.gone()

    def write_now(self, message: bytes) -> bool:
        connection = self.connection
        if len(message) > MAX_MESSAGE_BYTES or connection.held_back is not None or self._end_sent or not connection.is_open:
            return False
        connection.put(MESSAGE, message)
        return True

    def recall(self) -> bool:
        """See ``RecallingStream``.  What encryption has taken in cannot be counted: there it never is so."""
        connection = self.connection
        if connection.is_encrypted or not connection.is_open or not connection.unsent or not connection.shut():
            return False
        connection.abort()
        return True

    @property
    def sends_stored(self) -> bool:
        return sends_stored(self.connection)

    async def write_stored(self, head: bytes, stored: StoredBytes) -> None:
        await self._ready_for(len(head) + stored.size)
        await put_stored(self.connection, MESSAGE, head, stored)

    async def close(self) -> None:
        self.finish(None)

    def finish(self, error: DledgerError | None) -> None:
        """Say that this side is done, with an error or without."""
        connection = self.connection
        if self._end_sent or not connection.is_open:
            return
        if error is not None:
            connection.put(ERROR, to_detail(error).SerializeToString())
        connection.put(END, b"")
        self._end_sent = True
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._dialled and self._ended and self._end_sent:
            self.connection.close_after_flush()

    def leave(self) -> None:
        """No reader is left: what waits is dropped, and what still arrives."""
        self._parted = True
        self._last_taken()
        self._queue.clear()
        self._since.clear()
        self.connection.took_in(-self._queued_bytes)
        self._queued_bytes = 0
        if self._paused_reading:
            self._paused_reading = False
            self.connection.resume_reading()

    @property
    def may_bring_more(self) -> bool:
        """Whether messages wait to be read, or may still come."""
        return bool(self._queue) or self.connection.transport is not None

    async def part(self, error: DledgerError | None) -> None:
        """The acceptor's end of it: nothing more is read, and closing is left to the dialler, for a while."""
        self.leave()
        try:
            self.finish(error)
            async with asyncio.timeout(LINGER_S):
                await asyncio.shield(self.connection.closed)
        except (UnreachableError, TimeoutError):
            pass
        finally:
            self.connection.abort()


def error_of(payload: bytes, peer: str) -> DledgerError:
    """The error that came as an ErrorDetail."""
    try:
        return from_detail(types_pb2.ErrorDetail.FromString(bytes(payload)))
    except DecodeError:
        return DledgerError(f"{peer} answered with an unreadable error detail")
