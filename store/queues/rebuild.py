"""Rebuilds queue units from the log: for files that are missing, short or damaged.

Owns the scan.  The log is the truth; what it no longer holds (deleted head) becomes filler units.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from dledger_wire.batches.batch import BatchView
from dledger_wire.frames.frame import frame_positions
from dledger_wire.store_layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_DTYPE
from store.log_view import SCAN_BYTES, ReadableLog, entry_records
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_files import Units
from store.queues.unit_tags import unit_tags
from store.state.sequences import QueueKey


async def scan_batches(log: ReadableLog, from_index: int, last_index: int) -> AsyncIterator[tuple[int, BatchView]]:
    """(log position, batch) of every batch in a range of entries, read in large pieces."""
    index = max(from_index, log.first_index)
    while index <= last_index:
        entries = await log.read(index, SCAN_BYTES, last_index)
        if not entries:
            return
        for entry in entries:
            for pos, record in entry_records(entry):
                if isinstance(record, BatchView):
                    yield pos, record
        index = entries[-1].index + 1


def batch_units(pos: int, batch: BatchView) -> Units:
    """The queue units of a batch whose record lies at ``pos`` in the log."""
    units = np.empty(batch.count, QUEUE_UNIT_DTYPE)
    units["pos"] = frame_positions(batch.sizes) + pos + batch.frames_at
    units["size"] = batch.sizes
    units["tag_hash"] = unit_tags(batch)
    return units


def fillers(count: int) -> Units:
    units = np.zeros(count, QUEUE_UNIT_DTYPE)
    units["size"] = QUEUE_FILLER_SIZE
    return units


async def rebuild_files(
    log: ReadableLog, wanted: dict[QueueKey, tuple[ConsumeQueue, list[int]]], created: dict[str, int], last_index: int
) -> None:
    """Write the named files of the named queues anew, in one pass over the log.

    ``created``: where each topic began; batches before that belonged to a deleted topic of the same name.  Memory: one file a queue.
    """
    jobs = {key: _QueueJob(queue, numbers) for key, (queue, numbers) in wanted.items()}
    async for pos, batch in scan_batches(log, log.first_index, last_index):
        job = jobs.get((batch.topic, batch.queue_id))
        if job is not None and pos >= created.get(batch.topic, 0):
            await job.add(pos, batch)
    for job in jobs.values():
        await job.finish()


class _QueueJob:
    """The files of one queue that are to be written anew; its batches come in the order of their offsets."""

    def __init__(self, queue: ConsumeQueue, numbers: list[int]) -> None:
        self._queue = queue
        self._waiting = sorted(numbers)
        self._units: Units | None = None  # of the first waiting file, once the log has something for it

    async def add(self, pos: int, batch: BatchView) -> None:
        first, end, size = batch.first_queue_offset, batch.first_queue_offset + batch.count, self._queue.files.file_units
        while self._waiting and self._waiting[0] * size < end:
            start = self._waiting[0] * size
            units = self._open()
            low, high = max(first, start), min(end, start + len(units))
            if low < high:
                units[low - start : high - start] = batch_units(pos, batch)[low - first : high - first]
            if end < start + size:
                return
            await self._write()

    async def finish(self) -> None:
        while self._waiting:
            await self._write()

    def _open(self) -> Units:
        if self._units is None:
            first, end = self._queue.file_range(self._waiting[0])
            self._units = fillers(end - first)
        return self._units

    async def _write(self) -> None:
        units = self._open()
        await self._queue.replace_file(self._waiting.pop(0), units)
        self._units = None
