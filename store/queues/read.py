"""Reading messages of a queue: from a range of offsets to chunks of raw frames.

Owns the way from queue units to log ranges: neighbouring frames are read as one range, ranges with small gaps between them in one read.
Nothing loops over messages; work goes by chunk and by run of adjacent frames.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_wire.frames.frame_layout import MIN_FRAME_SIZE, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, SYS_FLAG_AT
from dledger_wire.rpc.stored import StoredBytes
from dledger_wire.status import SysFlag
from store.log_view import ReadableLog
from store.queues.queue_files import Units

MAX_SPAN_BYTES = 4 << 20
READS_AT_ONCE = 16
MAX_PIECES = 256
MAX_IN_PLACE_BYTES = 16 << 20  # gaps too
_STORE_TIME_AT = 56
HEAD_BYTES = 36  # of a frame, that is checked: total size .. physical offset


class Given(Enum):
    """How a reader takes frames; each of the others is given ``BYTES`` where that is better or the only way."""

    BYTES = auto()
    STORED = auto()  # out of the log's files, by a connection that can
    PLACES = auto()  # it reads the files itself


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a log file: its full path, where they begin in it, how many, and the log position of the first."""

    file: str
    at: int
    size: int
    pos: int


@dataclass(slots=True)
class Chunk:
    """Part of an answer: frames back to back in ``frames``, their sizes as big-endian u32.

    ``offsets`` is empty when the messages are contiguous from ``first_offset``, else big-endian u64.  Reading goes on at ``next_offset``.
    ``looked_at``: what a filter cost, in bytes read or as many that take as long.  ``first_pos``: of the first frame that was looked at,
    in the log.  ``pieces``: where to read for the frames, for a reader on this machine, which finds them there at ``places`` (log
    positions, big-endian u64); then ``frames`` is empty.  It is empty too when the frames are ``stored``, to be sent without being read.
    """

    first_offset: int
    next_offset: int
    count: int
    sizes: bytes
    frames: list[bytes | memoryview] = field(default_factory=list)
    frames_bytes: int = 0
    offsets: bytes = b""
    looked_at: int = 0
    first_pos: int = 0
    pieces: list[LogPiece] = field(default_factory=list)
    places: bytes = b""
    stored: StoredBytes | None = None


class FrameMismatchError(Exception):
    """The log does not hold the frame a queue unit promises; caught inside the store, which rebuilds the queue's file."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no such frame for queue offset {offset}")
        self.offset = offset


def fit(sizes: npt.NDArray[Any], max_bytes: int) -> int:
    """How many leading messages fit ``max_bytes``; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), max_bytes, side="right")))


def frames_in_place(log: ReadableLog, units: Units, offsets: npt.NDArray[np.int64], gap_bytes: int) -> tuple[list[LogPiece], int]:
    """Where to read for the first frames of ``units``, and for how many of them; (none, 0) when some may not be in the files yet.

    Frames with small gaps between them are one piece; the number of pieces and what is read in all are bounded.
    """
    starts = units["pos"].astype(np.int64)
    ends = starts + units["size"]
    check_places(log, starts, ends, offsets)
    if int(ends[-1]) > log.durable_end():
        return [], 0
    segments = np.searchsorted([segment.start_pos for segment in log.segments], starts, side="right")
    gaps = starts[1:] - ends[:-1]
    apart = (gaps > gap_bytes) | (segments[1:] != segments[:-1])
    read = np.cumsum(np.concatenate((ends[:1] - starts[:1], (ends - starts)[1:] + np.where(apart, 0, gaps))))
    taken = max(1, int(np.searchsorted(read, MAX_IN_PLACE_BYTES, side="right")))
    firsts = np.concatenate(([0], np.flatnonzero(apart[: taken - 1]) + 1))
    if len(firsts) > MAX_PIECES:
        taken, firsts = int(firsts[MAX_PIECES]), firsts[:MAX_PIECES]
    lasts = np.concatenate((firsts[1:], [taken])) - 1
    pieces = []
    for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
        file, first_pos = log.file_of(start)
        pieces.append(LogPiece(file, start - first_pos, end - start, start))
    return pieces, taken


