"""Walking one segment file from a position on, entry by entry, checking everything.

Owns the verdict "what stands here": a whole entry that follows the one before, the segment's filler, nothing (zeros), or bad bytes.
What that means (a torn tail, damage) is for recovery and verify to say.  Reads in large pieces, holds one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from dledger.core.types import EntryKind
from dledger.log.entry import Header, header_fault, link_fault
from dledger.log.index_units import EntryPlace
from dledger.runtime.env import Buffer, File, read_unless_lost
from dledger_wire.checksum import crc32c
from dledger_wire.formats import ENTRY
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER, FILLER_SIZE, MAGIC_FILLER, MAX_SEGMENT_BYTES

FIRST_PIECE_BYTES = 4096


class StopKind(Enum):
    """Why a walk ended."""

    FILLER = "filler"
    ZEROS = "zeros"
    BAD = "bad"


@dataclass(slots=True)
class Found:
    """A whole entry."""

    place: EntryPlace
    chain_crc: int


@dataclass(slots=True)
class Stop:
    """No entry at ``pos``.  ``end_pos`` is where a filler says the segment ends.

    ``named`` is the entry that a whole header there names, with a chain checksum that follows the entry before; its body is bad.
    ``newer`` is the magic of an entry that follows the one before just as well, and that only a newer release knows.
    """

    kind: StopKind
    pos: int
    reason: str
    end_pos: int = 0
    named: EntryPlace | None = None
    newer: int = 0


class PieceReader:
    """Reads a segment file through one piece, small at first (often one header is all that is asked for), then large."""

    def __init__(self, file: File, start_pos: int, piece_bytes: int) -> None:
        self._file = file
        self._start_pos = start_pos
        self._piece_bytes = piece_bytes
        self._next_bytes = min(FIRST_PIECE_BYTES, piece_bytes)
        self._piece = memoryview(b"")
        self._piece_pos = start_pos

    async def view(self, pos: int, size: int) -> memoryview:
        """``size`` bytes at ``pos`` of the log, fewer only at the end of the file."""
        at = pos - self._piece_pos
        if at < 0 or at + size > len(self._piece):
            data = await self._read(pos - self._start_pos, size)
            self._piece, self._piece_pos, at = memoryview(data), pos, 0
        return self._piece[at : at + size]

    async def _read(self, at: int, size: int) -> bytes:
        """A whole piece, or just what is asked for where a sector somewhere behind it cannot be read."""
        wanted = max(size, self._next_bytes)
        try:
            data = await self._file.pread(at, wanted)
        except OSError:
            self._next_bytes = min(FIRST_PIECE_BYTES, self._piece_bytes)
            if wanted == size:
                raise
            return await self._file.pread(at, size)
        self._next_bytes = min(self._next_bytes * 8, self._piece_bytes)
        return data


class SegmentWalk:
    """A walk along one segment.  ``chain_crc`` None: not known, the next entry's is taken as it stands."""

    def __init__(
        self, file: File, start_pos: int, end_limit: int | None, piece_bytes: int, *, pos: int, index: int, term: int, chain_crc: int | None
    ) -> None:
        self._reader = PieceReader(file, start_pos, piece_bytes)
        self._end_limit = start_pos + MAX_SEGMENT_BYTES if end_limit is None else end_limit
        self._sealed = end_limit is not None
        self.pos = pos
        self.index = index
        self.term = term
        self.chain_crc = chain_crc

    async def next(self) -> Found | Stop:
        """The entry at the present position, and step behind it; or why there is none."""
        try:
            head = await self._reader.view(self.pos, ENTRY_HEADER_SIZE)
            if len(head) < FILLER_SIZE:
                return Stop(StopKind.BAD if any(head) else StopKind.ZEROS, self.pos, f"{len(head)} bytes before the end of the file")
            magic, size = FILLER.unpack_from(head)
            if magic == MAGIC_FILLER:
                return self._filler(size)
            if magic == 0 and not any(head):
                return Stop(StopKind.ZEROS, self.pos, "nothing written")
            return await self._entry(head)
        except OSError as error:
            return Stop(StopKind.BAD, self.pos, f"cannot be read: {error.strerror}")

    def _filler(self, size: int) -> Stop:
        end_pos = self.pos + size
        if size < FILLER_SIZE or (self._sealed and end_pos != self._end_limit):
            return Stop(
                StopKind.BAD, self.pos, f"filler of {size} bytes, expected {self._end_limit - self.pos}" if self._sealed else "bad filler"
            )
        return Stop(StopKind.FILLER, self.pos, "end of segment", end_pos)

    async def _entry(self, head: memoryview) -> Found | Stop:
        if len(head) < ENTRY_HEADER_SIZE:
            return Stop(StopKind.BAD, self.pos, f"an entry header cut after {len(head)} bytes")
        header = Header.unpack(head)
        fault = header_fault(header, self._end_limit - self.pos) or link_fault(
            header, head, self.index, self.term, self.pos, self.chain_crc
        )
        if fault is not None:
            follows = self.chain_crc is not None and not link_fault(header, head, self.index, self.term, self.pos, self.chain_crc)
            return Stop(StopKind.BAD, self.pos, fault, newer=header.magic if follows and header.magic > ENTRY.current else 0)
        place = EntryPlace(header.index, header.term, self.pos, header.size, EntryKind(header.magic))
        named = None if self.chain_crc is None else place
        try:
            body = (await self._reader.view(self.pos, header.size))[ENTRY_HEADER_SIZE:]
        except OSError as error:
            return Stop(StopKind.BAD, self.pos, f"the body cannot be read: {error.strerror}", named=named)
        if len(body) < header.body_size:
            return Stop(StopKind.BAD, self.pos, f"the body ends after {len(body)} of {header.body_size} bytes", named=named)
        if crc32c(body) != header.body_crc:
            return Stop(StopKind.BAD, self.pos, "the body's checksum does not match", named=named)
        self.step_to(place.end_pos, header.index + 1, header.term, header.chain_crc)
        return Found(place, header.chain_crc)

    def step_to(self, pos: int, index: int, term: int, chain_crc: int | None) -> None:
        """Go on elsewhere (behind damage, by what the index units say)."""
        self.pos, self.index, self.term, self.chain_crc = pos, index, term, chain_crc


