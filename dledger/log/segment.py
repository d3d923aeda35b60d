"""Segment files and their index-unit files: names, open handles, and the list of those that are on disk.

Owns which file holds which bytes.  Two files a segment, same name: ``commitlog/START`` and ``index-units/START``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

from dledger.runtime.env import Disk, File
from dledger.runtime.folders import LOG_FOLDER
from dledger_wire.check import require
from dledger_wire.layout import parse_segment_name, segment_name

UNITS_FOLDER = "index-units"


@lru_cache
def log_path(start_pos: int) -> str:
    return f"{LOG_FOLDER}/{segment_name(start_pos)}"


@lru_cache
def units_path(start_pos: int) -> str:
    return f"{UNITS_FOLDER}/{segment_name(start_pos)}"


async def list_starts(disk: Disk, folder: str) -> tuple[list[int], list[str]]:
    """Start positions of the segments in ``folder`` in order, and the names there that are none of ours."""
    starts, foreign = [], []
    for name in await disk.list(folder):
        start = parse_segment_name(name)
        if start is None:
            foreign.append(name)
        else:
            starts.append(start)
    return sorted(starts), foreign


@dataclass(slots=True)
class Segment:
    """A segment: its first byte and the index of its first entry (the next entry's while it is empty)."""

    start_pos: int
    first_index: int


class SegmentMap:
    """Which segment holds a position or an index.  Never empty."""

    def __init__(self, segments: list[Segment]) -> None:
        require(segments, "a log without a segment")
        self._segments = segments
        self._starts = [segment.start_pos for segment in segments]
        self._firsts = [segment.first_index for segment in segments]

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def last(self) -> Segment:
        return self._segments[-1]

    def all(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    def of_pos(self, pos: int) -> Segment:
        at = bisect_right(self._starts, pos) - 1
        require(at >= 0, "position %d lies before the first segment", pos)
        return self._segments[at]

    def of_index(self, index: int) -> Segment:
        at = bisect_right(self._firsts, index) - 1
        require(at >= 0, "entry %d lies before the first segment", index)
        return self._segments[at]

    def after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self._starts, segment.start_pos)
        return self._segments[at] if at < len(self._segments) else None

    def add(self, segment: Segment) -> None:
        require(segment.start_pos > self.last.start_pos and segment.first_index >= self.last.first_index, "segments out of order")
        self._segments.append(segment)
        self._starts.append(segment.start_pos)
        self._firsts.append(segment.first_index)

    def cut(self, from_index: int) -> list[Segment]:
        """Drop segments all of whose entries are at or after ``from_index`` (but the first one); returns them, last first."""
        dropped = []
        while len(self._segments) > 1 and self._firsts[-1] >= from_index:
            dropped.append(self._segments.pop())
            self._starts.pop()
            self._firsts.pop()
        return dropped

    def trim(self, first_pos: int) -> list[Segment]:
        """Drop the segments before the one that starts at ``first_pos``; returns them in order."""
        at = bisect_right(self._starts, first_pos) - 1
        require(at >= 0 and self._starts[at] == first_pos, "no segment starts at %d", first_pos)
        dropped = self._segments[:at]
        del self._segments[:at], self._starts[:at], self._firsts[:at]
        return dropped


@dataclass(slots=True)
class _Handle:
    file: File
    users: int = 0
    doomed: bool = False


@dataclass(slots=True)
class FilePool:
    """Open files by path, the least recently used closed beyond ``limit``; a file in use is never closed."""

    disk: Disk
    limit: int
    _handles: OrderedDict[str, _Handle] = field(default_factory=OrderedDict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def acquire(self, path: str, *, create: bool = False) -> _Handle:
        handle = self._handles.get(path)
        if handle is None:
            async with self._opening:
                handle = self._handles.get(path)
                if handle is None:
                    handle = self._handles[path] = _Handle(await self.disk.open(path, create=create))
        self._handles.move_to_end(path)
        handle.users += 1
        return handle

    def opened(self, path: str) -> File | None:
        """An open file for a use that ends before anything else happens; None when it would have to be opened."""
        handle = self._handles.get(path)
        return handle.file if handle is not None else None

    async def release(self, handle: _Handle) -> None:
        handle.users -= 1
        if handle.doomed and handle.users == 0:
            await handle.file.close()
        elif len(self._handles) > self.limit:
            await self._close_idle()

    async def drop(self, path: str) -> None:
        """Forget the open file of ``path`` (it is about to be removed); reads in progress continue."""
        handle = self._handles.pop(path, None)
        if handle is None:
            return
        handle.doomed = True
        if handle.users == 0:
            await handle.file.close()

    async def close(self) -> None:
        """Close everything; a file in use is closed when its user is done."""
        for path in list(self._handles):
            await self.drop(path)

    async def _close_idle(self) -> None:
        # One leaves the table at a time, and is closed: meanwhile others come for the rest or close some too, or this is cancelled.
        while len(self._handles) > self.limit:
            idle = next((path for path, handle in self._handles.items() if handle.users == 0), None)
            if idle is None:
                return
            await self._handles.pop(idle).file.close()


class InUse:
    """``async with InUse(pool, path) as file``: the file stays open meanwhile."""

    __slots__ = ("_create", "_handle", "_path", "_pool")

    def __init__(self, pool: FilePool, path: str, *, create: bool = False) -> None:
        self._pool, self._path, self._create = pool, path, create

    async def __aenter__(self) -> File:
        self._handle = await self._pool.acquire(self._path, create=self._create)
        return self._handle.file

    async def __aexit__(self, *_: object) -> None:
        await self._pool.release(self._handle)
