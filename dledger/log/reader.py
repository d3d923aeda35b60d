"""Reading what is no longer in memory: one large read of one file, then checked entry by entry.

Owns the way from an index to the bytes: place in memory, else index unit, else (units are derived) nothing is guessed.
An entry that is whole and in its place is believed before its unit, which has no checksum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from dledger.log.cache import EntryCache, slices
from dledger.log.config import LogConfig
from dledger.log.entry import Header, RawEntry, link_fault, parse_entry
from dledger.log.index_units import EntryPlace, PlaceTable, Units, decode_units, encode_units, place_of_unit
from dledger.log.segment import FilePool, InUse, Segment, SegmentMap, log_path, units_path
from dledger.runtime.env import Buffer, Disk, read_unless_lost
from dledger_wire.check import require
from dledger_wire.errors import CorruptEntryError, StorageDamagedError
from dledger_wire.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE

UNITS_PIECE = 4096

_logger = logging.getLogger(__name__)


class LogReader:
    """Reads a log's files; segments and places are the log's own, as they are at each call."""

    def __init__(
        self, disk: Disk, files: FilePool, config: LogConfig, segments: SegmentMap, places: PlaceTable, term_of: Callable[[int], int]
    ) -> None:
        self._disk = disk
        self._files = files
        self._config = config
        self._segments = segments
        self._places = places
        self._term_of = term_of  # of an entry in the log

    async def find(self, index: int) -> EntryPlace:
        """The place of an entry in the log."""
        place = self._places.get(index)
        if place is not None:
            return place
        return place_of_unit((await self._units(self._segments.of_index(index), index, 1))[0])

    async def read(self, first_index: int, max_bytes: int, last_index: int) -> list[RawEntry]:
        """Entries of one segment from ``first_index`` on, at least one; every one of them is in its file."""
        segment = self._segments.of_index(first_index)
        after = self._segments.after(segment)
        if after is not None:
            last_index = min(last_index, after.first_index - 1)
        place, chain_crc = await self.find(first_index), await self._chain_crc_before(first_index)
        start, data = await self._readable(segment, place, max_bytes, last_index)
        entries = self._check(segment, first_index, start, chain_crc, memoryview(data))
        found = entries[0]
        if found.term != self._term_of(first_index):
            text = f"term {found.term}, kind {found.kind}: the log has one of term {self._term_of(first_index)} here"
            raise self._damaged(segment, start, first_index, text)
        right = EntryPlace(first_index, found.term, start, found.size_bytes, found.kind)
        if place != right and chain_crc is not None:
            await self._write_unit(segment, right)
        return entries

    async def _readable(self, segment: Segment, first: EntryPlace, max_bytes: int, last_index: int) -> tuple[int, bytes]:
        """Where entries from ``first`` on begin, and their bytes, fewer where a sector among them cannot be read.

        Those before the sector are intact, so ever less is asked for; only the entry that is left alone is named as damaged.
        """
        while True:
            start, end = await self._span(segment, first.index, max_bytes, last_index)
            try:
                return start, await self._pread(segment, start, end - start, first.index)
            except StorageDamagedError:
                if max_bytes == 0 or end - start <= first.size:
                    raise
            max_bytes = min(max_bytes, end - start) // 2

    async def _write_unit(self, segment: Segment, place: EntryPlace) -> None:
        """Rewrite an index unit that contradicts its entry, which is intact, in its position and of the right term."""
        path = units_path(segment.start_pos)
        _logger.warning(
            "%s: the index unit of entry %d is wrong; rewritten",
            self._disk.local_path(path),
            place.index,
            extra={"event": "index_unit_repaired"},
        )
        self._places.correct(place)
        try:
            async with InUse(self._files, path) as file:
                await file.pwrite((place.index - segment.first_index) * INDEX_UNIT_SIZE, [encode_units([place])])
        except OSError as error:
            _logger.warning(
                "%s: %s", self._disk.local_path(path), error, extra={"event": "index_unit_not_written"}
            )  # derived: the next start writes it

    async def read_bytes(self, pos: int, size: int) -> bytes:
        """A range of bytes of one file, as it stands.  StorageDamagedError names the first entry in it that cannot be read."""
        segment = self._segments.of_pos(pos)
        try:
            data = await self._pread(segment, pos, size)
        except StorageDamagedError:
            await self._name_unreadable(segment, pos, pos + size)
            raise
        if len(data) < size:
            await self._name_unreadable(segment, pos + len(data), pos + size)
            raise self._damaged(segment, pos + len(data), 0, f"the file ends {size - len(data)} bytes short")
        return data

    async def _name_unreadable(self, segment: Segment, pos: int, end: int) -> None:
        """StorageDamagedError for the first entry between two positions that cannot be read: a repair has to know which it is."""
        after = self._segments.after(segment)
        index, past = segment.first_index, after.first_index if after is not None else self._places.next_index
        high = past
        while high - index > 1:
            middle = (index + high) // 2
            if (await self.find(middle)).pos <= pos:
                index = middle
            else:
                high = middle
        while index < past and (place := await self.find(index)).pos < end:
            data = await self._pread(segment, place.pos, place.size, index)
            if len(data) < place.size:
                raise self._damaged(segment, place.pos + len(data), index, f"the file ends {place.size - len(data)} bytes short")
            index += 1

    async def _pread(self, segment: Segment, pos: int, size: int, index: int = 0) -> bytes:
        """``index``: of the entry to name when its bytes cannot be read."""
        async with InUse(self._files, log_path(segment.start_pos)) as file:
            try:
                return await file.pread(pos - segment.start_pos, size)
            except OSError as error:
                raise self._damaged(segment, pos, index, f"cannot be read: {error.strerror}") from error

    def cached(self, cache: EntryCache, pos: int, end: int) -> list[Buffer]:
        """The bytes from ``pos`` towards ``end`` as far as they lie in cached consecutive entries; empty when none do."""
        index = self._places.index_at(pos)
        pieces: list[Buffer] = []
        while index is not None and pos < end and (entry := cache.get(index)) is not None and entry.pos <= pos:
            size = min(end, entry.end_pos) - pos
            pieces += slices(entry.buffers, pos - entry.pos, size)
            pos += size
            index += 1
        return pieces

    async def _span(self, segment: Segment, first_index: int, max_bytes: int, last_index: int) -> tuple[int, int]:
        """From where to where to read."""
        first = self._places.get(first_index)
        if first is not None:
            last = self._places.get(self._places.fitting(first_index, last_index, max_bytes))
            require(last is not None, "entry %d has a place, one after it has none", first_index)
            return first.pos, last.end_pos if last is not None else first.end_pos
        units = await self._units(segment, first_index, min(last_index - first_index + 1, UNITS_PIECE))
        start = int(units["pos"][0])
        ends = units["pos"].astype(np.int64) + units["size"]
        fitting = int(np.searchsorted(ends, start + max_bytes, side="right"))
        return start, int(ends[max(fitting, 1) - 1])

    async def _units(self, segment: Segment, first_index: int, count: int) -> Units:
        at = (first_index - segment.first_index) * INDEX_UNIT_SIZE
        async with InUse(self._files, units_path(segment.start_pos)) as file:
            data = await read_unless_lost(file, at, count * INDEX_UNIT_SIZE)
            if data is None:  # the first one may lie before the sector that is lost
                data = await read_unless_lost(file, at, INDEX_UNIT_SIZE)
            units = decode_units(data or b"")
        right = units["index"].astype(np.int64) == first_index + np.arange(len(units))
        if not len(units) or not right[0]:
            path = self._disk.local_path(units_path(segment.start_pos))
            text = f"{path}: byte {at}: no index unit of entry {first_index}; a restart of the node rewrites the units"
            raise StorageDamagedError(text, file=path, pos=at, index=first_index)
        return units if right.all() else units[: int(np.argmin(right))]

    async def _chain_crc_before(self, index: int) -> int | None:
        """The chain CRC that entry ``index`` continues; None for the log's first entry after the head was trimmed."""
        known = self._places.chain_crc(index - 1)
        if known is not None or index == self._segments.first.first_index:
            return 0 if index == 1 else known
        place = await self.find(index - 1)
        segment = self._segments.of_index(index - 1)
        head = await self._pread(segment, place.pos, ENTRY_HEADER_SIZE, place.index)
        return Header.unpack(head).chain_crc if len(head) == ENTRY_HEADER_SIZE else None

    def _check(self, segment: Segment, first_index: int, pos: int, chain_crc: int | None, data: memoryview) -> list[RawEntry]:
        """The entries in ``data``, up to the first that is not whole; StorageDamagedError when that is the first one."""
        entries: list[RawEntry] = []
        at = 0
        while at < len(data) or not entries:
            index = first_index + len(entries)
            try:
                entry = parse_entry(data, at)
                head = data[at : at + ENTRY_HEADER_SIZE]
                fault = link_fault(Header.unpack(head), head, index, 0, pos + at, chain_crc)
                if fault is not None:
                    raise CorruptEntryError(fault)
            except CorruptEntryError as error:
                if entries:
                    break
                raise self._damaged(segment, pos + at, index, error.message) from error
            entries.append(entry)
            chain_crc = entry.chain_crc
            at += entry.size_bytes
        return entries

    def _damaged(self, segment: Segment, pos: int, index: int, text: str) -> StorageDamagedError:
        path = self._disk.local_path(log_path(segment.start_pos))
        at = pos - segment.start_pos
        entry = f"entry {index}: " if index else ""
        return StorageDamagedError(f"{path}: byte {at}: {entry}{text}", file=path, pos=at, index=index)
