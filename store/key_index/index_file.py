"""One file of the key index, in RocketMQ's layout: geometry, its mark, and the walk along a slot's chain.

Owns reading.  ``index_writer.py`` has the file that is still added to.  An entry never changes once it is written, and a chain runs from
newer entries to older ones, so a walk needs no lock.  Entries are derived from the log: an impossible one raises
``DamagedIndexError``, and the file is rebuilt.

    header 40 | slots u32[n]: number of the newest entry | entries 20[m]: hash, position, seconds, previous; entry 0 is never used
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from dledger.log.segment import FilePool, InUse
from dledger.runtime.env import read_unless_lost
from dledger_wire.dtypes import INDEX_ENTRY_DTYPE, INDEX_SLOT_DTYPE
from dledger_wire.store_layout import INDEX_ENTRY_SIZE, INDEX_HEADER, INDEX_HEADER_SIZE

INDEX_FOLDER = "index"
BLOCK_ENTRIES = 512  # read at once on a walk: the entries of a frequent key stand close to each other
WALK_ENTRIES = 4096  # steps along a chain in front of the window; then it is quicker to look through the entries in it
SCAN_ENTRIES = 50_000
NAME_DIGITS = 17
SLOT_SIZE = INDEX_SLOT_DTYPE.itemsize
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
NO_LIMIT = (1 << 63) - 1


class DamagedIndexError(Exception):
    """An index file is not what was written; caught inside the store, which makes it again from the log."""

    def __init__(self, path: str, at: int, text: str) -> None:
        super().__init__(f"{path}: byte {at}: {text}")
        self.path = path
        self.at = at
        self.text = text


@dataclass(frozen=True, slots=True)
class Geometry:
    """How many slots a file has and how many entries it has room for, the unused first one included."""

    slots: int
    entries: int

    @property
    def capacity(self) -> int:
        """How many keys a file takes."""
        return self.entries - 1

    @property
    def file_bytes(self) -> int:
        return self.entry_at(self.entries)

    def slot_at(self, slot: int) -> int:
        return INDEX_HEADER_SIZE + SLOT_SIZE * slot

    def entry_at(self, number: int) -> int:
        return INDEX_HEADER_SIZE + SLOT_SIZE * self.slots + INDEX_ENTRY_SIZE * number


@dataclass(slots=True)
class IndexMark:
    """What a file holds.  It begins with the keys of the message at ``begin_pos``, in log entry ``first_index``, but for the first ``skip``
    of them, which the file before had room for.  ``crc``: crc32c of the entries 1 to ``count``."""

    name: str
    first_index: int
    begin_pos: int
    skip: int = 0
    count: int = 0
    used_slots: int = 0
    begin_ms: int = 0
    end_ms: int = 0
    end_pos: int = 0
    crc: int = 0

    @property
    def path(self) -> str:
        return f"{INDEX_FOLDER}/{self.name}"

    def header(self) -> bytes:
        """The file's header; its count starts at 1."""
        return INDEX_HEADER.pack(self.begin_ms, self.end_ms, self.begin_pos, self.end_pos, self.used_slots, self.count + 1)


@dataclass(frozen=True, slots=True)
class Window:
    """Which entries are wanted: of messages stored from ``begin_ms`` to ``end_ms``, in front of ``before_pos`` in the log."""

    begin_ms: int = 0
    end_ms: int = NO_LIMIT
    before_pos: int = NO_LIMIT


