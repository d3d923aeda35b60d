"""Rebuilds queue units from the log: for files that are missing, short or damaged.

Owns the scan.  The log is the truth; what it no longer holds (deleted head) becomes filler units.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import numpy as np

from dledger.log.bulk_turns import TURN_BYTES, TakeTurn, at_once
from dledger_wire.batches.batch import BatchView
from dledger_wire.dtypes import QUEUE_UNIT_DTYPE
from dledger_wire.frames.frames import frame_positions
from dledger_wire.store_layout import QUEUE_FILLER_SIZE
from store.log_view import ReadableLog, entry_records
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_files import Units
from store.queues.unit_tags import unit_tags
from store.state.sequences import QueueKey

CATCH_UPS = 3  # each reads what was applied during the one before

_Lock = AbstractAsyncContextManager[None]


async def scan_batches(
    log: ReadableLog, from_index: int, last_index: int, take_turn: TakeTurn = at_once
) -> AsyncIterator[tuple[int, BatchView]]:
    """(log position, batch) of every batch in a range of entries, read in pieces."""
    index = from_index
    while index <= last_index:
        index = max(index, log.first_index)  # the log's head may be deleted meanwhile
        entries = await log.read(index, TURN_BYTES, last_index)
        if not entries:
            return
        for entry in entries:
            for pos, record in entry_records(entry):
                if isinstance(record, BatchView):
                    yield pos, record
        index = entries[-1].index + 1
        await take_turn(sum(entry.size_bytes for entry in entries))


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


@dataclass(frozen=True, slots=True)
class FileUse:
    """What else happens to queue files during a pass over the log, which may take minutes.

    ``applied`` returns the newest applied entry.  Files change under ``lock`` only; ``has`` says whether a queue still has a file;
    ``take_turn`` returns once the next piece may be read.
    """

    applied: Callable[[], int]
    lock: asyncio.Lock
    has: Callable[[ConsumeQueue, int], bool]
    take_turn: TakeTurn = at_once


async def rebuild_files(
    log: ReadableLog, wanted: dict[QueueKey, tuple[ConsumeQueue, list[int]]], created: dict[str, int], use: FileUse
) -> None:
    """Rewrite the named files of the named queues, in one pass over the log.

    ``created``: where each topic began; batches before that belonged to a deleted topic of the same name.  Memory: one file a queue.
    Queues go on meanwhile, and other files are written; only what was added to unfinished ones in the last moment is read under the lock.
    """
    jobs = {key: _QueueJob(queue, numbers, use) for key, (queue, numbers) in wanted.items()}
    index = log.first_index
    for _ in range(CATCH_UPS):
        upto = use.applied()
        await _scan(log, jobs, created, (index, upto), use.lock, use.take_turn)
        index = upto + 1
    async with use.lock:
        locked = contextlib.nullcontext()
        await _scan(log, jobs, created, (index, use.applied()), locked)
        for job in jobs.values():
            await job.finish(locked)


async def _scan(
    log: ReadableLog,
    jobs: dict[QueueKey, _QueueJob],
    created: dict[str, int],
    indexes: tuple[int, int],
    lock: _Lock,
    take_turn: TakeTurn = at_once,
) -> None:
    """Give the jobs their batches out of these entries; those that are done leave."""
    if not jobs:
        return
    async for pos, batch in scan_batches(log, *indexes, take_turn):
        key = (batch.topic, batch.queue_id)
        job = jobs.get(key)
        if job is None or pos < created.get(batch.topic, 0):
            continue
        await job.add(pos, batch, lock)
        if job.is_done:
            del jobs[key]
            if not jobs:
                return


class _QueueJob:
    """The files of one queue that are to be rewritten; its batches come in the order of their offsets."""

    def __init__(self, queue: ConsumeQueue, numbers: list[int], use: FileUse) -> None:
        self._queue = queue
        self._use = use
        self._waiting = sorted(numbers)
        self._units = fillers(0)  # of the first waiting file, as far as the log was read

    @property
    def is_done(self) -> bool:
        return not self._waiting

    async def add(self, pos: int, batch: BatchView, lock: _Lock) -> None:
        first, end, size = batch.first_queue_offset, batch.first_queue_offset + batch.count, self._queue.files.file_units
        while self._waiting and self._waiting[0] * size < end:
            start = self._waiting[0] * size
            low, high = max(first, start), min(end, start + size)
            if low < high:
                self._put(low - start, batch_units(pos, batch)[low - first : high - first])
            if end < start + size:
                return
            await self._write(lock)

    async def finish(self, lock: _Lock) -> None:
        while self._waiting:
            await self._write(lock)

    def _put(self, at: int, units: Units) -> None:
        end = at + len(units)
        if end > len(self._units):
            room = min(self._queue.files.file_units, max(end, 2 * len(self._units)))
            self._units = _of_length(self._units, room)
        self._units[at:end] = units

    async def _write(self, lock: _Lock) -> None:
        number, units = self._waiting.pop(0), self._units
        self._units = fillers(0)
        async with lock:
            if self._use.has(self._queue, number):
                first, end = self._queue.file_range(number)
                await self._queue.replace_file(number, _of_length(units, end - first))


def _of_length(units: Units, count: int) -> Units:
    found = fillers(count)
    found[: len(units)] = units[:count]
    return found
