"""The timer service: delivers messages that have a delivery time of their own.  Runs on the master only.

Such messages wait in ``TIMER_TOPIC``; the units of its queue say when each is due (``store/queues/unit_tags.py``), so only units are read
until then.  Owns the delivery order: new arrivals that are due before what was already delivered go first, then the earliest of those that
wait.  Messages that wait for long are stored again at the log's end, so that its head can be deleted; those that block a deletion (a full
disk, ``dledger expire``) are moved at once.  The progress is replicated state (``store/state/timers.py``), advanced in the log entry of the
delivered messages: a master that fails at any moment leaves nothing delivered twice and nothing lost.  A message that is due but cannot be
read now is held and retried from time to time, while the others are delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from broker.context import ServiceContext
from broker.delivery.backoff import Backoff
from broker.delivery.delivery_entry import batch_bytes, log_changed, log_routed, route_verified, store_with
from broker.delivery.verified_reads import StoredMessages, read_with_repair, unreadable_offset
from dledger_wire.errors import CorruptFrameError, DledgerError, StorageDamagedError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import TIMER_TOPIC
from dledger_wire.tasks import BackgroundTasks
from store.append.redelivery import Routed, due_at, is_changed, moved
from store.commands.topics import CreateTopic
from store.queues.queue_files import Units
from store.queues.timer_window import NO_HORIZON, TimerWindow
from store.state.timers import TimerProgress

BATCH_MESSAGES = 500
WINDOW_MESSAGES = 65_536
SCAN_UNITS = 16_384
MAX_SLEEP_S = 60.0
HELD_RETRY_MS = 1000
HELD_SHARE = 10
RENEW_AFTER_MS = 12 * 3_600_000  # but well before expiry would like to have the segment
RENEW_CHECK_MS = 60_000

Offsets = npt.NDArray[np.int64]

_logger = logging.getLogger(__name__)


class TimerService:
    """Implements ``broker.context.MasterService``."""

    name = "timers"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self.lock = asyncio.Lock()  # of whoever proposes something about messages that wait

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        tasks.spawn(self._run(), "deliver")

    async def stop(self) -> None:
        """Nothing to do: everything is a task."""

    async def _run(self) -> None:
        backoff = Backoff(_logger, "timers")
        while True:
            try:
                await self._ensure_topic()
                await _Delivery(self._context, self.lock, backoff.reset).run()
            except DledgerError as error:
                await asyncio.sleep(backoff.delay_s(error))

    async def _ensure_topic(self) -> None:
        if self._context.store.topics.get(TIMER_TOPIC) is None:
            command = CreateTopic(name=TIMER_TOPIC, read_queues=1, write_queues=1, if_not_exists=True)
            await self._context.raft.propose(self._context.store.command(command))


class _Delivery:
    """Delivery from the replicated progress on.  Recreated after any error, since the last proposal may or may not have been stored.

    ``on_progress`` is called whenever something was stored.
    """

    def __init__(self, context: ServiceContext, lock: asyncio.Lock, on_progress: Callable[[], None]) -> None:
        self._context, self._lock = context, lock
        self._on_progress = on_progress
        self._store = context.store
        self._stored = StoredMessages(context, TIMER_TOPIC, 0)
        self._batch_bytes = batch_bytes(context)
        self._window = TimerWindow(WINDOW_MESSAGES)
        self._renew_after_ms = min(RENEW_AFTER_MS, context.settings.cluster.store.fileReservedTime // 4)
        self._scanned_end = 0
        self._renew_at_ms = 0
        self._retry_held_at_ms = 0
        self._held_retries = 0
        self._logged_unreadable = -1

    @property
    def _progress(self) -> TimerProgress:
        return self._store.timers.progress

    async def run(self) -> None:
        low, _ = self._store.reader.bounds(TIMER_TOPIC, 0)
        self._scanned_end = max(self._progress.seen, low)
        await self._fill()
        while True:
            if await self._take_arrivals() or await self._deliver_due() or await self._deliver_held():
                continue
            if not len(self._window) and self._window.horizon_ms != NO_HORIZON:
                await self._fill()
                continue
            await self._renew_old()
            await self._wait()

    async def _wait(self) -> None:
        now_ms, next_ms = self._context.env.clock.wall_ms(), self._window.next_due_ms
        seconds = MAX_SLEEP_S if next_ms is None else min(MAX_SLEEP_S, (next_ms - now_ms) / 1000)
        if self._progress.held:
            seconds = min(seconds, max(0, self._retry_held_at_ms - self._context.env.clock.monotonic_ms()) / 1000)
        await self._store.wait_for_messages(TIMER_TOPIC, 0, self._scanned_end, seconds)

    async def _fill(self) -> None:
        """Fill the window with the earliest of all waiting messages."""
        self._window.clear()
        offset = max(self._progress.low, self._store.reader.bounds(TIMER_TOPIC, 0)[0])
        while offset < self._scanned_end:
            units, offsets = await self._units(offset, self._scanned_end)
            waiting = np.flatnonzero(self._progress.waiting(offsets, units["tag_hash"].astype(np.int64)))
            self._window.add(offsets[waiting], units[waiting])
            offset += len(units)
            await asyncio.sleep(0)

    async def _units(self, offset: int, end: int) -> tuple[Units, Offsets]:
        count = min(SCAN_UNITS, end - offset)
        units = await read_with_repair(self._context.raft, lambda: self._store.reader.units(TIMER_TOPIC, 0, offset, count))
        return units, np.arange(offset, offset + len(units), dtype=np.int64)

    async def _take_arrivals(self) -> bool:
        """Scan newly stored messages; whether there were any.  Those due before what was already delivered are delivered now."""
        offset, high = self._scanned_end, self._store.reader.bounds(TIMER_TOPIC, 0)[1]
        if offset >= high:
            return False
        units, offsets = await self._units(offset, high)
        waiting = self._progress.waiting(offsets, units["tag_hash"].astype(np.int64))
        late = np.flatnonzero(~waiting)
        limit = self._fit(units[late])
        taken = int(late[limit]) if len(late) > limit else len(units)
        late = late[:limit]
        if len(late):
            await self._deliver(offsets[late], units[late], replace(self._progress, seen=offset + taken))
        self._scanned_end = offset + taken
        self._window.add(offsets[:taken][waiting[:taken]], units[:taken][waiting[:taken]])
        return True

    async def _deliver_due(self) -> bool:
        offsets, units = self._window.due(self._context.env.clock.wall_ms(), BATCH_MESSAGES, self._batch_bytes)
        if not len(offsets):
            return False
        done = replace(self._progress, seen=self._scanned_end, done_ms=int(units["tag_hash"][-1]), done_offset=int(offsets[-1]))
        await self._deliver(offsets, units, done)
        self._window.drop_first(len(offsets))
        return True

    async def _deliver(self, offsets: Offsets, units: Units, progress: TimerProgress) -> None:
        """Deliver these messages, but for what was recalled, and store the progress, in which those that cannot be read now are held."""
        async with self._lock:
            kept = self._store.timers.not_recalled(offsets)
            routed, unreadable = await self._routed(offsets[kept], units[kept])
            for error in unreadable.values():
                _logger.error("timers: a due message cannot be read now and is held: %s", error.message, extra={"event": "message_held"})
            await self._send(routed, replace(progress, held=tuple(sorted({*progress.held, *unreadable}))))

    async def _deliver_held(self) -> bool:
        """Retry one of the held messages; whether it was delivered."""
        held, now_ms = self._progress.held, self._context.env.clock.monotonic_ms()
        if not held or now_ms < self._retry_held_at_ms:
            return False
        self._held_retries += 1
        offset = held[self._held_retries % len(held)]
        without = replace(self._progress, held=tuple(each for each in held if each != offset))
        if offset < self._store.reader.bounds(TIMER_TOPIC, 0)[0]:
            _logger.error(
                "timers: the held message at offset %d was deleted with the head of the log before it could be read",
                offset,
                extra={"event": "held_message_lost"},
            )
            await self._propose([], without)
            return False
        units, offsets = await self._units(offset, offset + 1)
        routed, unreadable = await self._routed(offsets, units)
        if unreadable:
            after_ms = self._context.env.clock.monotonic_ms()  # retries of unresponsive peers must not take most of the time
            self._retry_held_at_ms = after_ms + max(HELD_RETRY_MS, HELD_SHARE * (after_ms - now_ms))
            return False
        await self._send(routed, without)
        _logger.warning(
            "timers: the held message at offset %d was repaired and delivered", offset, extra={"event": "held_message_delivered"}
        )
        return True  # others may have been repaired with it

    async def _routed(self, offsets: Offsets, units: Units) -> tuple[Routed, dict[int, DledgerError]]:
        """Where these messages are delivered, and those that cannot be read now."""
        unreadable: dict[int, DledgerError] = {}
        while True:
            frames, unread = await self._frames(offsets, units)
            unreadable |= unread
            try:
                routed = await route_verified(self._context, self._stored, frames)
            except (StorageDamagedError, CorruptFrameError) as error:
                bad = unreadable_offset(error)
                if bad not in offsets:
                    raise
                unreadable[bad] = error
            else:
                if routed is not None:
                    return routed, unreadable
            kept = ~np.isin(offsets, list(unreadable))
            offsets, units = offsets[kept], units[kept]

    async def _send(self, routed: Routed, progress: TimerProgress) -> None:
        again_ms = self._context.env.clock.wall_ms() + int(MAX_SLEEP_S * 1000)
        await self._propose([*routed.messages, *(due_at(frame, again_ms) for frame in routed.restaged)], progress)
        log_routed(_logger, "timers", (TIMER_TOPIC, 0), routed)

    async def _renew_old(self) -> None:
        """Store messages that have waited for long again at the log's end, and advance ``low`` over what is delivered."""
        clock = self._context.env.clock
        requested = self._store.head_waits_for_timers
        if clock.monotonic_ms() < self._renew_at_ms and not requested:
            return
        self._renew_at_ms = clock.monotonic_ms() + RENEW_CHECK_MS
        end = await self._old_end()
        if requested:
            # Only whole segments are deleted, so messages in the segment being written need not move.
            self._store.head_waits_for_timers = False
            end = max(end, await self._sealed_end())
        end = min([end, self._scanned_end, *self._progress.held[:1]])
        offset = max(self._progress.low, self._store.reader.bounds(TIMER_TOPIC, 0)[0])
        while offset < end:
            async with self._lock:
                offset, end = await self._renew(offset, end)

    async def _renew(self, offset: int, end: int) -> tuple[int, int]:
        """Move messages of one entry from ``offset`` on; how far that came, and where to stop.  What was recalled is left behind."""
        units, offsets = await self._units(offset, end)
        waits = self._progress.waiting(offsets, units["tag_hash"].astype(np.int64)) & self._store.timers.not_recalled(offsets)
        waiting = np.flatnonzero(waits)
        limit = self._fit(units[waiting])
        taken = int(waiting[limit]) if len(waiting) > limit else len(units)
        waiting = waiting[:limit]
        frames, unreadable = await self._frames(offsets[waiting], units[waiting])
        offset += taken
        if unreadable:  # it stays, and so does everything after it
            offset = end = min(unreadable)
            frames = [frame for frame in frames if frame.queue_offset < offset]
            self._log_unreadable(offset, unreadable[offset])
        if offset > self._progress.low:
            due_ms = dict(zip(offsets[waiting].tolist(), units["tag_hash"][waiting].tolist(), strict=True))
            again = [moved(frame, due_ms[frame.queue_offset]) for frame in frames]
            await self._propose(again, replace(self._progress, low=offset, seen=self._scanned_end))
            for changed in filter(is_changed, frames):
                log_changed(_logger, "timers", (TIMER_TOPIC, 0), changed.queue_offset)
            self._window.drop_below(offset)
        return offset, end

    async def _sealed_end(self) -> int:
        """One past the last message in a sealed segment."""
        start_pos = self._context.raft.log.segments[-1].start_pos
        return await read_with_repair(self._context.raft, lambda: self._store.reader.offset_for_position(TIMER_TOPIC, 0, start_pos))

    async def _old_end(self) -> int:
        """One past the last message that has waited for long."""
        older_ms = self._store.time.now_ms() - self._renew_after_ms
        try:
            return await read_with_repair(self._context.raft, lambda: self._store.reader.offset_for_time(TIMER_TOPIC, 0, older_ms))
        except StorageDamagedError as error:
            self._log_unreadable(0, error)
            return 0

    def _log_unreadable(self, offset: int, error: DledgerError) -> None:
        if offset != self._logged_unreadable:
            _logger.error("timers: a waiting message cannot be read now: %s", error.message, extra={"event": "message_unreadable"})
            self._logged_unreadable = offset

    async def _frames(self, offsets: Offsets, units: Units) -> tuple[list[Frame], dict[int, DledgerError]]:
        """The messages in the given order, and those that cannot be read now."""
        unreadable: dict[int, DledgerError] = {}
        while len(offsets):
            order = np.argsort(offsets)
            try:
                frames = await self._stored.at(units[order], offsets[order])
            except (StorageDamagedError, CorruptFrameError) as error:
                bad = unreadable_offset(error)
                if bad not in offsets:
                    raise
                unreadable[bad] = error
                offsets, units = offsets[offsets != bad], units[offsets != bad]
                continue
            return [frames[number] for number in np.argsort(order).tolist()], unreadable
        return [], unreadable

    async def _propose(self, messages: Sequence[Frame], progress: TimerProgress) -> None:
        await store_with(self._context, messages, self._store.command(progress.command()))
        self._on_progress()

    def _fit(self, units: Units) -> int:
        """How many of the messages go into one entry."""
        sizes = np.cumsum(units["size"], dtype=np.int64)
        return max(1, min(BATCH_MESSAGES, int(np.searchsorted(sizes, self._batch_bytes, side="right"))))
