"""The key index of a replica: follows the applied log in the background, and finds messages by their keys.

Owns the rhythm.  The dispatcher hands over the batches it applies, which costs it a list append; a task of its own makes columns of them
and adds those.  What it cannot keep up with is not waited for: beyond a bound the batches handed over are forgotten, and the task reads
the log from where it has come to.  So it also catches up at a start, and after a damaged file was given up.  A start waits for none of it:
the newest file, which is read whole (up to 20 million entries), is read by the same task.  Where the log is damaged it has the entry
repaired, or waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from dledger.runtime.env import Disk, is_full
from dledger_wire.batches.batch import BatchView
from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError, StorageDamagedError
from store.append.dispatcher import Applied
from store.key_index.index_check import file_problem
from store.key_index.index_file import DamagedIndexError, Geometry, Window
from store.key_index.index_keys import KeyCollector
from store.key_index.index_set import IndexSet
from store.log_view import SCAN_BYTES, ReadableLog, Repair, entry_records
from store.settings import StoreSettings

LINGER_S = 0.1  # so that many small batches are added at once, unless a query asks for their keys
HURRY_BYTES = 4 << 20
PENDING_BYTES = 32 << 20
STEP_BATCHES = 1000
SLOTS_INTERVAL_MS = 60_000
SCRUB_PAUSE_S = 0.02
DAMAGED_RETRY_S = 5.0

_logger = logging.getLogger(__name__)


class KeyIndex:
    """``run`` it as a task, ``offer`` it every batch that is applied from then on; ``close`` ends the task.

    ``repair`` tries to make a damaged log entry whole again; whether it is.
    """

    def __init__(
        self, settings: StoreSettings, disk: Disk, clock: Clock, log: ReadableLog, applied: Callable[[], Applied], repair: Repair
    ) -> None:
        self._settings = settings
        self._repair = repair
        self._reported = ""  # the damage it waits for, as it was logged
        self._clock = clock
        self._log = log
        self._applied = applied
        self.files = IndexSet(disk, Geometry(settings.maxHashSlotNum, settings.maxIndexNum), log, self._wake_up)
        self._pending: list[tuple[int, int, BatchView]] = []
        self._pending_bytes = 0
        self._pending_from = applied().index + 1  # batches of entries before it are read from the log
        self._first_pos = 0
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()  # do not linger
        self._progress: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._opened = asyncio.Event()
        self._running = False
        self._disk_full = False
        now_ms = clock.monotonic_ms()
        self._flush_due_ms = now_ms + settings.flushIntervalConsumeQueue
        self._save_due_ms = now_ms + settings.snapshot_interval_ms
        self._slots_due_ms = now_ms + SLOTS_INTERVAL_MS

    # Life

    async def run(self) -> None:
        """Take what is on disk, and follow the log until ``close``; what is damaged or missing there is rebuilt."""
        self._running = True
        try:
            await self._open()
            while not self.files.closing:
                await self._wait_for_work()
                await self._take_in()
                await self._write_when_due()
        finally:
            self._ended.set()

    async def _open(self) -> None:
        for problem in await self.files.open():
            _logger.warning("%s; it is rebuilt from the log", problem, extra={"event": "key_index_rebuilt"})
        if self.files.covered >= self._pending_from:  # entries that are applied again after a crash
            self._pending = [each for each in self._pending if each[0] > self.files.covered]
            self._pending_bytes = sum(batch.size for _, _, batch in self._pending)
            self._pending_from = self.files.covered + 1
        self._opened.set()

    async def close(self, *, save: bool = True) -> None:
        """Finish what is being added, make it durable (``save``), and end."""
        self.files.closing = True
        self._wake_up()
        if self._running:
            await self._ended.wait()
        try:
            if save and self._opened.is_set():
                await self.files.flush(slots=True)
                await self.files.persist()
        except OSError as error:
            _logger.warning(
                "the key index could not be written; it is rebuilt from the log: %s", error, extra={"event": "key_index_not_written"}
            )
        await self.files.close()

    def _wake_up(self) -> None:
        self._wake.set()
        self._hurry.set()

    # From the dispatcher

    def offer(self, entry_index: int, pos: int, batch: BatchView) -> None:
        """A batch was applied; its record lies at ``pos``."""
        if entry_index < self._pending_from:
            return
        self._pending.append((entry_index, pos, batch))
        self._pending_bytes += batch.size
        if self._pending_bytes > PENDING_BYTES:
            self._forget_pending(entry_index + 1)
        self._wake.set()
        if self._pending_bytes >= HURRY_BYTES:
            self._hurry.set()

    def _forget_pending(self, take_from: int) -> None:
        self._pending, self._pending_bytes, self._pending_from = [], 0, take_from

    # Following

    async def _wait_for_work(self) -> None:
        """Until there are batches, a file to write, or damage to mend; a little longer when the batches are small."""
        due_ms = min(self._flush_due_ms, self._save_due_ms) if self.files.has_changes else None
        if self._lags or self.files.damaged is not None:
            return
        try:
            timeout_s = None if due_ms is None else max(0.0, (due_ms - self._clock.monotonic_ms()) / 1000)
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._hurry.wait()
        self._hurry.clear()

    @property
    def _lags(self) -> bool:
        """Whether there are applied entries that were not handed over, or whose batches were forgotten."""
        return self.files.covered + 1 < self._pending_from

    async def _take_in(self) -> None:
        if self.files.damaged is not None:
            await self.files.give_up(self.files.damaged)
            self._forget_pending(self._applied().index + 1)
        if self._lags:
            try:
                await self._catch_up()
            except StorageDamagedError as damage:
                await self._wait_for_repair(damage)
        if not self._lags and not self.files.closing:
            await self._take_pending()
        progress, self._progress = self._progress, None
        if progress is not None and not progress.done():
            progress.set_result(None)

    async def _take_pending(self) -> None:
        end = self._applied().index
        pending, store_ms = self._pending, self._applied().store_ms
        self._forget_pending(max(end, self.files.covered) + 1)
        for at in range(0, len(pending), STEP_BATCHES):
            collector = KeyCollector()
            for entry_index, pos, batch in pending[at : at + STEP_BATCHES]:
                collector.add(entry_index, pos, batch)
            await self.files.add(collector.take())
        if end > self.files.covered:
            self.files.cover(end, store_ms)

    async def _catch_up(self) -> None:
        """Read a piece of the log; what is applied meanwhile is handed over, if this piece reaches that far."""
        applied = self._applied().index
        self._forget_pending(applied + 1)
        first = max(self.files.covered + 1, self._log.first_index)
        if first > applied:  # what was not handed over is no longer in the log
            self.files.cover(applied, 0)
            return
        entries = await self._log.read(first, SCAN_BYTES, applied)
        if not entries:
            return  # the head was deleted meanwhile
        collector, store_ms = KeyCollector(), 0
        for entry in entries:
            for pos, record in entry_records(entry):
                if isinstance(record, BatchView):
                    collector.add(entry.index, pos, record)
                    store_ms = record.store_timestamp
        await self.files.add(collector.take())
        self.files.cover(entries[-1].index, store_ms)

    async def _wait_for_repair(self, damage: StorageDamagedError) -> None:
        """Have the damaged entry repaired; a while later, or when a query asks for keys, it is tried again."""
        try:
            if await self._repair(damage):
                return
        except DledgerError as error:
            _logger.info("the key index waits: %s", error.message)
        if self._reported != damage.message:
            self._reported = damage.message
            _logger.warning("the key index waits for an intact entry: %s", damage.message, extra={"event": "key_index_waits"})
        self._hurry.clear()
        if not self.files.closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DAMAGED_RETRY_S):
                    await self._hurry.wait()

    # Writing

    async def _write_when_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        try:
            if now_ms >= self._save_due_ms and self.files.has_changes:
                slots = now_ms >= self._slots_due_ms
                if slots:
                    self._slots_due_ms = now_ms + SLOTS_INTERVAL_MS
                self._save_due_ms = now_ms + self._settings.snapshot_interval_ms
                await self.files.flush(slots=slots)
                await self.files.persist()
            elif now_ms >= self._flush_due_ms:
                self._flush_due_ms = now_ms + self._settings.flushIntervalConsumeQueue
                await self.files.flush()
            else:
                return
            self._disk_full = False
        except OSError as error:
            if not is_full(error):
                raise
            if not self._disk_full:
                self._disk_full = True
                _logger.warning("the disk is full; the key index pauses: %s", error, extra={"event": "key_index_pauses"})

    # Following the log's start (``store.durability.expiry.TrimListener``)

    @property
    def has_stale_files(self) -> bool:
        """Whether there are files that hold only messages which the log has no longer."""
        return self.files.count_before(self._first_pos) > 0

    async def follow(self, first_pos: int) -> None:
        """The log begins at ``first_pos``; what lies before it is found no more, since the log does not have it."""
        self._first_pos = max(self._first_pos, first_pos)

    async def remove_files(self) -> None:
        await self.drop_before(self._first_pos)

    async def drop_before(self, pos: int) -> int:
        """Remove the files that hold only messages before ``pos``; returns how many."""
        return await self.files.drop_before(pos)

    async def scrub(self) -> None:
        """Read every full file once, slowly, and rebuild those that are not what was written."""
        await self._opened.wait()
        for file in list(self.files.files[:-1]):
            problem = await file_problem(file, pause_s=SCRUB_PAUSE_S)
            if problem is not None and file in self.files.files:
                self.files.report(file, DamagedIndexError(file.local_path, *problem))

    # Finding

    async def caught_up(self, index: int, timeout_s: float) -> bool:
        """Wait until all keys up to log entry ``index`` are in; False when they are not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.files.is_whole(index):
                    self._wake_up()  # entries without messages wake nothing
                    if self._progress is None:
                        self._progress = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._progress)
        except TimeoutError:
            return False
        return True

    def find(self, key_hash: int, window: Window) -> AsyncIterator[int]:
        """Positions of messages that have a key of this hash, newest first; the caller compares the key itself."""
        return self.files.find(key_hash, window)
