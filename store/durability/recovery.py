"""The start of a store: from the newest snapshot that fits the log to queues, topics and sequences as they stood at its index.

Owns the choice of the snapshot and the order of steps.  Everything here is derived from the log: files beyond the snapshot are cut back,
missing or short ones are rebuilt, and what was committed after the snapshot is applied again by the log's node.  Where the log itself is
damaged, or the disk is full, queue files stay as they are until that is over (``rebuild_left_files``): reads meanwhile fail with an
error that says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from dledger.log.lost_end import check_log_reaches
from dledger.runtime.env import Disk, FileCut, is_full, is_unwritable
from dledger_wire.errors import DataDirectoryError, DledgerError, StorageDamagedError
from dledger_wire.store_layout import QUEUE_UNIT_SIZE
from store.append.dispatcher import Dispatcher
from store.durability.snapshots import APPLIED, Snapshot, Snapshots, config_path, no_snapshot
from store.log_view import ReadableLog
from store.queues.consume_queue import ConsumeQueue, DamagedQueueFileError
from store.queues.queue_files import QUEUE_FOLDER, FoundFiles, find_files
from store.queues.queue_table import QueueTable
from store.queues.rebuild import FileUse, rebuild_files
from store.state.sequences import QueueKey
from store.state.store_state import StoreState

CUTS_AT_ONCE = 256
LEFT_RETRY_S = 5.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StoreRecovery:
    """What a start found and did."""

    index: int = 0
    clean: bool = True
    damaged_files: list[str] = field(default_factory=list)
    rebuilt_files: list[str] = field(default_factory=list)
    left_files: list[DamagedQueueFileError] = field(default_factory=list)  # to be rebuilt, which was not possible

    def __str__(self) -> str:
        parts = [f"state at index {self.index}, after {'a clean stop' if self.clean else 'a crash'}"]
        if self.damaged_files:
            parts.append(f"unusable: {', '.join(self.damaged_files)}")
        if self.rebuilt_files:
            parts.append(f"rebuilt from the log: {', '.join(self.rebuilt_files)}")
        if self.left_files:
            parts.append(f"to be rebuilt: {'; '.join(map(str, self.left_files))}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Recovering:
    """What is to be filled: queues without any, and state that is replaced at once.

    ``replaced``: log and snapshot are another replica's, installed here, and queue files are those of a state that is gone.  Their sizes do
    not show it, and one that turns out wrong later costs a pass over the log by itself.
    """

    disk: Disk
    log: ReadableLog
    snapshots: Snapshots
    state: StoreState
    queues: QueueTable
    dispatcher: Dispatcher
    replaced: bool = False


async def recover_state(parts: Recovering, *, clean: bool) -> StoreRecovery:
    """Fill ``parts`` from disk.  StorageDamagedError when no snapshot fits a log without its beginning, or the log's end is gone."""
    found = StoreRecovery(clean=clean)
    snapshots = await parts.snapshots.load()
    for each in snapshots:
        check_log_reaches(each.index, parts.log.last.index, parts.disk.local_path(config_path(APPLIED)))
    snapshot = _fitting(snapshots, parts.log)
    found.damaged_files += parts.snapshots.damaged
    if snapshot is None:
        if parts.log.first_index > 1:
            where = parts.disk.local_path(config_path(APPLIED))
            raise StorageDamagedError(f"{where}: {no_snapshot(parts.log.first_index)}", file=where, pos=0)
        snapshot = Snapshot(0, 0, 0, 0)
    _check_file_size(parts, snapshot)
    found.index = snapshot.index
    files = await find_files(parts.disk, parts.queues.file_units)
    await _cut_foreign_queues(parts, files, () if parts.replaced else snapshot.queues)
    _restore(parts, snapshot)
    await _settle_files(parts, files, found)
    return found


def _fitting(snapshots: list[Snapshot], log: ReadableLog) -> Snapshot | None:
    """The newest snapshot whose entry is in the log (or just below its start) with the same term."""
    for snapshot in snapshots:
        if snapshot.index == 0 or log.term_at(snapshot.index) == snapshot.term:
            return snapshot
    return None


def _check_file_size(parts: Recovering, snapshot: Snapshot) -> None:
    """Queue files of another size than the setting's cannot be read, nor left and rebuilt beside: their names would get mixed up."""
    wanted, found = parts.queues.file_units * QUEUE_UNIT_SIZE, snapshot.queue_file_units * QUEUE_UNIT_SIZE
    if snapshot.queues and found != wanted:
        folder = parts.disk.local_path(QUEUE_FOLDER)
        raise DataDirectoryError(f"{folder} has files of {found} bytes, mappedFileSizeConsumeQueue is {wanted}: set it to {found}")