def file_name(created_ms: int) -> str:
    """yyyyMMddHHmmssSSS in UTC."""
    moment = datetime.fromtimestamp(created_ms // 1000, UTC)
    return f"{moment:%Y%m%d%H%M%S}{created_ms % 1000:03d}"


def created_ms_of(name: str) -> int | None:
    """The time in a file's name; None for any other name."""
    if len(name) != NAME_DIGITS or not name.isascii() or not name.isdigit():
        return None
    try:
        moment = datetime.strptime(name[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1000 + int(name[14:])


class IndexFile:
    """A file that is full, or read from outside."""

    def __init__(self, pool: FilePool, geometry: Geometry, mark: IndexMark) -> None:
        self._pool = pool
        self.geometry = geometry
        self.mark = mark

    @property
    def local_path(self) -> str:
        return self._pool.disk.local_path(self.mark.path)

    def may_hold(self, window: Window) -> bool:
        mark = self.mark
        return bool(mark.count) and mark.begin_pos < window.before_pos and mark.begin_ms <= window.end_ms and mark.end_ms >= window.begin_ms

    def damaged(self, at: int, text: str) -> DamagedIndexError:
        return DamagedIndexError(self.local_path, at, text)

    async def pread(self, at: int, size: int) -> bytes:
        """Bytes of the file, as many as asked for.  DamagedIndexError when it is shorter, missing or unreadable."""
        try:
            async with InUse(self._pool, self.mark.path) as file:
                data = await read_unless_lost(file, at, size)
        except FileNotFoundError:
            raise self.damaged(0, "the file is missing") from None
        if data is None:
            raise self.damaged(at, f"{size} bytes with a sector that cannot be read")
        if len(data) < size:
            raise self.damaged(at + len(data), f"the file ends; expected {self.geometry.file_bytes} bytes")
        return data

    async def check_header(self) -> None:
        """Compare size and header with the mark.  DamagedIndexError."""
        expected = self.mark.header()
        found = await self.pread(0, INDEX_HEADER_SIZE)
        if found != expected:
            at = next(place for place in range(INDEX_HEADER_SIZE) if found[place] != expected[place])
            raise self.damaged(at, "not the header that was written")
        await self.pread(self.geometry.file_bytes - 1, 1)

    # Walking

    async def newest(self, slot: int) -> int:
        """The number of the newest entry of a slot, 0 for none."""
        number: int = _SLOT.unpack(await self.pread(self.geometry.slot_at(slot), SLOT_SIZE))[0]
        return number

    async def block(self, number: int, max_entries: int = BLOCK_ENTRIES) -> tuple[int, bytes]:
        """(number of the first entry, bytes) of at most ``max_entries`` entries up to and with ``number``."""
        first = max(1, number + 1 - max_entries)
        return first, await self.pread(self.geometry.entry_at(first), (number + 1 - first) * INDEX_ENTRY_SIZE)

    async def find(self, key_hash: int, window: Window) -> AsyncIterator[int]:
        """Positions of the messages that have a key of this hash, newest first; a position comes as often as it is in the file."""
        slot, begin_ms = key_hash % self.geometry.slots, self.mark.begin_ms
        number = await self.newest(slot)
        limit = self.mark.count + 1
        first, data, outside = limit, b"", 0
        while number:
            if not 0 < number < limit:
                raise self.damaged(self.geometry.slot_at(slot), f"a chain that leads to entry {number}; expected one below {limit}")
            if number < first:
                first, data = await self.block(number)
            found_hash, pos, seconds, previous = _ENTRY.unpack_from(data, (number - first) * INDEX_ENTRY_SIZE)
            if found_hash < 0 or found_hash % self.geometry.slots != slot:
                raise self.damaged(self.geometry.entry_at(number), f"entry {number} is not of slot {slot}, whose chain leads to it")
            # Seconds are rounded down: what cannot be excluded by them is looked at in the frame.
            stored_ms = begin_ms + 1000 * seconds
            if stored_ms + 999 < window.begin_ms:
                return  # as are all behind it, which are older
            if pos >= window.before_pos or stored_ms > window.end_ms:
                outside += 1
                if outside >= WALK_ENTRIES:
                    async for found in self._scan(key_hash, window, await self._newest_inside(window, number)):
                        yield found
                    return
            elif found_hash == key_hash:
                yield pos
            limit, number = number, previous

    async def _newest_inside(self, window: Window, end: int) -> int:
        """The newest entry of the file, at most ``end``, that is not behind the window; 0 for none.  Positions and times only rise."""
        low, high = 0, end
        while low < high:
            middle = (low + high + 1) // 2
            _, data = await self.block(middle, 1)
            _, pos, seconds, _ = _ENTRY.unpack(data)
            if pos < window.before_pos and self.mark.begin_ms + 1000 * seconds <= window.end_ms:
                low = middle
            else:
                high = middle - 1
        return low

    async def _scan(self, key_hash: int, window: Window, end: int) -> AsyncIterator[int]:
        """``find`` without the chain: looks at every entry from ``end`` down to the window's begin."""
        while end:
            first, data = await self.block(end, SCAN_ENTRIES)
            entries = np.frombuffer(data, INDEX_ENTRY_DTYPE)
            inside = self.mark.begin_ms + 1000 * entries["seconds"].astype(np.int64) + 999 >= window.begin_ms
            for pos in entries["pos"][(entries["key_hash"] == key_hash) & inside][::-1].tolist():
                yield pos
            if not inside[0]:
                return
            end = first - 1
