"""The retention floor: the log from the oldest undelivered message on is never deleted.

Covers delay levels, delivery times and open transactions, and describes such a message to an operator.  These messages were
acknowledged for later delivery, so neither their age nor a full disk is a reason to delete them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from store.append.staged_check import REAL_TOPIC
from store.log_view import ReadableLog, Repair
from store.queues.queue_reader import QueueReader
from store.queues.queue_table import QueueTable
from store.state.delays import LEVELS
from store.state.store_state import StoreState

_NOT_NAMED = "a topic that cannot be read"


@dataclass(frozen=True, slots=True)
class Hold:
    """A message that keeps the log's head from deletion, by the queue it waits in."""

    pos: int
    topic: str
    queue_id: int
    offset: int
    size: int
    word: int  # of its queue unit: when it is due, in the timer topic

    @property
    def can_be_moved(self) -> bool:
        """Whether the timer service may store it again at the log's end (``broker/delivery/timers.py``)."""
        return self.topic == TIMER_TOPIC


class RetentionFloor:
    """Finds the oldest undelivered message of one replica.  ``repair`` is for readers of its log."""

    def __init__(self, log: ReadableLog, repair: Repair, queues: QueueTable, reader: QueueReader, state: StoreState) -> None:
        self.log, self.repair = log, repair
        self._queues = queues
        self._reader = reader
        self._state = state

    async def hold(self) -> Hold | None:
        """The oldest message in the log that is still to be delivered; None without one."""
        found = [await self._at(topic, queue_id, offset) for topic, queue_id, offset in self._next()]
        return min((hold for hold in found if hold is not None), key=lambda hold: hold.pos, default=None)

    def _next(self) -> Iterator[tuple[str, int, int]]:
        """(topic, queue id, first offset not delivered)"""
        for level in range(1, LEVELS + 1):
            yield SCHEDULE_TOPIC, level - 1, self._state.delays.of(level)
        yield TIMER_TOPIC, 0, self._state.timers.progress.low
        yield HALF_TOPIC, 0, self._state.transactions.first_open(0)

    async def _at(self, topic: str, queue_id: int, offset: int) -> Hold | None:
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset >= queue.max_offset:
            return None
        offset = max(offset, queue.min_offset)
        units = await self._reader.units(topic, queue_id, offset, 1)
        return Hold(int(units["pos"][0]), topic, queue_id, offset, int(units["size"][0]), int(units["tag_hash"][0])) if len(units) else None

    async def text(self, hold: Hold) -> str:
        """What keeps the log's head from deletion, for an operator."""
        try:
            topic = decode_frame(await self.log.read_bytes(hold.pos, hold.size), check_crc=False).properties.get(REAL_TOPIC, _NOT_NAMED)
        except DledgerError:
            topic = _NOT_NAMED
        queue = f"{hold.topic}/{hold.queue_id} offset {hold.offset}"
        if hold.topic == SCHEDULE_TOPIC:
            return f"a delayed message of topic {topic} (level {hold.queue_id + 1}) is not delivered yet ({queue})"
        if hold.topic == HALF_TOPIC:
            return f"a transaction of topic {topic} is open ({queue}); dledger transaction list shows it"
        due = datetime.fromtimestamp(hold.word / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        moved = "the leader moves it within a minute after it is to delete that itself (dledger expire, without --id)"
        return f"a message of topic {topic} with a delivery time is stored there (due {due}, {queue}); {moved}"
