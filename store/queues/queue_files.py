"""The files of one queue: names, ranges, reading and writing of units.  RocketMQ's layout: ``consumequeue/TOPIC/QUEUE/20 digits``.

Owns the mapping from queue offsets to files and bytes, and nothing of what the units mean.  A file is named by the byte offset of its
first unit in the queue and has its full length at once, sparse: zeros follow the last unit.  How many units there are, a snapshot says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger.log.segment import FilePool, InUse
from dledger.runtime.env import Disk, FileCut, FileWrite
from dledger_wire.dtypes import QUEUE_UNIT_DTYPE
from dledger_wire.layout import parse_segment_name, segment_name
from dledger_wire.store_layout import QUEUE_UNIT_SIZE

QUEUE_FOLDER = "consumequeue"
PATHS_AT_ONCE = 2000

Units = npt.NDArray[Any]


def queue_folder(topic: str, queue_id: int) -> str:
    return f"{QUEUE_FOLDER}/{topic}/{queue_id}"


# The files of each queue by their number, with their sizes in bytes.
FoundFiles = dict[tuple[str, int], dict[int, int]]


async def find_files(disk: Disk, file_units: int) -> FoundFiles:
    """All queue files on disk, by one look at it: there may be tens of thousands.  Foreign names, and files of another file size, are left
    out."""
    found: FoundFiles = {}
    file_bytes = file_units * QUEUE_UNIT_SIZE
    for number, (path, size) in enumerate((await disk.sizes(QUEUE_FOLDER)).items()):
        if number % PATHS_AT_ONCE == PATHS_AT_ONCE - 1:
            await asyncio.sleep(0)
        _, topic, queue_id, name = (*path.split("/"), "", "", "")[:4]
        start = parse_segment_name(name) if path.count("/") == 3 else None
        if start is None or not (queue_id.isascii() and queue_id.isdigit()) or queue_id != str(int(queue_id)):
            continue
        files = found.setdefault((topic, int(queue_id)), {})
        if start % file_bytes == 0:
            files[start // file_bytes] = size
    return found


def units_from(data: bytes) -> Units:
    """Units as they stand in a file; a torn last one is left out."""
    return np.frombuffer(data, QUEUE_UNIT_DTYPE, len(data) // QUEUE_UNIT_SIZE)


class QueueFiles:
    """Reads and writes units by queue offset."""

    __slots__ = ("_disk", "_file_bytes", "_folder", "_pool", "file_units")

    def __init__(self, disk: Disk, pool: FilePool, folder: str, file_units: int) -> None:
        self._disk = disk
        self._pool = pool
        self._folder = folder
        self.file_units = file_units
        self._file_bytes = file_units * QUEUE_UNIT_SIZE

    def path(self, file_number: int) -> str:
        return f"{self._folder}/{segment_name(file_number * self._file_bytes)}"

    def local_path(self, file_number: int) -> str:
        return self._disk.local_path(self.path(file_number))

    async def numbers(self) -> list[int]:
        """Which files are there, in order.  Foreign names, and files of another file size, are left alone."""
        starts = [parse_segment_name(name) for name in await self._disk.list(self._folder)]
        return sorted(start // self._file_bytes for start in starts if start is not None and start % self._file_bytes == 0)

    async def unit_count(self, file_number: int) -> int:
        """How many units a file has room for, fewer than it should when it was cut off; 0 when it is not there."""
        try:
            async with InUse(self._pool, self.path(file_number)) as file:
                return await file.size() // QUEUE_UNIT_SIZE
        except FileNotFoundError:
            return 0

    async def read(self, first: int, count: int) -> Units:
        """Units from offset ``first`` on, at most to the end of its file."""
        number, at = divmod(first, self.file_units)
        count = min(count, self.file_units - at)
        async with InUse(self._pool, self.path(number)) as file:
            return units_from(await file.pread(at * QUEUE_UNIT_SIZE, count * QUEUE_UNIT_SIZE))

    async def write(self, first: int, units: Units) -> list[int]:
        """Write units at their offsets, making files as needed; which files were touched."""
        touched = []
        done = 0
        while done < len(units):
            number, at = divmod(first + done, self.file_units)
            piece = units[done : done + self.file_units - at]
            async with InUse(self._pool, self.path(number), create=True) as file:
                if at == 0:
                    await file.truncate(self._file_bytes)
                await file.pwrite(at * QUEUE_UNIT_SIZE, [piece.tobytes()])
            touched.append(number)
            done += len(piece)
        return touched

    def writes(self, first: int, units: Units) -> Iterator[FileWrite]:
        """The same as writes for ``Disk.write_files``, one a file."""
        done = 0
        while done < len(units):
            number, at = divmod(first + done, self.file_units)
            piece = units[done : done + self.file_units - at]
            yield FileWrite(self.path(number), at * QUEUE_UNIT_SIZE, piece.tobytes(), self._file_bytes)
            done += len(piece)

    def only_sync(self, file_number: int) -> FileWrite:
        return FileWrite(self.path(file_number), 0, b"", self._file_bytes)

    async def sync(self, file_number: int) -> None:
        async with InUse(self._pool, self.path(file_number)) as file:
            await file.fdatasync()

    async def settle(self, numbers: Collection[int], first_number: int, end: int) -> FileCut | None:
        """Remove the files before ``first_number`` and those from offset ``end`` on; how the file that ``end`` is in is to be cut.

        ``numbers``: of the files that are there.  The file is cut by the caller, with those of other queues.  It may end before
        ``end``: then it stays as it is, and its units are missing.
        """
        last, at = divmod(end, self.file_units)
        for number in sorted(numbers, reverse=True):
            if number < first_number or number > last or (number == last and at == 0):
                await self.remove(number)
        return FileCut(self.path(last), at * QUEUE_UNIT_SIZE, self._file_bytes) if at and last >= first_number and last in numbers else None

    async def clear(self) -> None:
        """Remove every file."""
        for number in reversed(await self.numbers()):
            await self.remove(number)

    async def cut_head(self, first_number: int) -> None:
        """Remove the files before ``first_number``."""
        for number in await self.numbers():
            if number < first_number:
                await self.remove(number)

    async def remove(self, file_number: int) -> None:
        try:
            await self._disk.remove(self.path(file_number))
        finally:
            # Last: a reader may have opened it meanwhile, and a new file of that name must not be written through its handle.
            await self._pool.drop(self.path(file_number))