def runs_of_frames(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of the first and of the last frame of each run: frames with nothing between them."""
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    return np.concatenate(([0], breaks)), np.concatenate((breaks - 1, [len(starts) - 1]))


async def read_frames(log: ReadableLog, units: Units, offsets: npt.NDArray[np.int64], gap_bytes: int) -> list[bytes | memoryview]:
    """The frames of ``units`` in order, as few buffers.  FrameMismatchError when one is not where its unit says."""
    starts = units["pos"].astype(np.int64)
    ends = starts + units["size"]
    check_places(log, starts, ends, offsets)
    run_firsts, run_lasts = runs_of_frames(starts, ends)
    run_starts, run_ends = starts[run_firsts].tolist(), ends[run_lasts].tolist()
    spans = _spans(run_starts, run_ends, gap_bytes, [segment.start_pos for segment in log.segments])
    buffers: list[bytes | memoryview] = []
    async for (at, past), data in _read_spans(log, run_starts, run_ends, spans):
        low = run_starts[at]
        first, last = int(run_firsts[at]), int(run_lasts[past - 1]) + 1
        _check_frames(data, low, starts[first:last], units["size"][first:last], offsets[first:last])
        if past == at + 1:
            buffers.append(data)
        else:
            view = memoryview(data)
            buffers += [view[start - low : end - low] for start, end in zip(run_starts[at:past], run_ends[at:past], strict=True)]
    return buffers


async def _read_spans(
    log: ReadableLog, starts: Sequence[int], ends: Sequence[int], spans: Sequence[tuple[int, int]]
) -> AsyncIterator[tuple[tuple[int, int], bytes]]:
    """The bytes of every span, in order; scattered ones are read side by side, since each is a wait of its own."""
    at = 0
    while at < len(spans):
        end, size = at, 0
        while end < len(spans) and end - at < READS_AT_ONCE and (end == at or size < MAX_SPAN_BYTES):
            size += ends[spans[end][1] - 1] - starts[spans[end][0]]
            end += 1
        reads = [log.read_bytes(starts[first], ends[last - 1] - starts[first]) for first, last in spans[at:end]]
        found = [await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads)
        for span, data in zip(spans[at:end], found, strict=True):
            yield span, data
        at = end


def _spans(starts: Sequence[int], ends: Sequence[int], gap_bytes: int, segment_starts: Sequence[int]) -> list[tuple[int, int]]:
    """(first run, one past the last run) of what is read in one piece."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(starts):
        end = _span(starts, ends, at, gap_bytes, segment_starts)
        spans.append((at, end))
        at = end
    return spans


def _span(starts: Sequence[int], ends: Sequence[int], at: int, gap_bytes: int, segment_starts: Sequence[int]) -> int:
    """One past the last run that is read together with run ``at``."""
    low = starts[at]
    segment = bisect_right(segment_starts, low)
    limit = segment_starts[segment] if segment < len(segment_starts) else None
    end = at + 1
    while end < len(starts):
        gap = starts[end] - ends[end - 1]
        if not 0 <= gap <= gap_bytes or ends[end] - low > MAX_SPAN_BYTES or (limit is not None and ends[end] > limit):
            break
        end += 1
    return end


def check_places(log: ReadableLog, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> None:
    """A damaged unit must not send the reader anywhere: places are in the log, in order, and frames have a possible size."""
    bad = (ends - starts < MIN_FRAME_SIZE) | (starts < log.first_pos) | (ends > log.end_pos)
    bad[1:] |= starts[1:] < ends[:-1]
    if bad.any():
        raise FrameMismatchError(int(offsets[bad.argmax()]))


def _check_frames(data: bytes, low: int, starts: npt.NDArray[np.int64], sizes: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> None:
    """Each frame says which size, queue offset and place it has; a unit that points anywhere else is damaged.

    A run whose inner frames were misplaced would have a wrong first or last frame, or a break in between, so those are compared.
    """
    edges = np.ones(len(starts), np.bool_)
    edges[1:-1] = (starts[1:-1] != starts[:-2] + sizes[:-2]) | (starts[2:] != starts[1:-1] + sizes[1:-1])
    at = np.flatnonzero(edges)
    check_heads(np.frombuffer(data, np.uint8)[(starts[at] - low)[:, None] + np.arange(HEAD_BYTES)], starts[at], sizes[at], offsets[at])


def check_heads(
    heads: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[Any], offsets: npt.NDArray[np.int64]
) -> None:
    """Compare the first ``HEAD_BYTES`` of frames with what their units say.  FrameMismatchError."""
    total = heads[:, :4].copy().view(">i4").ravel()
    places = heads[:, QUEUE_OFFSET_AT : PHYSICAL_OFFSET_AT + 8].copy().view(">i8")
    bad = (total != sizes) | (places[:, 0] != offsets) | (places[:, 1] != starts)
    if bad.any():
        raise FrameMismatchError(int(offsets[bad.argmax()]))


async def store_time(log: ReadableLog, unit: Any, offset: int) -> int:
    """The store time in the frame of one unit."""
    pos, size = int(unit["pos"]), int(unit["size"])
    starts, ends = np.array([pos]), np.array([pos + size])
    check_places(log, starts, ends, np.array([offset]))
    head = await log.read_bytes(pos, min(size, 80))
    if int.from_bytes(head[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big") != offset:
        raise FrameMismatchError(offset)
    at = _STORE_TIME_AT + (12 if head[SYS_FLAG_AT + 3] & SysFlag.BORN_HOST_V6 else 0)
    return int.from_bytes(head[at : at + 8], "big")
