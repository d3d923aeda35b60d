"""What waits for its time at one node: messages of the delay levels, and those with a delivery time of their own.

Owns the counting, from replicated state and queue units alone, so any replica can answer; bodies are read for a short list only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from broker.config.units import parse_duration_ms
from broker.context import ServiceContext
from broker.delivery.verified_reads import StoredMessages, read_with_repair
from dledger_wire.errors import DledgerError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import SCHEDULE_TOPIC, TIMER_TOPIC
from store.queues.queue_files import Units
from store.state.delays import LEVELS

UNITS_A_READ = 16_384
MAX_COUNTED = 1_000_000
MAX_LISTED_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class WaitingLevel:
    """Of one delay level; ``next_due_ms`` 0: nothing waits."""

    level: int
    delay_ms: int
    waiting: int
    next_due_ms: int


@dataclass(slots=True)
class WaitingTimers:
    """``due`` and ``units`` of the next ``listed`` ones; ``exact`` False: not all were looked at."""

    listed: int
    waiting: int = 0
    exact: bool = True
    due: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    units: Units | None = None

    def add(self, units: Units, offsets: npt.NDArray[np.int64]) -> None:
        """Count them, and keep those due first."""
        self.waiting += len(units)
        due = np.concatenate((self.due, units["tag_hash"].astype(np.int64)))
        first = np.argsort(due, kind="stable")[: self.listed]
        self.units = (units if self.units is None else np.concatenate((self.units, units)))[first]
        self.offsets, self.due = np.concatenate((self.offsets, offsets))[first], due[first]


class WaitingMessages:
    """Of one node."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        configured = [parse_duration_ms(text) for text in context.settings.cluster.broker.messageDelayLevel.split()]
        self._delays_ms = {level: configured[min(level, len(configured)) - 1] for level in range(1, LEVELS + 1)}

    async def levels(self) -> list[WaitingLevel]:
        """Every delay level."""
        found = []
        for level, delay_ms in self._delays_ms.items():
            waiting, _first = self._waiting_of(level)
            frames = await self.of_level(level, 1) if waiting else []
            due_ms = self.due_ms(level, frames[0]) if frames else 0
            found.append(WaitingLevel(level, delay_ms, waiting, due_ms))
        return found

    def due_ms(self, level: int, frame: Frame) -> int:
        return frame.store_timestamp + self._delays_ms[level]

    def _waiting_of(self, level: int) -> tuple[int, int]:
        """How many wait, and the offset of the first."""
        store = self._context.store
        if store.topics.get(SCHEDULE_TOPIC) is None:
            return 0, 0
        low, high = store.reader.bounds(SCHEDULE_TOPIC, level - 1, for_service=True)
        first = max(low, store.delays.of(level))
        return max(0, high - first), first

    async def of_level(self, level: int, count: int) -> list[Frame]:
        """The first messages of a level; none that damage keeps from being read now."""
        waiting, first = self._waiting_of(level)
        if not waiting:
            return []
        stored = StoredMessages(self._context, SCHEDULE_TOPIC, level - 1, for_service=True)
        try:
            return await stored.run(first, max_messages=min(count, waiting), max_bytes=MAX_LISTED_BYTES)
        except DledgerError:
            return []

    async def timers(self, listed: int) -> WaitingTimers:
        """How many messages with a delivery time of their own wait, and the next ones due."""
        store, found = self._context.store, WaitingTimers(listed)
        if store.topics.get(TIMER_TOPIC) is None:
            return found
        progress = store.timers.progress
        low, high = store.reader.bounds(TIMER_TOPIC, 0, for_service=True)
        offset = low = max(low, min((progress.low, *progress.held[:1])))
        while offset < high:
            if offset - low >= MAX_COUNTED:
                found.exact = False
                break
            read = partial(store.reader.units, TIMER_TOPIC, 0, offset, min(UNITS_A_READ, high - offset))
            units = await read_with_repair(self._context.raft, read)
            offsets = np.arange(offset, offset + len(units), dtype=np.int64)
            waiting = np.flatnonzero(progress.undelivered(offsets, units["tag_hash"].astype(np.int64)))
            found.add(units[waiting], offsets[waiting])
            offset += max(1, len(units))
            await asyncio.sleep(0)
        return found

    async def frames_of(self, timers: WaitingTimers, count: int) -> list[tuple[int, Frame]]:
        """(due time in ms, message) of the first listed ones that can be read now."""
        units = timers.units
        if units is None or not len(units):
            return []
        fits = min(count, max(1, int(np.searchsorted(np.cumsum(units["size"], dtype=np.int64), MAX_LISTED_BYTES, side="right"))))
        order = np.argsort(timers.offsets[:fits])
        stored = StoredMessages(self._context, TIMER_TOPIC, 0, for_service=True)
        try:
            frames = await stored.at(units[:fits][order], timers.offsets[:fits][order])
        except DledgerError:
            return []
        return list(zip(timers.due[:fits][order].tolist(), frames, strict=True))
