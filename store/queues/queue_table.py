"""All consume queues of a replica: which exist, which are to be written, how much memory they hold.

Owns the one lock under which queue files change, and the order of it: files of deleted queues go before anything new is written, so a
topic that is created again never meets its predecessor's units.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

from dledger.log.segment import FilePool
from dledger.runtime.env import Disk, is_unwritable
from dledger_wire.check import require
from dledger_wire.store_layout import QUEUE_UNIT_SIZE
from store.queues.consume_queue import ConsumeQueue, DamagedQueueFileError, QueueMark
from store.queues.queue_files import FoundFiles, QueueFiles, queue_folder
from store.settings import StoreSettings
from store.state.sequences import QueueKey

BUFFERS_LIMIT_BYTES = 32 << 20
REMOVED_AT_ONCE = 256
REBUILDS_AT_ONCE = 8  # of files that cannot be written as they are, for one flush
QUEUES_AT_ONCE = 32  # of which files are written and synced: others wait so long for the thread that does it


class QueueTable:
    """Queues by (topic, queue id); a queue is made when its first message is applied."""

    def __init__(self, settings: StoreSettings, disk: Disk) -> None:
        self._settings = settings
        self._disk = disk
        self._pool = FilePool(disk, settings.open_files_limit)
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._dirty: dict[QueueKey, ConsumeQueue] = {}
        self._buffered: dict[QueueKey, int] = {}  # units that those which hold memory have room for, the longest untouched first
        self._held_units = 0  # of all of them
        self._doomed: list[ConsumeQueue] = []
        self.files_lock = asyncio.Lock()
        self.begin_pos = 0  # no queue has a message from before it in the log
        self.unwritten = 0  # units in memory only, about: counted when appended, reset by a flush
        self._marks: dict[QueueKey, QueueMark] = {}  # as of the last capture
        self._changed: dict[QueueKey, ConsumeQueue] = {}  # since then
        self.marks_changed = False  # in another way than by new units: what a snapshot says of them is no longer so
        self.touched: dict[QueueKey, None] = {}  # changed since the owner last looked, in order
        self._rebuild: Callable[[Sequence[DamagedQueueFileError]], Awaitable[None]] | None = None

    @property
    def file_units(self) -> int:
        """How many units a file has."""
        return self._settings.queue_file_units

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        return self._queues.get(key)

    def obtain(self, key: QueueKey) -> ConsumeQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._changed[key] = self._make(key, None)
        return queue

    def restore(self, key: QueueKey, mark: QueueMark) -> ConsumeQueue:
        """A queue as a snapshot says it was."""
        queue = self._queues[key] = self._make(key, mark)
        self._marks[key] = mark
        return queue

    def capture(self) -> dict[QueueKey, QueueMark]:
        """Where every queue stands now.  Most have not changed since the last time: only those that have are looked at."""
        for key, queue in self._changed.items():
            self._marks[key] = queue.mark()
        self._changed.clear()
        return self._marks.copy()

    def mark_changed(self, queue: ConsumeQueue) -> None:
        """What a snapshot says of the queue is no longer so, in another way than by new units."""
        if self._queues.get(queue.key) is queue:  # else its topic was deleted meanwhile
            self._changed[queue.key] = queue
        self.marks_changed = True

    def _make(self, key: QueueKey, mark: QueueMark | None) -> ConsumeQueue:
        return ConsumeQueue(key, self._files(key), tail_units=self._settings.queue_tail_units, mark=mark)

    def _files(self, key: QueueKey) -> QueueFiles:
        return QueueFiles(self._disk, self._pool, queue_folder(*key), self._settings.queue_file_units)

    async def clear_files(self, found: FoundFiles) -> None:
        """Remove what lies on disk of queues that do not exist.

        Many at a time: a node that was killed while it wrote the first files of its queues finds tens of thousands.  Those that a power
        failure brings back are found again by the next start.
        """
        for key in found:
            require(key not in self._queues, "queue %s/%d exists", *key)
        waiting = (self._files(key).path(number) for key, numbers in found.items() for number in sorted(numbers, reverse=True))
        async with self.files_lock:
            while paths := list(islice(waiting, REMOVED_AT_ONCE)):
                await self._disk.remove_files(paths)

    def max_offset(self, key: QueueKey) -> int:
        queue = self._queues.get(key)
        return queue.max_offset if queue is not None else 0

    def appended(self, queue: ConsumeQueue, count: int) -> None:
        """The queue got new units."""
        self._dirty[queue.key] = self._changed[queue.key] = queue
        units = queue.buffer_units
        self._held_units += units - self._buffered.pop(queue.key, 0)
        self._buffered[queue.key] = units
        self.touched[queue.key] = None
        self.unwritten += count

    def drop_topic(self, topic: str) -> list[QueueKey]:
        """The topic was deleted: its queues are gone at once, their files with the next flush."""
        keys = [key for key in self._queues if key[0] == topic]
        for key in keys:
            self._doomed.append(self._queues.pop(key))
            self._dirty.pop(key, None)
            self._changed.pop(key, None)
            self._marks.pop(key, None)
            self._held_units -= self._buffered.pop(key, 0)
            self.touched[key] = None
        return keys

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty or self._doomed)

    async def flush(self, *, sync: bool, min_flush_units: int = 0) -> None:
        """Bring the files up to what is in memory; with ``sync`` durably so.  Queues with fewer new units than ``min_flush_units`` wait.

        A file with a block that cannot be read is rebuilt from the log.  StorageDamagedError while that cannot be read, either.
        """
        for left in reversed(range(REBUILDS_AT_ONCE + 1)):
            try:
                return await self._flush(sync, min_flush_units)
            except DamagedQueueFileError as damage:
                if self._rebuild is None or not left:
                    raise damage.__cause__ or damage from None
                await self._rebuild([damage])

    def rebuild_with(self, rebuild: Callable[[Sequence[DamagedQueueFileError]], Awaitable[None]]) -> None:
        """Set what rebuilds damaged files from the log."""
        self._rebuild = rebuild

    async def _flush(self, sync: bool, min_flush_units: int) -> None:
        async with self.files_lock:
            while self._doomed:
                await self._doomed[0].remove()
                del self._doomed[0]
            self.unwritten = 0
            if sync:
                await self._sync()
            else:
                await self._write(min_flush_units)
            self._release_memory()

    async def _write(self, min_flush_units: int) -> None:
        for queue in list(self._dirty.values()):
            if queue.unwritten < min_flush_units:
                self.unwritten += queue.unwritten
            else:
                await queue.flush()

    async def _sync(self) -> None:
        """Many queues at a time: most of a large number have little to write."""
        waiting = iter(list(self._dirty.values()))
        while batch := list(islice(waiting, QUEUES_AT_ONCE)):
            planned = [(queue, *queue.unsynced_writes()) for queue in batch]
            try:
                await self._disk.write_files([write for _, _, writes in planned for write in writes])
            except OSError as error:
                if is_unwritable(error):
                    for queue in batch:  # one after the other, to learn which it is
                        await queue.flush()
                raise
            for queue, end, _ in planned:
                queue.synced(end)
                if queue.is_synced and self._dirty.get(queue.key) is queue:
                    del self._dirty[queue.key]

    def _release_memory(self) -> None:
        limit_units = BUFFERS_LIMIT_BYTES // QUEUE_UNIT_SIZE
        if self._held_units <= limit_units:
            return
        for key in list(self._buffered):
            queue = self._queues[key]
            if not queue.unwritten:
                self._held_units -= self._buffered.pop(key)
                queue.release_memory()
            if self._held_units <= limit_units:
                break

    async def clear(self) -> None:
        """Forget every queue, whatever of it is not written; the files stay."""
        async with self.files_lock:
            await self._pool.close()
            for table in (self._queues, self._dirty, self._changed):
                table.clear()
            self._buffered.clear()
            self._marks.clear()
            self._held_units = self.begin_pos = 0
            self._doomed.clear()
            self.touched.clear()
            self.unwritten = 0

    async def close(self) -> None:
        async with self.files_lock:
            await self._pool.close()
