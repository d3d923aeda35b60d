"""How many bytes of calls an HTTP/2 connection has brought that the server behind it may still hold.

Owns the count, by the heads of frames of both directions (RFC 9113, section 4.1): a call counts from its first byte until its stream has
ended, less what its handler has read of it.  Looks into no frame.
"""

from __future__ import annotations

from collections.abc import Callable

HEAD_BYTES = 9
PREFACE_BYTES = 24
DATA, HEADERS, RST_STREAM = 0x0, 0x1, 0x3
END_STREAM = 0x1


class _Direction:
    """Finds frames in the bytes of one side.  ``brought`` gets each stream with the bytes of data that came, ``ended`` streams at whose
    frames this side says nothing more."""

    def __init__(self, skip: int, brought: Callable[[int, int], None], ended: Callable[[int, bool], None]) -> None:
        self._left = skip  # bytes until the next head
        self._head = b""
        self._kind = self._stream = -1
        self._ends = False
        self._brought, self._ended = brought, ended

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                at += step
                self._left -= step
                if self._kind == DATA:
                    self._brought(self._stream, step)
            else:
                taken = data[at : at + HEAD_BYTES - len(self._head)]
                at += len(taken)
                self._head += taken
                if len(self._head) < HEAD_BYTES:
                    return
                self._begin(self._head)
                self._head = b""
            if not self._left and self._ends:
                self._ends = False
                self._ended(self._stream, self._kind == RST_STREAM)

    def _begin(self, head: bytes) -> None:
        self._left, self._kind = int.from_bytes(head[:3], "big"), head[3]
        self._stream = int.from_bytes(head[5:], "big") & 0x7FFF_FFFF
        self._ends = self._kind == RST_STREAM or (self._kind in (DATA, HEADERS) and bool(head[4] & END_STREAM))


class Http2Bytes:
    """Of one connection."""

    def __init__(self) -> None:
        self._streams: dict[int, int] = {}  # bytes of calls that are not over
        self._sum = 0
        self._read = 0  # of these, by handlers
        self._read_before = 0  # of that, by handlers that have returned, whose streams are still to end
        self._asking = _Direction(PREFACE_BYTES, self._brought, self._caller_ended)
        self._answering = _Direction(0, lambda stream, size: None, self._over)

    @property
    def held(self) -> int:
        """Bytes that the server may hold."""
        return max(0, self._sum - self._read)

    def asked(self, data: bytes) -> None:
        """The caller sent this."""
        self._asking.feed(data)

    def answered(self, data: bytes) -> None:
        """The server sent this."""
        self._answering.feed(data)

    def read(self, size: int) -> None:
        """A handler has read so much of a stream that goes on."""
        self._read += size

    def returned(self, size: int) -> None:
        """A handler that read so much in all has returned."""
        self._read_before += size

    def _brought(self, stream: int, size: int) -> None:
        self._streams[stream] = self._streams.get(stream, 0) + size
        self._sum += size

    def _caller_ended(self, stream: int, is_reset: bool) -> None:
        if is_reset:  # else the answer is still to come
            self._over(stream, True)

    def _over(self, stream: int, _is_reset: bool) -> None:
        size = self._streams.pop(stream, 0)
        self._sum -= size
        settled = min(size, self._read_before)
        self._read_before -= settled
        self._read -= settled
        if not self._streams:
            self._read = self._read_before = 0
