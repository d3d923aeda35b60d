"""One consume queue: where each message of a queue lies in the log, 20 bytes a message.

Owns the newest units in memory, what of them is written, and a checksum for every file, so that damage is found when a file is first
read.  Appending touches memory only; ``flush`` writes what is new as one piece a file.  Queues are derived: whatever is missing or
damaged here is rebuilt from the log by the caller (``DamagedQueueFileError``).

    offset   min ........ buffer_first ....... written ....... max
             files only   files and memory    memory only
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger.runtime.env import FileWrite, is_unreadable, is_unwritable
from dledger_wire.check import require
from dledger_wire.checksum import crc32c, extend_crc32c
from dledger_wire.dtypes import QUEUE_UNIT_DTYPE
from dledger_wire.store_layout import QUEUE_UNIT
from store.queues.queue_files import QueueFiles, Units
from store.state.sequences import QueueKey

SMALLEST_BUFFER = 8
CHECK_PIECE_UNITS = 65536


class DamagedQueueFileError(Exception):
    """A queue file is not what was written; caught inside the store, which rebuilds the file from the log."""

    def __init__(self, queue: ConsumeQueue, file_number: int) -> None:
        super().__init__(f"queue file {queue.files.local_path(file_number)} is missing or damaged")
        self.queue = queue
        self.file_number = file_number


@dataclass(slots=True)
class QueueMark:
    """Where a queue stood at one moment: enough to cut its files back to it and to recognise damage before it.

    ``crcs`` has the checksum of each file from ``first_file`` on, the last one's as far as ``max_offset``.  A mark does not change: what is
    the same in many snapshots is encoded once.
    """

    min_offset: int
    max_offset: int
    first_file: int
    crcs: list[int] = field(default_factory=list)
    last_end_pos: int = 0
    encoded: bytes = field(default=b"", compare=False, repr=False)  # as it stands in a snapshot, once it was encoded


class ConsumeQueue:
    """One queue of one topic.  ``max_offset`` is one past its newest message."""

    # There may be tens of thousands: without a dictionary each.
    __slots__ = (
        "_buffer",
        "_buffer_first",
        "_checked",
        "_crcs",
        "_first_file",
        "_tail_units",
        "_unsynced",
        "_written",
        "files",
        "head_pos",
        "key",
        "last_end_pos",
        "max_offset",
        "min_offset",
    )

    def __init__(self, key: QueueKey, files: QueueFiles, *, tail_units: int, mark: QueueMark | None = None) -> None:
        self.key = key
        self.files = files
        self.min_offset = mark.min_offset if mark else 0
        self.max_offset = mark.max_offset if mark else 0
        self.last_end_pos = mark.last_end_pos if mark else 0  # end of the newest message's frame in the log
        self.head_pos = -1  # of the message at ``min_offset`` in the log; -1: not known
        self._tail_units = tail_units
        self._first_file = mark.first_file if mark else 0
        self._crcs: list[int] = list(mark.crcs) if mark else []
        self._checked: set[int] = set()  # files whose content was found right, or written, since the start
        self._unsynced: dict[int, None] = {}
        self._written = self.max_offset
        self._buffer: Units = np.empty(0, QUEUE_UNIT_DTYPE)
        self._buffer_first = self.max_offset

    # State

    @property
    def unwritten(self) -> int:
        """Units in memory only."""
        return self.max_offset - self._written

    @property
    def buffer_units(self) -> int:
        """How many units the memory held has room for."""
        return len(self._buffer)

    @property
    def is_synced(self) -> bool:
        return not self.unwritten and not self._unsynced

    def mark(self) -> QueueMark:
        return QueueMark(self.min_offset, self.max_offset, self._first_file, list(self._crcs), self.last_end_pos)

    # Adding

    def append(self, base_pos: int, positions: npt.NDArray[np.int64], sizes: npt.NDArray[Any], tag_hashes: npt.NDArray[Any]) -> None:
        """Add messages whose frames lie at ``base_pos + positions`` in the log."""
        units = np.empty(len(sizes), QUEUE_UNIT_DTYPE)
        units["pos"] = positions + base_pos
        units["size"] = sizes
        units["tag_hash"] = tag_hashes
        if self.min_offset == self.max_offset:
            self.head_pos = base_pos + int(positions[0])
        self._add(units)
        self.last_end_pos = base_pos + int(positions[-1]) + int(sizes[-1])

    def append_one(self, pos: int, size: int, tag_hash: int) -> None:
        """``append`` for a message alone, without arrays."""
        self._make_room(1)
        if self.min_offset == self.max_offset:
            self.head_pos = pos
        self._buffer[self.max_offset - self._buffer_first] = (pos, size, tag_hash)
        number = self.max_offset // self.files.file_units
        if number - self._first_file == len(self._crcs):
            self._crcs.append(0)
            self._checked.add(number)
        self._crcs[-1] = extend_crc32c(self._crcs[-1], QUEUE_UNIT.pack(pos, size, tag_hash))
        self.max_offset += 1
        self.last_end_pos = pos + size

    def _add(self, units: Units) -> None:
        count = len(units)
        self._make_room(count)
        at = self.max_offset - self._buffer_first
        self._buffer[at : at + count] = units
        self._extend_crcs(self.max_offset, units)
        self.max_offset += count

    def _make_room(self, count: int) -> None:
        """Room for ``count`` more in the buffer: written units beyond the tail go, and it is resized to what must stay."""
        held = self.max_offset - self._buffer_first
        if held + count <= len(self._buffer):
            return
        keep = max(self.unwritten, min(held, self._tail_units))
        first = self.max_offset - keep
        capacity = max(SMALLEST_BUFFER, 1 << (keep + count - 1).bit_length())
        buffer = np.empty(capacity, QUEUE_UNIT_DTYPE)
        buffer[:keep] = self._buffer[first - self._buffer_first : held]
        self._buffer, self._buffer_first = buffer, first

    def _extend_crcs(self, first: int, units: Units) -> None:
        done = 0
        while done < len(units):
            number, at = divmod(first + done, self.files.file_units)
            piece = units[done : done + self.files.file_units - at]
            slot = number - self._first_file
            if slot == len(self._crcs):
                self._crcs.append(0)
                self._checked.add(number)
            self._crcs[slot] = _crc(piece, self._crcs[slot])
            done += len(piece)

    def start_from(self, offset: int) -> range:
        """Messages before ``offset`` were deleted from the log: the queue begins there.  Returns the files it no longer has.

        Under the store's file lock; what is given up must be written.
        """
        self.min_offset = max(self.min_offset, min(offset, self.max_offset))
        before = self._first_file
        first = max(before, min(self.min_offset // self.files.file_units, before + len(self._crcs)))
        require(self._written >= min(first * self.files.file_units, self.max_offset), "queue %s/%d gives up what is not written", *self.key)
        gone = range(before, first)
        del self._crcs[: len(gone)]
        self._first_file = first
        self._checked.difference_update(gone)
        for number in gone:
            self._unsynced.pop(number, None)
        return gone

    # Writing (one call at a time: the store's file lock)

    async def flush(self) -> None:
        """Write what is in memory only.  DamagedQueueFileError when a block that it goes into cannot be read."""
        first, end = self._written, self.max_offset
        if first < end:
            try:
                written = await self.files.write(first, self._held(first, end))
            except OSError as error:
                if not is_unwritable(error):
                    raise
                raise DamagedQueueFileError(self, first // self.files.file_units) from error
            self._unsynced.update(dict.fromkeys(written))
            self._written = end

    def unsynced_writes(self) -> tuple[int, list[FileWrite]]:
        """(the argument of ``synced``, what makes everything up to now durable)"""
        first, end = self._written, self.max_offset
        writes = list(self.files.writes(first, self._held(first, end))) if first < end else []
        new = {write.path for write in writes}
        return end, writes + [sync for number in self._unsynced if (sync := self.files.only_sync(number)).path not in new]

    def synced(self, end: int) -> None:
        """All files are durable as far as ``end``."""
        self._written = end
        self._unsynced.clear()

    def release_memory(self) -> None:
        """Give the buffer back; everything in it must be written."""
        require(not self.unwritten, "queue %s/%d: %d units are in memory only", *self.key, self.unwritten)
        self._buffer, self._buffer_first = np.empty(0, QUEUE_UNIT_DTYPE), self.max_offset

    async def remove(self) -> None:
        """Delete every file; the queue is empty and starts at 0."""
        self.min_offset = self.max_offset = self._written = self._buffer_first = self._first_file = self.last_end_pos = 0
        self.head_pos = -1
        self._crcs.clear()
        self._checked.clear()
        self._unsynced.clear()
        self._buffer = np.empty(0, QUEUE_UNIT_DTYPE)
        await self.files.clear()

    async def replace_file(self, number: int, units: Units) -> None:
        """Rewrite a file with ``units``, what the log says is in it (fillers for what the log no longer has)."""
        first, end = self.file_range(number)
        require(len(units) == end - first, "queue %s/%d: %d units for a file of %d", *self.key, len(units), end - first)
        self._crcs[number - self._first_file] = _crc(self._memory_only(number), _crc(units, 0))
        try:
            await self.files.write(first, units)
        except OSError as error:
            if not is_unreadable(error):
                raise
            await self.files.remove(number)  # a sector that is written in part only has to be read for the rest
            await self.files.write(first, units)
        await self.files.sync(number)
        self._checked.add(number)

    # Reading

    async def read(self, first: int, count: int) -> Units:
        """Up to ``count`` units from ``first`` (at least one when ``first`` is below the maximum), never beyond one file or the memory.

        DamagedQueueFileError when the file they are in is not as it was written.
        """
        count = min(count, self.max_offset - first)
        if count <= 0:
            return np.empty(0, QUEUE_UNIT_DTYPE)
        if first >= self._buffer_first:
            return self._held(first, first + count)
        number = first // self.files.file_units
        if number not in self._checked:
            await self.check_file(number)
        count = min(count, self._written - first)
        units = await self._read_file(first, count)
        if not len(units):
            raise DamagedQueueFileError(self, number)
        return units

    def file_numbers(self) -> range:
        """The files this queue has, written or not."""
        return range(self._first_file, self._first_file + len(self._crcs))

    def file_range(self, number: int) -> tuple[int, int]:
        """The offsets of a file's units that are written."""
        first = number * self.files.file_units
        return first, max(first, min(first + self.files.file_units, self._written))

    async def check_file(self, number: int) -> None:
        """Compare a file with its checksum.  DamagedQueueFileError when they differ."""
        offset, end = self.file_range(number)
        # Taken now: what is appended or written while the file is read does not count.
        expected, rest = self._crcs[number - self._first_file], self._memory_only(number)
        value = 0
        while offset < end:
            units = await self._read_file(offset, min(CHECK_PIECE_UNITS, end - offset))
            if not len(units):
                raise DamagedQueueFileError(self, number)
            value = _crc(units, value)
            offset += len(units)
        if _crc(rest, value) != expected:
            raise DamagedQueueFileError(self, number)
        self._checked.add(number)

    async def _read_file(self, first: int, count: int) -> Units:
        try:
            return await self.files.read(first, count)
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_unreadable(error)):
                raise
            raise DamagedQueueFileError(self, first // self.files.file_units) from None

    def _held(self, first: int, end: int) -> Units:
        """A copy of units in memory."""
        return self._buffer[first - self._buffer_first : end - self._buffer_first].copy()

    def _memory_only(self, number: int) -> Units:
        """The units of a file that are not written yet."""
        end = min((number + 1) * self.files.file_units, self.max_offset)
        start = max(number * self.files.file_units, self._written)
        return self._held(start, max(start, end)) if start < end else np.empty(0, QUEUE_UNIT_DTYPE)


def _crc(units: Units, value: int) -> int:
    return crc32c(units.view(np.uint8).data, value=value)
