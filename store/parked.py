"""Where the oldest message lies that a service has yet to deliver: expiry leaves the log from there on alone.

Owns that question for delay levels, delivery times and open transactions.  Their messages were acknowledged to be delivered at a later
time, so neither their age nor a full disk is a reason to delete them before.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.delays import LEVELS, DelayOffsets
from store.queue_reader import QueueReader
from store.queue_table import QueueTable
from store.timers import Timers
from store.transactions import Transactions


class Parked:
    """The parked messages of one replica's store."""

    def __init__(self, queues: QueueTable, delays: DelayOffsets, timers: Timers, transactions: Transactions) -> None:
        self._queues = queues
        self._delays = delays
        self._timers = timers
        self._transactions = transactions

    async def first_pos(self, reader: QueueReader) -> int | None:
        """Log position of the oldest message still to be delivered; None without one."""
        found = [await self._pos(reader, topic, queue_id, offset) for topic, queue_id, offset in self._next()]
        return min((pos for pos in found if pos is not None), default=None)

    def _next(self) -> Iterator[tuple[str, int, int]]:
        """(topic, queue id, first offset not delivered)"""
        for level in range(1, LEVELS + 1):
            yield SCHEDULE_TOPIC, level - 1, self._delays.of(level)
        yield TIMER_TOPIC, 0, self._timers.progress.low
        yield HALF_TOPIC, 0, self._transactions.first_open(0)

    async def _pos(self, reader: QueueReader, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset >= queue.max_offset:
            return None
        units = await reader.units(topic, queue_id, max(offset, queue.min_offset), 1)
        return int(units["pos"][0]) if len(units) else None
