"""Making the derived state durable: queue units every second, a snapshot of everything every few, the abort file while running.

Owns the rhythm and the order: queue files first, then this replica's own log up to what the snapshot holds (entries may be applied before
they are on this disk), then the snapshot.  A full disk only delays all this; the log goes on deciding what is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dledger.runtime.env import Disk, Environment, is_full
from dledger_wire.errors import NotReadyError, StorageDamagedError
from store.durability.checkpoint import Checkpoint, write_checkpoint
from store.durability.snapshots import Snapshot, Snapshots
from store.log_view import ReadableLog
from store.queues.queue_table import QueueTable
from store.settings import StoreSettings

ABORT_PATH = "abort"

_logger = logging.getLogger(__name__)


class Persistence:
    """Writes what ``capture`` returns and what the queues hold."""

    def __init__(
        self,
        settings: StoreSettings,
        env: Environment,
        log: ReadableLog,
        queues: QueueTable,
        snapshots: Snapshots,
        capture: Callable[[], Snapshot],
        indexed_ms: Callable[[], int] | None = None,
    ) -> None:
        self._settings = settings
        self._disk = env.disk
        self._clock = env.clock
        self._log = log
        self._queues = queues
        self._snapshots = snapshots
        self._capture = capture
        self.saved_index = capture().index  # the state is as it was read from disk
        self._backup_index = 0  # of the snapshot before; not known at a start
        self._indexed_ms = indexed_ms
        self.disk_full = False
        self._writing = asyncio.Lock()
        self._ended = False

    async def run(self) -> None:
        """Flush and save until cancelled."""
        interval_s = self._settings.flushIntervalConsumeQueue / 1000
        settings, now_ms = self._settings, self._clock.monotonic_ms
        due_ms, thorough_ms = now_ms() + settings.snapshot_interval_ms, now_ms() + settings.flushConsumeQueueThoroughInterval
        while True:
            await asyncio.sleep(interval_s)
            try:
                if now_ms() >= due_ms:
                    await self.save()
                    due_ms = now_ms() + settings.snapshot_interval_ms
                else:
                    thorough = now_ms() >= thorough_ms
                    if thorough:
                        thorough_ms = now_ms() + settings.flushConsumeQueueThoroughInterval
                    async with self._writing:
                        await self._queues.flush(sync=False, min_flush_units=0 if thorough else settings.min_flush_units)
            except OSError as error:
                if not is_full(error):
                    raise
                self._log_full(error)
            except StorageDamagedError as damage:  # of the log, from which a queue file has to be rebuilt
                _logger.warning("queue files and snapshots are written later: %s", damage.message, extra={"event": "write_deferred"})
            else:
                self.disk_full = False

    def _log_full(self, error: OSError) -> None:
        if not self.disk_full:
            self.disk_full = True
            _logger.warning("the disk is full; queue files and snapshots are written later: %s", error, extra={"event": "write_deferred"})

    async def end(self) -> None:
        """Return when nothing is being written, and let nothing more be."""
        async with self._writing:
            self._ended = True

    async def save(self, *, force: bool = False) -> bool:
        """Make the state as it is now the newest snapshot; False when there is nothing new, or the log cannot be put on disk that far.

        ``force``: also when no entry was applied since the last one (something else of it has changed).
        """
        async with self._writing:
            return await self._save(force=force)

    async def save_again(self) -> None:
        await self.save(force=True)

    async def save_behind(self, index: int) -> int:
        """See to it that both snapshots on disk reach ``index``, so that everything up to there may go; how far the newest does."""
        if self.saved_index < index:
            await self.save()
        if self._backup_index < index <= self.saved_index:
            await self.save(force=True)
        return self.saved_index

    async def _save(self, *, force: bool) -> bool:
        if self._ended:
            raise NotReadyError("the store's files are being replaced")
        snapshot = self._capture()
        if snapshot.index == self.saved_index and not (force or self._queues.marks_changed):
            return False
        marks_changed, self._queues.marks_changed = self._queues.marks_changed, False
        saved = False
        try:
            await self._queues.flush(sync=True)
            if not await self._log.make_durable(snapshot.index):
                return False
            await self._snapshots.save(snapshot)
            saved = True
        finally:
            self._queues.marks_changed |= marks_changed and not saved
        self._backup_index, self.saved_index = self.saved_index, snapshot.index
        indexed_ms = self._indexed_ms() if self._indexed_ms is not None else 0
        times = (snapshot.store_ms, snapshot.store_ms, indexed_ms)
        await write_checkpoint(self._disk, Checkpoint(*times, flushed_pos=snapshot.end_pos, confirmed_pos=snapshot.end_pos))
        return True


async def enter_running(disk: Disk) -> bool:
    """Mark the folder as in use by a running store; True when the last one ended in order."""
    clean = not await disk.exists(ABORT_PATH)
    if clean:
        await disk.write_atomic(ABORT_PATH, b"")
    return clean


async def leave_running(disk: Disk) -> None:
    if await disk.exists(ABORT_PATH):
        await disk.remove(ABORT_PATH)