def _restore(parts: Recovering, snapshot: Snapshot) -> None:
    """Not a coroutine: readers see the state of before, or all of the snapshot."""
    parts.state.machine.load(snapshot.sections)
    parts.state.sequences.load(snapshot.sequence_rows)
    for key, mark in snapshot.queues.items():
        parts.queues.restore(key, mark)
    parts.queues.begin_pos = snapshot.queues_begin_pos
    applied = parts.dispatcher.applied
    applied.index, applied.term, applied.end_pos = snapshot.index, snapshot.term, snapshot.end_pos
    applied.store_ms, applied.messages = snapshot.store_ms, snapshot.messages


async def _cut_foreign_queues(parts: Recovering, found: FoundFiles, known: Collection[QueueKey]) -> None:
    """Queues on disk that the snapshot does not know were made after it, or belong to a deleted topic: their units are rebuilt."""
    foreign = {key: found.pop(key) for key in [key for key in found if key not in known]}
    await parts.queues.clear_files(foreign)


async def _settle_files(parts: Recovering, files: FoundFiles, found: StoreRecovery) -> None:
    """Cut each queue's files back to the snapshot and rebuild those that are missing or short."""
    wanted: dict[QueueKey, tuple[ConsumeQueue, list[int]]] = {}
    cuts: list[tuple[FileCut, ConsumeQueue]] = []
    for queue in parts.queues:
        sizes = files.get(queue.key, {})
        cut = await queue.files.settle(sizes, queue.file_numbers().start, queue.max_offset)
        cuts += [(cut, queue)] if cut is not None else []
        short = [number for number in queue.file_numbers() if _is_short(queue, number, sizes.get(number, 0))]
        if short:
            wanted[queue.key] = (queue, short)
    for at in range(0, len(cuts), CUTS_AT_ONCE):
        for queue in await _lost_by_cutting(parts.disk, cuts[at : at + CUTS_AT_ONCE]):
            numbers = wanted.setdefault(queue.key, (queue, []))[1]
            last = queue.file_numbers()[-1]  # a cut is in the last file
            numbers += [last] if last not in numbers else []
    if wanted:
        await _rebuild(parts, wanted, found)


async def _lost_by_cutting(disk: Disk, cuts: Sequence[tuple[FileCut, ConsumeQueue]]) -> list[ConsumeQueue]:
    """Cut files; the queues of those that are gone instead, since the block at the cut cannot be read and so be written in part."""
    try:
        await disk.cut_files([cut for cut, _ in cuts])
    except OSError as error:
        if not is_unwritable(error):
            raise
        if len(cuts) > 1:
            half = len(cuts) // 2
            return await _lost_by_cutting(disk, cuts[:half]) + await _lost_by_cutting(disk, cuts[half:])
        ((cut, queue),) = cuts
        await disk.remove(cut.path)
        return [queue]
    return []


async def _rebuild(parts: Recovering, wanted: dict[QueueKey, tuple[ConsumeQueue, list[int]]], found: StoreRecovery) -> None:
    created = {topic.name: topic.created_pos for topic in parts.state.topics}
    files = [(queue, number) for queue, numbers in wanted.values() for number in numbers]
    try:
        use = FileUse(lambda: found.index, asyncio.Lock(), lambda _queue, _number: True)  # nothing else works yet
        await rebuild_files(parts.log, wanted, created, use)
    except (StorageDamagedError, OSError) as error:
        if not (is_full(error) if isinstance(error, OSError) else error.detail_int("index") > 0):
            raise
        found.left_files = [DamagedQueueFileError(queue, number) for queue, number in files]
    else:
        found.rebuilt_files += [queue.files.local_path(number) for queue, number in files]
    for queue, _ in wanted.values():
        parts.queues.mark_changed(queue)


async def rebuild_left_files(
    left: Sequence[DamagedQueueFileError], rebuild: Callable[[Sequence[DamagedQueueFileError]], Awaitable[None]]
) -> None:
    """Rebuild what a start could not, as soon as the log is whole again and the disk has room."""
    paths, logged = ", ".join(damage.queue.files.local_path(damage.file_number) for damage in left), ""
    while True:
        try:
            return await rebuild(left)
        except DledgerError as error:
            reason = f"wait for an intact entry: {error.message}"
        except OSError as error:
            if not is_full(error):
                raise
            reason = f"wait for room on the disk: {error}"
        if logged != reason:
            logged = reason
            _logger.warning("queue files %s %s", paths, reason, extra={"event": "queue_files_wait"})
        await asyncio.sleep(LEFT_RETRY_S)


def _is_short(queue: ConsumeQueue, number: int, size_bytes: int) -> bool:
    first, end = queue.file_range(number)
    return size_bytes // QUEUE_UNIT_SIZE < end - first
