"""The files of one queue: names, ranges, reading and writing of units.  RocketMQ's layout: ``consumequeue/TOPIC/QUEUE/20 digits``.

Owns the mapping from queue offsets to files and bytes, and nothing of what the units mean.  A file is named by the byte offset of its
first unit in the queue and has its full length at once, sparse: zeros follow the last unit.  How many units there are, a snapshot says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dledger.log.segment import FilePool, InUse
from dledger.runtime.env import Disk
from dledger_wire.layout import parse_segment_name, segment_name
from dledger_wire.store_layout import QUEUE_UNIT_DTYPE, QUEUE_UNIT_SIZE

QUEUE_FOLDER = "consumequeue"

Units = npt.NDArray[Any]


def queue_folder(topic: str, queue_id: int) -> str:
    return f"{QUEUE_FOLDER}/{topic}/{queue_id}"


def units_from(data: bytes) -> Units:
    """Units as they stand in a file; a torn last one is left out."""
    return np.frombuffer(data, QUEUE_UNIT_DTYPE, len(data) // QUEUE_UNIT_SIZE)


class QueueFiles:
    """Reads and writes units by queue offset."""

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

    async def sync(self, file_number: int) -> None:
        async with InUse(self._pool, self.path(file_number)) as file:
            await file.fdatasync()

    async def cut(self, end: int) -> None:
        """Remove everything from offset ``end`` on.  A file that ends before it is left as it is: its units are missing."""
        last, at = divmod(end, self.file_units)
        for number in reversed(await self.numbers()):
            if number > last or (number == last and at == 0):
                await self.remove(number)
            elif number == last:
                async with InUse(self._pool, self.path(number)) as file:
                    if await file.size() >= at * QUEUE_UNIT_SIZE:
                        await file.truncate(at * QUEUE_UNIT_SIZE)
                        await file.truncate(self._file_bytes)

    async def cut_head(self, first_number: int) -> None:
        """Remove the files before ``first_number``."""
        for number in await self.numbers():
            if number < first_number:
                await self.remove(number)

    async def remove(self, file_number: int) -> None:
        await self._pool.drop(self.path(file_number))
        await self._disk.remove(self.path(file_number))
