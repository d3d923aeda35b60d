"""Queues follow the log's start: messages of deleted segments leave the queues.

Owns finding a queue's first message that is left, and the queue files that hold nothing else any more.  Units before a queue's minimum stay
in the file that also holds later ones, as in RocketMQ; a file rebuilt from the log has filler units in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from dledger_wire.errors import StorageDamagedError
from store.queues.consume_queue import ConsumeQueue, DamagedQueueFileError
from store.queues.queue_table import QueueTable
from store.state.sequences import QueueKey

REPAIRS = 2


class QueueTrimmer:
    """Implements ``store.durability.expiry.TrimListener``; ``repair`` rebuilds damaged queue files from the log."""

    def __init__(self, queues: QueueTable, repair: Callable[[Sequence[DamagedQueueFileError]], Awaitable[None]]) -> None:
        self._queues = queues
        self._repair = repair
        self._stale: dict[QueueKey, tuple[ConsumeQueue, list[int]]] = {}

    @property
    def has_stale_files(self) -> bool:
        return bool(self._stale)

    async def follow(self, first_pos: int) -> None:
        """Move every queue's minimum to its first message at or behind ``first_pos``."""
        if first_pos <= self._queues.begin_pos:
            return
        waiting, repaired = list(self._queues), Counter[str]()
        while waiting:
            damages: list[DamagedQueueFileError] = []
            for queue in waiting:
                try:
                    await self._move(queue, first_pos)
                except DamagedQueueFileError as damage:
                    damages.append(damage)
            if damages:
                # All of them together: a repair reads the whole log.
                await self._repair(damages)
                repaired.update(damage.queue.files.local_path(damage.file_number) for damage in damages)
                for path, times in repaired.items():
                    if times > REPAIRS:
                        raise StorageDamagedError(f"{path}: damaged, also after it was rebuilt from the log", file=path)
            waiting = [damage.queue for damage in damages if damage.queue is self._queues.get(damage.queue.key)]
        self._queues.begin_pos = first_pos

    async def _move(self, queue: ConsumeQueue, first_pos: int) -> None:
        first = await self._first_at(queue, first_pos)
        if first == queue.min_offset:
            return
        async with self._queues.files_lock:
            gone = queue.start_from(first)
            self._queues.mark_changed(queue)
        if gone:
            known = self._stale.setdefault(queue.key, (queue, []))
            self._stale[queue.key] = (queue, [*(known[1] if known[0] is queue else []), *gone])

    async def remove_files(self) -> None:
        """Delete files whose queue begins behind them; no snapshot names them any more."""
        async with self._queues.files_lock:
            for key, (queue, numbers) in list(self._stale.items()):
                if self._queues.get(key) is queue:  # else the topic was deleted, and its files with it
                    await queue.files.cut_head(max(numbers) + 1)
                del self._stale[key]

    async def _first_at(self, queue: ConsumeQueue, first_pos: int) -> int:
        low, high = queue.min_offset, queue.max_offset
        if queue.last_end_pos <= first_pos:
            return high
        if first_pos <= queue.head_pos:  # no file is read for queues that begin behind what was deleted
            return low
        head_pos = queue.head_pos
        while low < high:
            middle = (low + high) // 2
            units = await queue.read(middle, 1)
            if not len(units):  # the topic was deleted meanwhile
                return queue.min_offset
            pos = int(units[0]["pos"])
            if pos < first_pos:  # 0 of a filler
                low = middle + 1
            else:
                high, head_pos = middle, pos
        queue.head_pos = head_pos
        return low
