"""Queue units made anew from the log: for files that are missing, short or damaged.

Owns the scan.  The log is the truth; what it no longer holds (deleted head) becomes filler units.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from dledger_wire.batch import BatchView
from dledger_wire.frame import frame_positions
from dledger_wire.store_layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_DTYPE
from store.consume_queue import ConsumeQueue
from store.log_view import SCAN_BYTES, LogView, entry_records
from store.queue_files import Units
from store.sequences import QueueKey


async def scan_batches(log: LogView, from_index: int, upto_index: int) -> AsyncIterator[tuple[int, BatchView]]:
    """(log position, batch) of every batch in a range of entries, read in large pieces."""
    index = max(from_index, log.first_index)
    while index <= upto_index:
        entries = await log.read(index, SCAN_BYTES, upto_index)
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
    units["tag_hash"] = batch.tag_hashes
    return units


def fillers(count: int) -> Units:
    units = np.zeros(count, QUEUE_UNIT_DTYPE)
    units["size"] = QUEUE_FILLER_SIZE
    return units


async def rebuild_files(
    log: LogView, wanted: dict[QueueKey, tuple[ConsumeQueue, list[int]]], created: dict[str, int], upto_index: int
) -> None:
    """Write the named files of the named queues anew, in one pass over the log.

    ``created``: where each topic began; batches before that belonged to a deleted topic of the same name.  Memory: the files that the
    pass is inside of.
    """
    pending: dict[tuple[QueueKey, int], Units] = {}
    for key, (queue, numbers) in wanted.items():
        for number in numbers:
            first, upto = queue.file_range(number)
            pending[key, number] = fillers(upto - first)
    async for pos, batch in scan_batches(log, log.first_index, upto_index):
        key = (batch.topic, batch.queue_id)
        if key not in wanted or pos < created.get(batch.topic, 0):
            continue
        queue, _ = wanted[key]
        first, count = batch.first_queue_offset, batch.count
        size = queue.files.file_units
        for number in range(first // size, (first + count - 1) // size + 1):
            target = pending.get((key, number))
            if target is None:
                continue
            start = number * size
            low, high = max(first, start), min(first + count, start + len(target))
            if low < high:
                target[low - start : high - start] = batch_units(pos, batch)[low - first : high - first]
    for (key, number), units in pending.items():
        await wanted[key][0].replace_file(number, units)