def last_nonzero(data: Buffer) -> int:
    """One past the last byte of ``data`` that is not zero; 0 when there is none."""
    array = np.frombuffer(data, np.uint8)
    if not array.any():
        return 0
    return len(array) - int(array[::-1].astype(np.bool_).argmax())


async def written_start(file: File, start_pos: int, piece_bytes: int) -> int | None:
    """The first byte of a segment's file that is not zero, or cannot be read; None when there is none."""
    pos = start_pos
    while data := await _piece_or_content(file, pos - start_pos, piece_bytes):
        array = np.frombuffer(data, np.uint8)
        if array.any():
            return pos + int(array.astype(np.bool_).argmax())
        pos += len(data)
    return None


async def written_end(file: File, start_pos: int, from_pos: int, piece_bytes: int) -> int:
    """One past the last byte at or after ``from_pos`` that is not zero, or cannot be read; ``from_pos`` when there is none."""
    end = from_pos
    pos = from_pos
    while data := await _piece_or_content(file, pos - start_pos, piece_bytes):
        found = last_nonzero(data)
        if found:
            end = pos + found
        pos += len(data)
    return end


async def _piece_or_content(file: File, at: int, size: int) -> bytes:
    """A piece of a file; in place of one that cannot be read bytes that are not zero, since anything may have been there."""
    data = await read_unless_lost(file, at, size)
    return data if data is not None else b"\xff" * max(0, min(size, await file.size() - at))
