"""The index file that is added to: slots and newest entries in memory, written behind.

Owns adding, all of it with numpy: a column of keys becomes entries and chains without a loop over keys.  Entries are written in order as
they come; slots, which lie scattered, only now and then and when the file is full, since a start makes them again from the entries.
The file is sparse: it has its full size from the beginning, and takes as much of the disk as was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger.log.segment import FilePool, InUse
from dledger_wire.checksum import crc32c
from dledger_wire.dtypes import INDEX_ENTRY_DTYPE, INDEX_SLOT_DTYPE
from dledger_wire.store_layout import INDEX_ENTRY_SIZE
from store.key_index.index_file import BLOCK_ENTRIES, Geometry, IndexFile, IndexMark
from store.key_index.index_keys import Int32s, Int64s, KeyColumns

PAGE_SLOTS = 1024  # written together
PIECE_SLOTS = 256 * PAGE_SLOTS
PIECE_ENTRIES = 50_000
SMALLEST_TAIL = 1024
MAX_SECONDS = 0x7FFFFFFF

Entries = npt.NDArray[Any]


def link_entries(slots: Int32s, places: Int32s | Int64s, first_number: int) -> Int32s:
    """Put entries ``first_number`` on into the chains of the slots at ``places``; returns the previous entry of each."""
    numbers = np.arange(first_number, first_number + len(places), dtype=np.int32)
    previous = slots[places]
    slots[places] = numbers  # of several entries for a slot the last one stays
    newest = slots[places]
    older = np.flatnonzero(newest != numbers)
    if len(older):
        # Entries that share a slot with others of this call: sorted by slot, each continues the one before it.
        members = np.unique(np.concatenate([older, newest[older] - first_number]))
        members = members[np.argsort(places[members], kind="stable")]
        same = places[members[1:]] == places[members[:-1]]
        previous[members[1:][same]] = numbers[members[:-1][same]]
    return previous


class OpenIndexFile(IndexFile):
    """The newest file.  ``add`` touches memory only; ``flush`` writes entries and header.  One writer, any number of walks."""

    def __init__(self, pool: FilePool, geometry: Geometry, mark: IndexMark) -> None:
        super().__init__(pool, geometry, mark)
        self._slots: Int32s = np.zeros(geometry.slots, np.int32)
        self._dirty_pages = np.zeros(-(-geometry.slots // PAGE_SLOTS), np.bool_)
        self._tail: Entries = np.empty(SMALLEST_TAIL, INDEX_ENTRY_DTYPE)  # entries from the first unwritten one on
        self._tail_first = mark.count + 1
        self._header_written = b""
        self.synced = True

    @property
    def unwritten(self) -> int:
        return self.mark.count + 1 - self._tail_first

    @property
    def is_full(self) -> bool:
        return self.mark.count >= self.geometry.capacity

    # Adding

    def add(self, keys: KeyColumns) -> int:
        """Add the first of ``keys``, as many as there is room for; returns how many."""
        mark = self.mark
        taken = min(len(keys), self.geometry.capacity - mark.count)
        if taken <= 0:
            return 0
        keys = keys.part(0, taken)
        if not mark.count:
            mark.begin_ms, mark.begin_pos = int(keys.times[0]), int(keys.positions[0])
        places = keys.hashes % np.int32(self.geometry.slots)
        previous = link_entries(self._slots, places, mark.count + 1)
        entries = self._room(taken)
        entries["key_hash"] = keys.hashes
        entries["pos"] = keys.positions
        entries["seconds"] = np.clip((keys.times - mark.begin_ms) // 1000, 0, MAX_SECONDS)
        entries["previous"] = previous
        self._dirty_pages[places // PAGE_SLOTS] = True
        mark.crc = crc32c(entries.view(np.uint8).data, value=mark.crc)
        mark.used_slots += taken - int(np.count_nonzero(previous))
        mark.count += taken
        mark.end_ms, mark.end_pos = int(keys.times[-1]), int(keys.positions[-1])
        return taken

    def _room(self, count: int) -> Entries:
        """The next ``count`` places of the tail."""
        held = self.unwritten
        if held + count > len(self._tail):
            tail = np.empty(max(SMALLEST_TAIL, 1 << (held + count - 1).bit_length()), INDEX_ENTRY_DTYPE)
            tail[:held] = self._tail[:held]
            self._tail = tail
        return self._tail[held : held + count]

    # Walking

    async def newest(self, slot: int) -> int:
        return int(self._slots[slot])

    async def block(self, number: int, max_entries: int = BLOCK_ENTRIES) -> tuple[int, bytes]:
        tail_first = self._tail_first
        if number < tail_first:
            return await super().block(number, max_entries)
        first = max(tail_first, number + 1 - max_entries)
        return first, self._tail[first - tail_first : number + 1 - tail_first].tobytes()

    # Writing

    async def create(self) -> None:
        """Make the file, empty and of its full size."""
        async with InUse(self._pool, self.mark.path, create=True) as file:
            await file.truncate(0)
            await file.truncate(self.geometry.file_bytes)

    async def flush(self) -> None:
        """Write the entries that are in memory only, and the header."""
        count, header = self.unwritten, self.mark.header()
        if not count and header == self._header_written:
            return
        self.synced = False
        async with InUse(self._pool, self.mark.path) as file:
            if count:
                await file.pwrite(self.geometry.entry_at(self._tail_first), [self._tail[:count].tobytes()])
                self._tail_first += count  # only now: walks read what is written from the file
            await file.pwrite(0, [header])
        self._header_written = header

    async def write_slots(self) -> None:
        """Bring the slots in the file up to date."""
        pages = np.flatnonzero(self._dirty_pages)
        if not len(pages):
            return
        self.synced = False
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        async with InUse(self._pool, self.mark.path) as file:
            for run in np.split(pages, breaks):
                first, end = int(run[0]) * PAGE_SLOTS, min((int(run[-1]) + 1) * PAGE_SLOTS, self.geometry.slots)
                for at in range(first, end, PIECE_SLOTS):
                    piece = self._slots[at : min(at + PIECE_SLOTS, end)]
                    await file.pwrite(self.geometry.slot_at(at), [piece.astype(INDEX_SLOT_DTYPE).tobytes()])
        self._dirty_pages[pages] = False

    async def sync(self) -> None:
        """Make what is written durable."""
        if not self.synced:
            async with InUse(self._pool, self.mark.path) as file:
                await file.fdatasync()
            self.synced = True

    async def seal(self) -> IndexFile:
        """Write everything; the file as it is read from now on."""
        await self.flush()
        await self.write_slots()
        await self.sync()
        return IndexFile(self._pool, self.geometry, self.mark)

    # Opening again

    async def load(self, is_closing: Callable[[], bool]) -> None:
        """Make the slots again from the entries that the mark names.  DamagedIndexError unless these are what was written.

        CancelledError once it ``is_closing``.
        """
        geometry, mark = self.geometry, self.mark
        crc = 0
        for first in range(1, mark.count + 1, PIECE_ENTRIES):
            count = min(PIECE_ENTRIES, mark.count + 1 - first)
            if is_closing():
                raise asyncio.CancelledError("the key index closes while its newest file is read")
            data = await self.pread(geometry.entry_at(first), count * INDEX_ENTRY_SIZE)
            crc = crc32c(data, value=crc)
            places = np.frombuffer(data, INDEX_ENTRY_DTYPE)["key_hash"] % np.int32(geometry.slots)
            self._slots[places] = np.arange(first, first + count, dtype=np.int32)
        if crc != mark.crc:
            raise self.damaged(geometry.entry_at(1), "the entries are not those that were written")
        await self.pread(geometry.file_bytes - 1, 1)
        # What was written behind the mark may have left other slots than these.
        for at in range(0, geometry.slots, PIECE_SLOTS):
            piece = self._slots[at : at + PIECE_SLOTS]
            found = np.frombuffer(await self.pread(geometry.slot_at(at), len(piece) * INDEX_SLOT_DTYPE.itemsize), INDEX_SLOT_DTYPE)
            self._dirty_pages[(np.flatnonzero(found != piece) + at) // PAGE_SLOTS] = True
