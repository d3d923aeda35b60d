"""All files of the key index: which there are, beginning the next one, giving up damaged ones, and their marks on disk.

Owns the order of steps.  Marks are written when what they name is durable; a file goes only after the marks that no longer name it.  One
task adds, persists and gives files up; ``drop_before`` and walks may come from anywhere at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dledger.log.segment import FilePool
from dledger.runtime.env import Disk, is_full
from store.key_index.index_file import INDEX_FOLDER, DamagedIndexError, Geometry, IndexFile, IndexMark, Window, created_ms_of, file_name
from store.key_index.index_keys import KeyColumns
from store.key_index.index_writer import OpenIndexFile
from store.key_index.manifest import IndexMarks, read_marks, write_marks
from store.log_view import ReadableLog

OPEN_FILES = 16
STEP_KEYS = 16_384  # added without a break
FLUSH_ENTRIES = 65_536  # in memory only, at most
FULL_DISK_RETRY_S = 1.0

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class IndexSet:
    """The files in order of the log; the last one may be added to.  ``damage_found`` is called when a walk meets damage."""

    def __init__(self, disk: Disk, geometry: Geometry, log: ReadableLog, damage_found: Callable[[], None]) -> None:
        self._disk = disk
        self._log = log
        self._geometry = geometry
        self._pool = FilePool(disk, OPEN_FILES)
        self._damage_found = damage_found
        self._marks_lock = asyncio.Lock()
        self._saved = IndexMarks(geometry)
        self._resume = (0, 0)
        self.files: list[IndexFile] = []
        self.damaged: IndexFile | None = None
        self.covered = 0  # the log entry up to which all keys are in
        self.store_ms = 0  # of the newest message in
        self.closing = False
        self._adding = False

    # Opening

    async def open(self) -> list[str]:
        """Take what is on disk, as far as it is good; returns what is not.  Files without a mark are removed, foreign names stay."""
        problems: list[str] = []
        marks, is_there = await read_marks(self._disk)
        if is_there and (marks is None or not self._fits(marks)):
            problems.append("the marks of the key index are damaged or of other sizes than those set")
            marks = None
        marks = marks or IndexMarks(self._geometry)
        self._saved = marks
        while True:
            number, files = 0, []
            try:
                for number, mark in enumerate(marks.files):
                    files.append(await self._open_file(replace(mark), is_last=number == len(marks.files) - 1))
                break
            except DamagedIndexError as found:
                problems.append(str(found))
                marks = marks.up_to(number)
        self.files, self._saved = files, marks
        self._resume = (marks.resume_pos, marks.resume_skip)
        self.covered, self.store_ms = marks.index, marks.store_ms
        await self._remove_unmarked()
        return problems

    def _fits(self, marks: IndexMarks) -> bool:
        """Whether the marks are of this log and this geometry."""
        if marks.geometry != self._geometry or marks.index > self._log.last.index:
            return False
        term = self._log.term_at(marks.index)
        return not marks.term or term is None or term == marks.term

    async def _open_file(self, mark: IndexMark, *, is_last: bool) -> IndexFile:
        if is_last:
            opened = OpenIndexFile(self._pool, self._geometry, mark)
            await opened.load(lambda: self.closing)
            return opened
        file = IndexFile(self._pool, self._geometry, mark)
        await file.check_header()
        return file

    async def _remove_unmarked(self) -> None:
        known = {file.mark.name for file in self.files}
        names = [name for name in await self._disk.list(INDEX_FOLDER) if created_ms_of(name) is not None and name not in known]
        await self._remove([f"{INDEX_FOLDER}/{name}" for name in names])

    # Adding

    async def add(self, keys: KeyColumns) -> None:
        """Add keys, all of the messages they are of."""
        self._adding = True
        if self._resume != (0, 0):
            keys = self._behind_resume(keys)
        at = 0
        while at < len(keys):
            file = self.files[-1] if self.files else None
            if not isinstance(file, OpenIndexFile) or file.is_full:
                file = await self._begin(keys, at)
            at += file.add(keys.part(at, at + STEP_KEYS))
            if file.unwritten >= FLUSH_ENTRIES:
                await self._retry_while_full(file.flush)
            await asyncio.sleep(0)
        self._adding = False

    def _behind_resume(self, keys: KeyColumns) -> KeyColumns:
        """Without the keys that an earlier file holds."""
        pos, skip = self._resume
        first = int(np.searchsorted(keys.positions, pos, "left"))
        if first < len(keys) and int(keys.positions[first]) == pos:
            first += skip
        return keys.part(first, len(keys))

    async def _begin(self, keys: KeyColumns, at: int) -> OpenIndexFile:
        """Begin a file with ``keys[at]``; it is called by the store time of that message, so alike on every replica."""
        last = self.files[-1] if self.files else None
        created_ms = int(keys.times[at])
        if isinstance(last, OpenIndexFile):
            sealed = await self._retry_while_full(last.seal)
            self.files = [sealed if file is last else file for file in self.files]
        if self.files:
            created_ms = max(created_ms, (created_ms_of(self.files[-1].mark.name) or 0) + 1)
        pos = int(keys.positions[at])
        skip = at - int(np.searchsorted(keys.positions, pos, "left"))
        if pos == self._resume[0]:
            skip += self._resume[1]
        file = OpenIndexFile(self._pool, self._geometry, IndexMark(file_name(created_ms), int(keys.entries[at]), pos, skip))
        await self._retry_while_full(file.create)
        self.files = [*self.files, file]
        return file

    async def _retry_while_full(self, write: Callable[[], Awaitable[T]]) -> T:
        """Do it, and again while the disk is full.  CancelledError once the set is closing."""
        warned = False
        while True:
            try:
                return await write()
            except OSError as error:
                if not is_full(error):
                    raise
                if not warned:
                    _logger.warning("the disk is full; the key index pauses: %s", error, extra={"event": "key_index_pauses"})
                    warned = True
            if self.closing:
                raise asyncio.CancelledError("the key index closes while the disk is full")
            await asyncio.sleep(FULL_DISK_RETRY_S)

    def is_whole(self, index: int) -> bool:
        """Whether all keys up to log entry ``index`` are in, as far as anybody knows."""
        return self.covered >= index and self.damaged is None

    def cover(self, index: int, store_ms: int) -> None:
        """All keys up to and with log entry ``index`` are added."""
        self.covered = index
        self.store_ms = max(self.store_ms, store_ms)
        self._resume = (0, 0)

    # Making durable

    @property
    def durable_ms(self) -> int:
        """The store time of the newest message whose keys are durable."""
        return self._saved.store_ms

    @property
    def has_changes(self) -> bool:
        """Whether something is not durable yet."""
        return self.covered != self._saved.index or self.unwritten > 0

    @property
    def unwritten(self) -> int:
        last = self.files[-1] if self.files else None
        return last.unwritten if isinstance(last, OpenIndexFile) else 0

    async def flush(self, *, slots: bool = False) -> None:
        """Write what is in memory only."""
        last = self.files[-1] if self.files else None
        if isinstance(last, OpenIndexFile):
            await last.flush()
            if slots:
                await last.write_slots()

    async def persist(self) -> bool:
        """Make everything added durable, and name it; False while the log cannot be put on disk as far, or in the middle of ``add``."""
        if self._adding or not await self._log.make_durable(self.covered):
            return False
        await self.flush()
        last = self.files[-1] if self.files else None
        if isinstance(last, OpenIndexFile):
            await last.sync()
        async with self._marks_lock:
            files = [replace(file.mark) for file in self.files]
            term = self._log.term_at(self.covered) or 0
            marks = IndexMarks(self._geometry, self.covered, term, self.store_ms, *self._resume, files)
            await write_marks(self._disk, marks)
            self._saved = marks
        return True

    # Taking files away

    async def give_up(self, file: IndexFile) -> None:
        """Remove a damaged file and all behind it: what they held is to be added again from the log."""
        self.damaged = None
        if file not in self.files:
            return
        number = self.files.index(file)
        gone, self.files = self.files[number:], self.files[:number]
        self._resume = (file.mark.begin_pos, file.mark.skip)
        self.covered = file.mark.first_index - 1
        async with self._marks_lock:
            names = [mark.name for mark in self._saved.files]
            if file.mark.name in names:
                self._saved = self._saved.up_to(names.index(file.mark.name))
                await write_marks(self._disk, self._saved)
        await self._remove([each.mark.path for each in gone])
        if self.files:
            try:
                self.files[-1] = await self._open_file(self.files[-1].mark, is_last=True)
            except DamagedIndexError as found:
                _logger.warning("%s; it is rebuilt from the log", found, extra={"event": "key_index_rebuilt"})
                await self.give_up(self.files[-1])

    def count_before(self, pos: int) -> int:
        """How many files hold only messages before ``pos``; the last file does not count."""
        count = 0
        while count < len(self.files) - 1 and self.files[count].mark.end_pos < pos:
            count += 1
        return count

    async def drop_before(self, pos: int) -> int:
        """Remove the files that hold only messages before ``pos``; returns how many."""
        count = self.count_before(pos)
        if not count:
            return 0
        gone, self.files = self.files[:count], self.files[count:]
        async with self._marks_lock:
            names = {file.mark.name for file in gone}
            marked = sum(mark.name in names for mark in self._saved.files)
            if marked:
                self._saved = self._saved.without_first(marked)
                await write_marks(self._disk, self._saved)
        await self._remove([file.mark.path for file in gone])
        return count

    async def _remove(self, paths: list[str]) -> None:
        for path in paths:
            if await self._disk.exists(path):
                await self._disk.remove(path)
            await self._pool.drop(path)  # last: a walk may have opened it again meanwhile

    async def close(self) -> None:
        await self._pool.close()

    # Walking

    async def find(self, key_hash: int, window: Window) -> AsyncIterator[int]:
        """Positions of messages that have a key of this hash, newest first.  What a damaged file held is missing (``damaged``)."""
        for file in reversed(self.files):
            if not file.may_hold(window):
                continue
            try:
                async for pos in file.find(key_hash, window):
                    yield pos
            except DamagedIndexError as found:
                if file in self.files:
                    self.report(file, found)

    def report(self, file: IndexFile, found: DamagedIndexError) -> None:
        """A file turned out damaged; the next addition drops the oldest such file."""
        _logger.warning("%s; it is rebuilt from the log", found, extra={"event": "key_index_rebuilt"})
        if self.damaged is None or self.damaged not in self.files or self.files.index(file) < self.files.index(self.damaged):
            self.damaged = file
        self._damage_found()
