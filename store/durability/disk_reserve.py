"""A file that only takes room: deleting it lets a full disk be cleaned.

Deleting the log's head needs a few small files written first (where the log begins, its configuration).  Owns the file ``reserve`` in the
data folder: made while there is room, given back when those cannot be written.
"""

from __future__ import annotations

from dledger.runtime.env import Disk, is_full

PATH = "reserve"
# Not on a disk that it would fill by more than this part of what is free.
LEAST_PART = 8


class Reserve:
    """One node's."""

    def __init__(self, disk: Disk, size_bytes: int) -> None:
        self._disk = disk
        self._size_bytes = size_bytes

    async def keep(self, free_bytes: int) -> None:
        """Make the file if it is not there and the disk has room."""
        if not self._size_bytes or free_bytes < LEAST_PART * self._size_bytes or await self._disk.exists(PATH):
            return
        try:
            file = await self._disk.open(PATH, create=True)
            try:
                await file.allocate(self._size_bytes, fill=False)
            finally:
                await file.close()
        except OSError as error:
            if not is_full(error):
                raise
            await self.release()

    async def release(self) -> bool:
        """Give the room back; False when there was none."""
        if not await self._disk.exists(PATH):
            return False
        await self._disk.remove(PATH)
        return True
