"""All consume queues of a replica: which exist, which are to be written, how much memory they hold.

Owns the one lock under which queue files change, and the order of it: files of deleted queues go before anything new is written, so a
topic that is created again never meets its predecessor's units.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from dledger.log.segment import FilePool
from dledger.runtime.env import Disk
from dledger_wire.check import require
from dledger_wire.store_layout import QUEUE_UNIT_SIZE
from store.queues.consume_queue import ConsumeQueue, QueueMark
from store.queues.queue_files import QueueFiles, queue_folder
from store.settings import StoreSettings
from store.state.sequences import QueueKey

BUFFERS_LIMIT_BYTES = 32 << 20


class QueueTable:
    """Queues by (topic, queue id); a queue is made when its first message is applied."""

    def __init__(self, settings: StoreSettings, disk: Disk) -> None:
        self._settings = settings
        self._disk = disk
        self._pool = FilePool(disk, settings.open_files_limit)
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._dirty: dict[QueueKey, ConsumeQueue] = {}
        self._buffered: dict[QueueKey, ConsumeQueue] = {}  # those that hold memory, the longest untouched first
        self._doomed: list[ConsumeQueue] = []
        self.files_lock = asyncio.Lock()
        self.unwritten = 0  # units in memory only, about: counted when appended, reset by a flush
        self.marks_changed = False  # in another way than by new units: what a snapshot says of them is no longer so
        self.touched: dict[QueueKey, None] = {}  # changed since the owner last looked, in order

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
            queue = self._queues[key] = self._make(key, None)
        return queue

    def restore(self, key: QueueKey, mark: QueueMark) -> ConsumeQueue:
        """A queue as a snapshot says it was."""
        queue = self._queues[key] = self._make(key, mark)
        return queue

    def _make(self, key: QueueKey, mark: QueueMark | None) -> ConsumeQueue:
        files = QueueFiles(self._disk, self._pool, queue_folder(*key), self._settings.queue_file_units)
        return ConsumeQueue(key, files, tail_units=self._settings.queue_tail_units, mark=mark)

    async def clear_files(self, key: QueueKey) -> None:
        """Remove what lies on disk of a queue that does not exist."""
        require(key not in self._queues, "queue %s/%d exists", *key)
        async with self.files_lock:
            await self._make(key, None).remove()

    def max_offset(self, key: QueueKey) -> int:
        queue = self._queues.get(key)
        return queue.max_offset if queue is not None else 0

    def appended(self, queue: ConsumeQueue, count: int) -> None:
        """The queue got new units."""
        self._dirty[queue.key] = queue
        self._buffered.pop(queue.key, None)
        self._buffered[queue.key] = queue
        self.touched[queue.key] = None
        self.unwritten += count

    def drop_topic(self, topic: str) -> list[QueueKey]:
        """The topic was deleted: its queues are gone at once, their files with the next flush."""
        keys = [key for key in self._queues if key[0] == topic]
        for key in keys:
            self._doomed.append(self._queues.pop(key))
            self._dirty.pop(key, None)
            self._buffered.pop(key, None)
            self.touched[key] = None
        return keys

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty or self._doomed)

    async def flush(self, *, sync: bool, min_flush_units: int = 0) -> None:
        """Bring the files up to what is in memory; with ``sync`` durably so.  Queues with fewer new units than ``min_flush_units`` wait."""
        async with self.files_lock:
            while self._doomed:
                await self._doomed[0].remove()
                del self._doomed[0]
            self.unwritten = 0
            for key, queue in list(self._dirty.items()):
                if queue.unwritten < min_flush_units:
                    self.unwritten += queue.unwritten
                    continue
                await queue.flush(sync=sync)
                if self._dirty.get(key) is queue and (queue.is_synced if sync else False):
                    del self._dirty[key]
            self._release_memory()

    def _release_memory(self) -> None:
        held = sum(queue.buffer_units for queue in self._buffered.values()) * QUEUE_UNIT_SIZE
        for key, queue in list(self._buffered.items()):
            if held <= BUFFERS_LIMIT_BYTES:
                break
            if not queue.unwritten:
                held -= queue.buffer_units * QUEUE_UNIT_SIZE
                queue.release_memory()
                del self._buffered[key]

    async def clear(self) -> None:
        """Forget every queue, whatever of it is not written; the files stay."""
        async with self.files_lock:
            await self._pool.close()
            for table in (self._queues, self._dirty, self._buffered):
                table.clear()
            self._doomed.clear()
            self.touched.clear()
            self.unwritten = 0

    async def close(self) -> None:
        async with self.files_lock:
            await self._pool.close()
