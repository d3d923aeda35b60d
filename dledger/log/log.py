"""The replicated log of one node, in memory and on disk.

Owns the two streams of writes, the cache and the reads.  ``append`` and ``cut`` change what is in memory at once (``contents.py``) and
only queue the writing; ``flush`` writes what is queued and says what is durable.  ``save_hard_state`` queues a promise, which
``keep_promise`` writes beside a flush.  *A flush that begins after it waits for it*: no entry is on the disk before the promise of its
term, or recovery would take the log for one on a disk that was replaced by an older copy.  Entries lie exactly at the ``pos`` in
their headers, so the files of all replicas are the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dledger.core.types import EntryId, HardState, NodeId
from dledger.log.bulk_turns import TakeTurn, at_once
from dledger.log.cache import EntryCache
from dledger.log.config import LogConfig
from dledger.log.contents import LogContents
from dledger.log.entry import RawEntry
from dledger.log.hard_state import HardStateFile
from dledger.log.index_units import EntryPlace
from dledger.log.queue import Batch, Cut, WriteQueue
from dledger.log.reader import LogReader
from dledger.log.recovery import Recovered, discard_from, recover, remove_segment
from dledger.log.report import RecoveryReport
from dledger.log.segment import FilePool, log_path
from dledger.log.start import LogStart, save_log_start
from dledger.log.stored import StoredFiles, StoredRanges
from dledger.log.writer import Writer
from dledger.measures import LogMeasures
from dledger.runtime.env import WRITE_NOW_BYTES, Buffer, Disk, Place, is_full
from dledger.runtime.folders import HARD_STATE_PATH
from dledger_wire.check import InvariantBrokenError, require
from dledger_wire.errors import (
    DledgerError,
    OffsetOutOfRangeError,
    StorageDamagedError,
    StorageFailedError,
    StorageFullError,
)
from dledger_wire.tasks import BackgroundTasks

# What ``make_durable`` writes at a time, so that the driver's own flushes get their turn in between.
_SYNC_BYTES = 8 << 20
# What ``check_stored`` checks at a time on the loop.
_CHECK_BYTES = 256 << 10

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flushed:
    """What is durable after a flush (written only, after ``flush(sync=False)``); ``complete``: everything that was queued when it began."""

    last: EntryId
    complete: bool = True


class Log(LogContents):
    """Open with ``Log.open``.  All methods are called from the event loop's thread."""

    def __init__(self, disk: Disk, files: FilePool, config: LogConfig, found: Recovered, writer: Writer, measures: LogMeasures) -> None:
        super().__init__(found, config)
        self.measures = measures
        self._disk = disk
        self._files = files
        self._writer = writer
        self._durable_index = found.last.index
        self._synced_pos = found.end_pos  # how far the file was written at the last sync
        self._queue = WriteQueue()
        self._cache = EntryCache(config.cache_bytes, found.last.index + 1)
        self._reader = LogReader(disk, files, config, self._segments, self._places, self._term_at)
        self._stored = StoredFiles(files, self._segments, self.read_bytes, self._check_not_deleted)
        self._flushing = asyncio.Lock()
        self._promise: HardState | None = None  # what is not durable yet
        self._promising = asyncio.Lock()
        self._trimming = asyncio.Lock()
        # While a flush is in flight: the last entry it may have put on the disk, and the lowest entry cut meanwhile.
        self._reached_index = found.last.index
        self._cut_floor = 0
        self._cuts = 0
        self._failure: StorageFailedError | StorageDamagedError | None = None
        # Called when background work fails the log; a failing flush raises to its caller.
        self.background_failed: Callable[[StorageFailedError | StorageDamagedError], None] = _not_reported
        self._tasks = BackgroundTasks("log", self._on_crash)
        self._units_timer: asyncio.TimerHandle | None = None
        self._wanted_index = 0  # up to where a caller needs the log durable
        self._syncing: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, disk: Disk, config: LogConfig | None = None, measures: LogMeasures | None = None) -> tuple[Log, RecoveryReport]:
        """Find the log and what this node promised.  StorageDamagedError when the promise is lost or older than the log.

        With damage in the report the log may be read, but takes no writes: the node must neither vote nor lead on it.
        """
        config, measures = config or LogConfig(), measures or LogMeasures()
        files = FilePool(disk, config.open_files_limit)
        found = await recover(disk, files, config)
        hard_state = await HardStateFile.open(disk, log_is_empty=found.last.index == 0 and not found.report.damaged)
        if hard_state.state.term < found.last.term:
            path = disk.local_path(HARD_STATE_PATH)
            found_term = f"the log has entries of term {found.last.term}"
            text = f"{path} says term {hard_state.state.term}, but {found_term}: the disk was replaced by an older copy"
            raise StorageDamagedError(text, file=path, pos=0)
        writer = Writer(disk, files, config, hard_state, found.segments, measures)
        log = cls(disk, files, config, found, writer, measures)
        if found.report.damaged:
            first = found.report.damaged[0]
            log._failure = StorageDamagedError(str(first), file=first.file, pos=first.pos, index=first.index)
        else:
            await writer.open(found.last.index, found.end_pos)
            if config.fill_window_bytes:
                log._tasks.spawn(writer.preparer.run(is_full), "prepare")
        return log, found.report

    async def close(self) -> None:
        """End the background work and close the files.  What is queued and not flushed is not written."""
        if self._closed:
            return
        self._closed = True
        if self._units_timer is not None:
            self._units_timer.cancel()
        if self._syncing is not None:
            await asyncio.wait([self._syncing])  # never cancelled: how far its write came would not be known
        await self._tasks.stop()
        async with self._flushing, self._promising:
            if self._failure is None:
                await self._writer.close()
            await self._files.close()

    # -- what is on disk

    @property
    def durable(self) -> EntryId:
        return EntryId(self._durable_index, self._term_at(self._durable_index))

    @property
    def saved(self) -> HardState:
        """The hard state on disk."""
        return self._writer.hard_state.state

    @property
    def failure(self) -> StorageFailedError | StorageDamagedError | None:
        """Why this log takes no more writes, None while it does."""
        return self._failure

    def durable_end(self) -> int:
        """A position up to which the files hold the log durably; the log's first one when that is not known without reading."""
        place = self.locate(self._durable_index)
        return place.end_pos if place is not None else self.first_pos

    def file_of(self, pos: int) -> tuple[str, int]:
        """(path, for another process, of the file that holds a position; the position of its first byte)."""
        segment = self._segments.of_pos(pos)
        return self._disk.local_path(log_path(segment.start_pos)), segment.start_pos

    async def find(self, index: int) -> EntryPlace:
        """Where an entry lies, from the index units when it is an old one."""
        require(self.first_index <= index <= self.last.index, "entry %d of a log from %d to %d", index, self.first_index, self.last.index)
        return await self._reader.find(index)

    # -- adding and cutting

    def append(self, entry: RawEntry) -> None:
        """Add the next entry; readable at once, written by the next flush.  CorruptEntryError when it does not follow the last one."""
        self._check_usable()
        self._add(entry)
        self._cache.add(entry)
        self._queue.add(entry)

    def cut(self, from_index: int) -> None:
        """Remove ``from_index`` and everything after it, from the view now and from the disk with the next flush."""
        self._check_usable()
        require(self.first_index <= from_index <= self.last.index, "cut at %d of a log to %d", from_index, self.last.index)
        self._remove_from(from_index)
        self._cache.cut(from_index)
        self._queue.cut(Cut(from_index, self.end_pos), reached_index=self._reached_index)
        self._durable_index = min(self._durable_index, from_index - 1)
        self._cut_floor = min(self._cut_floor, from_index)
        self._cuts += 1
        self.measures.truncations += 1

    async def discard_from(self, index: int) -> None:
        """In a log opened with damage: give up ``index``, where the damage lies, and all after it.  The next ``Log.open`` ends there.

        Only for entries that are proven not to be committed.
        """
        require(self._failure is not None, "a log in use is cut with cut()")
        place = await self.find(index)
        await discard_from(self._disk, self._files, self._segments.of_pos(place.pos), place, self._config.piece_bytes)

    def save_hard_state(self, term: int, vote: NodeId | None) -> None:
        """Queue the promise; durable once ``keep_promise``, or a flush that began later, returned."""
        self._check_usable()
        self._promise = HardState(term, vote)

    # -- writing

    @property
    def owes_promise(self) -> bool:
        """Whether the newest promise is not durable yet."""
        return self._promise is not None

    async def keep_promise(self) -> HardState:
        """Make the newest promise durable, and return it.  It does not wait for a flush under way; errors as in ``flush``."""
        async with self._promising:
            self._check_usable()
            while (state := self._promise) is not None:
                try:
                    await self._writer.hard_state.save(state)
                except OSError as error:
                    raise self._refused(error) from error
                except BaseException as error:
                    self._fail(error)  # whether it was written is not known (cancelled, a bug)
                    raise
                if self._promise is state:
                    self._promise = None
        return self.saved

    @property
    def unwritten_bytes(self) -> int:
        """How much of the log is in memory only, about."""
        return max(0, self.end_pos - self._writer.end_pos)

    async def flush(self, *, sync: bool = True, max_bytes: int | None = None) -> Flushed:
        """Write everything queued so far (with ``max_bytes``, about that much of it); with ``sync`` it is durable when this returns.

        StorageFullError: the disk is full; everything stays queued, try again.  StorageFailedError: a write or sync failed for good;
        this log takes nothing more.  Calls wait for each other.
        """
        async with self._flushing:
            return await self._flush(sync, max_bytes)

    async def _flush(self, sync: bool, max_bytes: int | None) -> Flushed:
        """The caller holds ``_flushing``."""
        if self._promise is not None:
            await self.keep_promise()
        self._check_usable()
        batch = self._queue.take(max_bytes)
        complete = not self._queue
        synced = sync or self._writer.end_pos - self._synced_pos >= self._config.unsynced_bytes
        with self._writing(batch):
            await self._writer.write(batch, sync=synced)
        self._synced_pos = self._writer.end_pos if synced else min(self._synced_pos, self._writer.end_pos)
        return self._flushed(sync, complete=complete)

    def flush_now(self) -> Flushed | None:
        """The same as ``flush``, done when this returns, if little is queued, entries only, and the disk is one for it; else None."""
        if self._flushing.locked() or self._promise is not None:
            return None
        self._check_usable()
        batch = self._queue.take_entries(WRITE_NOW_BYTES)
        if batch is None:
            return None
        with self._writing(batch):
            written = self._writer.write_now(batch.entries)
        if not written:
            self._queue.give_back(batch)
            return None
        self._synced_pos = self._writer.end_pos
        return self._flushed(True, complete=True)

    @contextlib.contextmanager
    def _writing(self, batch: Batch) -> Iterator[None]:
        """While ``batch`` is being written: what is known of how far that came, and what an error means."""
        if batch.entries:
            self._reached_index = batch.entries[-1].index
        self._cut_floor = self.last.index + 1
        try:
            yield
        except OSError as error:
            refused = self._refused(error)
            if isinstance(refused, StorageFullError):
                self._queue.give_back(batch)
            raise refused from error
        except BaseException as error:
            # How far the write came is not known (a cancelled flush, a bug).
            self._fail(error)
            raise
        finally:
            self._reached_index = self._writer.written_index
            self._cache.evict(min(self._writer.indexed_index, self._cut_floor - 1))
        self._schedule_units_sync()

    async def make_durable(self, index: int) -> bool:
        """See to it that the entries up to ``index`` are durable; False when they cannot be (a full disk, a log that failed or closes).

        May be called at any time, beside flushes and other calls, and may be cancelled: the write is a task of the log.
        """
        if self._durable_index < index:
            self._wanted_index = max(self._wanted_index, index)
            if self._syncing is None and self._failure is None and not self._closed:
                self._syncing = self._tasks.spawn(self._sync_wanted(), "sync")
            if self._syncing is not None:
                await asyncio.wait([self._syncing])
        return self._durable_index >= index

    async def _sync_wanted(self) -> None:
        try:
            while self._durable_index < min(self._wanted_index, self.last.index):
                async with self._flushing:
                    if self._closed:
                        return
                    if self._durable_index < min(self._wanted_index, self.last.index):  # another flush may have seen to it
                        await self._flush(True, _SYNC_BYTES)
        except StorageFullError:
            return  # callers retry; the write stream reports it to the node
        finally:
            self._syncing = None

    def _flushed(self, sync: bool, *, complete: bool) -> Flushed:
        # What was cut while the write was in flight is not durable, whatever was written: its indexes mean other entries now.
        self._durable_index = min(self._writer.synced_index, self._cut_floor - 1)
        index = self._durable_index if sync else min(self._writer.written_index, self._cut_floor - 1)
        return Flushed(EntryId(index, self._term_at(index)), complete)

    def _schedule_units_sync(self) -> None:
        if self._units_timer is None and self._writer.has_unsynced_units and not self._closed:
            delay_s = self._config.units_sync_delay_ms / 1000
            self._units_timer = asyncio.get_running_loop().call_later(delay_s, self._start_units_sync)

    def _start_units_sync(self) -> None:
        self._units_timer = None
        if not self._closed and self._failure is None:
            self._tasks.spawn(self._sync_units(), "units-sync")

    async def _sync_units(self) -> None:
        try:
            await self._writer.sync_units()
        except FileNotFoundError:
            return  # the segment was cut away meanwhile
        except OSError as error:
            if not is_full(error):
                raise
            _logger.warning("disk full; index unit writes deferred: %s", error, extra={"event": "write_deferred"})
        self._schedule_units_sync()

    def _on_crash(self, error: BaseException) -> None:
        self._fail(error)
        self.background_failed(self._refusal())

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = StorageFailedError(f"writing the log failed: {error or type(error).__name__}")

    def _refused(self, error: OSError) -> DledgerError:
        """What a failed write means to the caller; only a full disk leaves the log usable."""
        if is_full(error):
            return StorageFullError(f"the disk is full: {error}")
        self._fail(error)
        return self._refusal()

    def _refusal(self) -> StorageFailedError | StorageDamagedError:
        failure = self._failure
        if failure is None:
            raise InvariantBrokenError("a refusal without a failure")
        return type(failure)(failure.message, **failure.details)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._refusal()
        if self._closed:
            raise InvariantBrokenError("the log is used after it was closed")

    # -- reading

    async def read(self, first_index: int, max_bytes: int, last_index: int) -> list[RawEntry]:
        """Entries from ``first_index`` to at most ``last_index``: as many as fit ``max_bytes``, at least one, checked.

        Empty when ``first_index`` is not in the log (any more).  The newest come from memory; older ones from one large read of one
        file, off the loop.  StorageDamagedError names file, position and index of an entry that is not whole.
        """
        while True:
            last = min(last_index, self.last.index)
            if not self.first_index <= first_index <= last:
                return []
            if (cached := self.cached(first_index, max_bytes, last)) is not None:
                return cached
            cuts = self._cuts
            last = min(last, self._cache.first_index - 1)
            try:
                entries = await self._reader.read(first_index, max_bytes, last)
            except (FileNotFoundError, StorageDamagedError):
                if cuts == self._cuts and first_index >= self.first_index:
                    raise
                continue  # cut or trimmed while it was read
            if cuts == self._cuts:
                return entries

    def cached(self, first_index: int, max_bytes: int, last_index: int) -> list[RawEntry] | None:
        """The same as ``read`` of entries in the log, if memory holds the first of them."""
        return self._cache.run(first_index, max_bytes, last_index) if first_index >= self._cache.first_index else None

    async def read_bytes(self, pos: int, size: int) -> bytes:
        """Any range of bytes within an entry or consecutive entries of one file, unchecked (a message frame has its own checksum).

        OffsetOutOfRangeError (positions, not queue offsets) when they were deleted from the log's head.
        """
        end = pos + size
        require(size >= 0 and end <= self.end_pos, "bytes %d to %d of a log to %d", pos, end, self.end_pos)
        pieces: list[Buffer] = []
        while pos < end:
            cached = self._reader.cached(self._cache, pos, end)
            if not cached:
                cached = [await self._read_file(pos, end)]
            pieces += cached
            pos += sum(len(piece) for piece in cached)
        if len(pieces) == 1 and isinstance(pieces[0], bytes):
            return pieces[0]
        return b"".join(pieces)

    async def read_each(self, places: Sequence[Place]) -> list[bytes]:
        """Several small ranges (position, size) out of the files, each as ``read_bytes`` takes one."""
        return await self._stored.read_each(places)

    def stored(self, ranges: Sequence[Place]) -> StoredRanges | None:
        """Ranges (position, size) as they lie in the files, each within one file; None when they are better read: memory has some of
        them, or a file is damaged."""
        first_cached = self._cache.first_pos
        end = self.written_pos if first_cached is None else min(self.written_pos, first_cached)
        return self._stored.ranges(ranges) if all(pos + size <= end for pos, size in ranges) else None

    @property
    def cached_index(self) -> int:
        """The first entry of those that memory holds, which are the newest; one past the last one when it holds none."""
        return self._cache.first_index

    @property
    def cached_pos(self) -> int:
        """Where that entry begins."""
        first_pos = self._cache.first_pos
        return self.end_pos if first_pos is None else first_pos

    @property
    def written_pos(self) -> int:
        """Where what is in the files ends; behind it lies what only memory has."""
        return min(self._writer.end_pos, self.end_pos)

    async def read_stored(self, pos: int, size: int) -> bytes:
        """A range of bytes of one file below ``written_pos``, as it stands there, whatever memory holds of it."""
        self._check_not_deleted(pos)
        try:
            return await self._reader.read_bytes(pos, size)
        except (FileNotFoundError, StorageDamagedError):
            self._check_not_deleted(pos)
            raise

    async def check_stored(self, first_index: int, last_index: int, take_turn: TakeTurn = at_once) -> None:
        """Check entries as they stand in the files, whatever memory holds; StorageDamagedError names the first that is not whole."""
        index = max(first_index, self.first_index)
        while index <= last_index:
            try:
                entries = await self._reader.read(index, _CHECK_BYTES, last_index)
            except (FileNotFoundError, StorageDamagedError):
                if index >= self.first_index:
                    raise
                index = self.first_index  # trimmed meanwhile
                continue
            index = entries[-1].index + 1
            await asyncio.sleep(0)
            await take_turn(sum(entry.size_bytes for entry in entries))

    async def _read_file(self, pos: int, end: int) -> bytes:
        """From a file, as far as the bytes are not in memory."""
        self._check_not_deleted(pos)
        first_cached = self._cache.first_pos
        file_end = end if first_cached is None or first_cached <= pos else min(end, first_cached)
        try:
            return await self._reader.read_bytes(pos, file_end - pos)
        except (FileNotFoundError, StorageDamagedError):
            self._check_not_deleted(pos)
            raise

    def _check_not_deleted(self, pos: int) -> None:
        if pos < self.first_pos:
            text = f"position {pos} was deleted from the log, which begins at {self.first_pos}"
            raise OffsetOutOfRangeError(text, min_offset=self.first_pos, max_offset=self.end_pos)

    # -- trimming the head

    async def release_prepared(self) -> bool:
        """Remove the file prepared for the next segment, on a disk that has no room left; False when there is none."""
        return self._failure is None and not self._closed and await self._writer.preparer.give_back()

    async def trim(self, first_index: int) -> int:
        """Delete whole sealed segments so that the log starts at or before ``first_index``; returns the new first index.

        The caller ensures that everything below is committed, applied and no longer needed.
        """
        async with self._trimming:
            self._check_usable()
            segment = self._segments.of_index(max(self.first_index, min(first_index, self._durable_index)))
            if segment.start_pos == self._segments.first.start_pos:
                return self.first_index
            before = (await self._reader.read(segment.first_index - 1, 0, segment.first_index - 1))[0]
            start = LogStart(segment.first_index, segment.start_pos, before.term, before.chain_crc)
            await save_log_start(self._disk, start)
            dropped = self._begin_at(start)
            self._writer.segments.trim(start.first_pos)
            self._cache.trim(start.first_index)
            for old in dropped:
                await remove_segment(self._disk, self._files, old.start_pos)
            return start.first_index


def _not_reported(_failure: StorageFailedError | StorageDamagedError) -> None:
    return None
