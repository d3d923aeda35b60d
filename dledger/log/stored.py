"""Ranges of the log as they lie in its files: to be sent without being read, or looked at here and there.

Owns the open files meanwhile.  What cannot be sent is read, which finds out whether the file is damaged; a file that was is not sent from
any more, since a reader on another machine only learns that its connection broke, and a local reader learns why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby

from dledger.log.segment import FilePool, InUse, SegmentMap, log_path
from dledger.runtime.env import File, Place, SocketHandle
from dledger_wire.errors import StorageDamagedError

_Range = tuple[int, int, int]  # where its file begins, its position, its size


class StoredRanges:
    """Implements ``StoredBytes``: ranges of the log, each within one file."""

    def __init__(self, files: StoredFiles, ranges: Sequence[_Range]) -> None:
        self._files = files
        self._ranges = ranges
        self.size = sum(size for _, _, size in ranges)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[_Opened]:
        """OffsetOutOfRangeError (positions) when they were deleted from the log's head."""
        async with AsyncExitStack() as held:
            found: dict[int, File] = {}
            for start, pos, _ in self._ranges:
                if start not in found:
                    found[start] = await held.enter_async_context(self._files.in_use(start, pos))
            yield _Opened(self._files, self._ranges, found)


class _Opened:
    """Implements ``OpenBytes``."""

    def __init__(self, files: StoredFiles, ranges: Sequence[_Range], found: dict[int, File]) -> None:
        self._files = files
        self._ranges = ranges
        self._found = found

    def _after(self, done: int) -> list[_Range]:
        """What follows the first ``done`` bytes."""
        left: list[_Range] = []
        for start, pos, size in self._ranges:
            skipped = min(done, size)
            done -= skipped
            if skipped < size:
                left.append((start, pos + skipped, size - skipped))
        return left

    async def send(self, target: SocketHandle, done: int) -> int:
        start, places = next(groupby(self._after(done), key=lambda left: left[0]))
        return await self._found[start].send(target, [(pos - start, size) for _, pos, size in places])

    async def read(self, done: int) -> bytes:
        return b"".join([await self._files.read(left) for left in self._after(done)])


class StoredFiles:
    """The files of a log.  ``read_bytes`` reads a range with whatever that finds out, ``check_not_deleted`` says why a file is missing."""

    def __init__(
        self,
        files: FilePool,
        segments: SegmentMap,
        read_bytes: Callable[[int, int], Awaitable[bytes]],
        check_not_deleted: Callable[[int], None],
    ) -> None:
        self._files = files
        self._segments = segments
        self._read_bytes = read_bytes
        self._check_not_deleted = check_not_deleted
        self._damaged: set[int] = set()  # by their first positions

    def ranges(self, ranges: Sequence[Place]) -> StoredRanges | None:
        """The ranges, to be sent; None when some are better read."""
        found = self._ranges(ranges)
        return StoredRanges(self, found) if self._damaged.isdisjoint(start for start, _, _ in found) else None

    async def read_each(self, places: Sequence[Place]) -> list[bytes]:
        """Several small ranges in order, unchecked."""
        read: list[bytes] = []
        for start, group in groupby(self._ranges(places), key=lambda each: each[0]):
            of_file = list(group)
            async with self.in_use(start, of_file[0][1]) as file:
                try:
                    found = await file.pread_each([(pos - start, size) for _, pos, size in of_file])
                except OSError:
                    found = []
            if [len(each) for each in found] != [size for _, _, size in of_file]:
                found = [await self.read(each) for each in of_file]  # says what is wrong
            read += found
        return read

    def _ranges(self, places: Sequence[Place]) -> list[_Range]:
        """All at once: the log's head may be deleted while some are read."""
        for pos, _ in places:
            self._check_not_deleted(pos)
        return [(self._segments.of_pos(pos).start_pos, pos, size) for pos, size in places]

    @asynccontextmanager
    async def in_use(self, start: int, pos: int) -> AsyncIterator[File]:
        self._check_not_deleted(pos)
        async with AsyncExitStack() as held:
            try:
                file = await held.enter_async_context(InUse(self._files, log_path(start)))
            except FileNotFoundError:
                self._check_not_deleted(pos)
                raise
            yield file

    async def read(self, wanted: _Range) -> bytes:
        start, pos, size = wanted
        try:
            return await self._read_bytes(pos, size)
        except StorageDamagedError:
            self._damaged.add(start)
            raise
