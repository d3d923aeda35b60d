"""The timer service: delivers messages that have a delivery time of their own.  Runs on the master only.

Such messages wait in ``TIMER_TOPIC``; the units of its queue tell when each is due (``store/unit_tags.py``), so nothing but units is looked
at until then.  Owns the order of delivering: arrivals that are due before what was delivered already go first, then the earliest of
those that wait; messages that wait for long are stored again at the log's end, so that its head can be deleted.  How far it came is
replicated state (``store/timers.py``), moved on in the log entry of the messages themselves: a master that dies at any moment leaves
nothing delivered twice and nothing forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt

from broker.services.face import ServiceFace
from dledger.service import TaskOwner
from dledger_wire.errors import DledgerError
from dledger_wire.frame import Frame, decode_frame, frame_positions
from dledger_wire.names import TIMER_TOPIC
from dledger_wire.timer import TIMER_OUT
from store.delivery import Together, batches_of, sort_out
from store.queue_files import Units
from store.timer_window import NO_HORIZON, TimerWindow
from store.timers import ADVANCE_TIMERS, TimerProgress
from store.topics import CREATE

BATCH_MESSAGES = 500
BATCH_BYTES = 1 << 20
WINDOW_MESSAGES = 65_536
SCAN_UNITS = 16_384
LONGEST_SLEEP_S = 60.0
RETRY_S = 0.05
RENEW_AFTER_MS = 12 * 3_600_000  # but well before expiry would like to have the segment
RENEW_CHECK_MS = 60_000

_logger = logging.getLogger(__name__)


class TimerService:
    """Implements ``broker.role_change.MasterService``."""

    name = "timers"

    def __init__(self, face: ServiceFace) -> None:
        self._face = face

    async def start(self, term: int, tasks: TaskOwner) -> None:
        tasks.spawn(self._run(), "deliver")

    async def stop(self) -> None:
        """Nothing is left when the tasks are gone."""

    async def _run(self) -> None:
        while True:
            try:
                await self._see_to_topic()
                await _Delivery(self._face).run()
            except DledgerError as error:
                _logger.info("timers wait: %s", error.message)
                await asyncio.sleep(RETRY_S)

    async def _see_to_topic(self) -> None:
        if self._face.store.topics.get(TIMER_TOPIC) is None:
            arguments = {"name": TIMER_TOPIC, "read_queues": 1, "write_queues": 1, "if_not_exists": True}
            await self._face.raft.propose(self._face.store.command(CREATE, arguments))


class _Delivery:
    """From the replicated state on; begins anew after any error, since what was proposed last may or may not be stored."""

    def __init__(self, face: ServiceFace) -> None:
        self._face = face
        self._store = face.store
        self._window = TimerWindow(WINDOW_MESSAGES)
        self._renew_after_ms = min(RENEW_AFTER_MS, face.settings.cluster.store.fileReservedTime // 4)
        self._looked_upto = 0
        self._renew_at_ms = 0

    @property
    def _progress(self) -> TimerProgress:
        return self._store.timers.progress

    async def run(self) -> None:
        low, _ = self._store.reader.bounds(TIMER_TOPIC, 0)
        self._looked_upto = max(self._progress.seen, low)
        await self._fill()
        while True:
            if await self._take_arrivals() or await self._deliver_due():
                continue
            if not len(self._window) and self._window.horizon_ms != NO_HORIZON:
                await self._fill()
                continue
            await self._renew_old()
            await self._wait()

    async def _wait(self) -> None:
        now_ms, next_ms = self._face.env.clock.wall_ms(), self._window.next_due_ms
        seconds = LONGEST_SLEEP_S if next_ms is None else min(LONGEST_SLEEP_S, (next_ms - now_ms) / 1000)
        await self._store.wait_for_messages(TIMER_TOPIC, 0, self._looked_upto, seconds)

    async def _fill(self) -> None:
        """Look through everything that waits, for the earliest of it."""
        self._window.clear()
        offset = max(self._progress.low, self._store.reader.bounds(TIMER_TOPIC, 0)[0])
        while offset < self._looked_upto:
            units, offsets = await self._units(offset, self._looked_upto)
            waiting = np.flatnonzero(self._progress.waiting(offsets, units["tag_hash"].astype(np.int64)))
            self._window.add(offsets[waiting], units[waiting])
            offset += len(units)
            await asyncio.sleep(0)

    async def _units(self, offset: int, upto: int) -> tuple[Units, npt.NDArray[np.int64]]:
        units = await self._store.reader.units(TIMER_TOPIC, 0, offset, min(SCAN_UNITS, upto - offset))
        return units, np.arange(offset, offset + len(units), dtype=np.int64)

    async def _take_arrivals(self) -> bool:
        """Look at messages stored since; whether there were any.  Those due before what is delivered already are delivered here."""
        offset, high = self._looked_upto, self._store.reader.bounds(TIMER_TOPIC, 0)[1]
        if offset >= high:
            return False
        units, offsets = await self._units(offset, high)
        waiting = self._progress.waiting(offsets, units["tag_hash"].astype(np.int64))
        late = np.flatnonzero(~waiting)
        taken = len(units)
        if len(late) and len(late) > (most := _fit(units[late])):
            taken = int(late[most])
            late = late[:most]
        if len(late):
            await self._deliver(offsets[late], units[late], replace(self._progress, seen=offset + taken))
        self._looked_upto = offset + taken
        self._window.add(offsets[:taken][waiting[:taken]], units[:taken][waiting[:taken]])
        return True

    async def _deliver_due(self) -> bool:
        offsets, units = self._window.due(self._face.env.clock.wall_ms(), BATCH_MESSAGES, BATCH_BYTES)
        if not len(offsets):
            return False
        done = replace(self._progress, seen=self._looked_upto, done_ms=int(units["tag_hash"][-1]), done_offset=int(offsets[-1]))
        await self._deliver(offsets, units, done)
        self._window.drop_first(len(offsets))
        return True

    async def _deliver(self, offsets: npt.NDArray[np.int64], units: Units, progress: TimerProgress) -> None:
        sorted_out = sort_out(self._store.topics, await self._frames(offsets, units))
        if sorted_out.gone:
            _logger.warning("timers: %d messages belong to no topic any more", sorted_out.gone)
        again_ms = self._face.env.clock.wall_ms() + int(LONGEST_SLEEP_S * 1000)
        await self._propose([*sorted_out.messages, *(_due_at(frame, again_ms) for frame in sorted_out.again)], progress)

    async def _renew_old(self) -> None:
        """Store what has waited for long again at the log's end, and move ``low`` over what is delivered."""
        clock = self._face.env.clock
        if clock.monotonic_ms() < self._renew_at_ms:
            return
        self._renew_at_ms = clock.monotonic_ms() + RENEW_CHECK_MS
        old_upto = await self._store.reader.offset_for_time(TIMER_TOPIC, 0, clock.wall_ms() - self._renew_after_ms)
        offset = max(self._progress.low, self._store.reader.bounds(TIMER_TOPIC, 0)[0])
        while offset < min(old_upto, self._looked_upto):
            units, offsets = await self._units(offset, min(old_upto, self._looked_upto))
            waiting = np.flatnonzero(self._progress.waiting(offsets, units["tag_hash"].astype(np.int64)))
            taken = len(units)
            if len(waiting) and len(waiting) > (most := _fit(units[waiting])):
                taken = int(waiting[most])
                waiting = waiting[:most]
            frames = await self._frames(offsets[waiting], units[waiting]) if len(waiting) else []
            offset += taken
            await self._propose(frames, replace(self._progress, low=offset, seen=self._looked_upto))
            self._window.drop_below(offset)

    async def _frames(self, offsets: npt.NDArray[np.int64], units: Units) -> list[Frame]:
        """The messages, in the order given."""
        order = np.argsort(offsets)
        data = b"".join(await self._store.reader.frames_of(TIMER_TOPIC, 0, units[order], offsets[order]))
        places = frame_positions(units["size"][order]).tolist()
        frames = [decode_frame(data, position, check_crc=False) for position in places]
        return [frames[number] for number in np.argsort(order).tolist()]

    async def _propose(self, messages: Sequence[Frame], progress: TimerProgress) -> None:
        batches = self._store.prepare(batches_of(messages)) if messages else None
        await self._face.raft.propose(Together(batches, self._store.command(ADVANCE_TIMERS, asdict(progress))))


def _fit(units: Units) -> int:
    """How many of the messages go into one entry."""
    sizes = np.cumsum(units["size"], dtype=np.int64)
    return max(1, min(BATCH_MESSAGES, int(np.searchsorted(sizes, BATCH_BYTES, side="right"))))


def _due_at(frame: Frame, due_ms: int) -> Frame:
    return replace(frame, queue_id=0, properties={**frame.properties, TIMER_OUT: str(due_ms)})
