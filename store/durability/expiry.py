"""Retention: deletes the log's oldest segments, by age and by disk usage, and what is derived from them.

Owns when a segment is deleted (RocketMQ's rules and names), and the order of the steps:

    a snapshot behind it is durable -> readers no longer see it -> its files go -> a snapshot that says so -> files derived from it go

A crash anywhere in between leaves a store that starts: the derived state is behind the log's start, or can be rebuilt from it.  Only
whole segments are deleted, oldest first, and none with an undelivered message (``retention_floor.py``) or an entry that a replica needs.

On a disk without room no snapshot can be written, so the newest one on it says how far the log may go; the few small files that the
deletion itself writes get the room of the reserve (``disk_reserve.py``), or of the segment prepared ahead.

Messages of the last ``fileReservedTime`` are kept.  Older segments go in the hours ``deleteWhen``, or at any time once the disk is used
beyond ``diskMaxUsedSpaceRatio``; once it has been used beyond ``diskSpaceCleanForciblyRatio`` for ``cleanFileForciblyAfter``, the oldest
that another replica keeps go whatever their age; beyond ``diskSpaceWarningLevelRatio`` the store takes no new messages (``disk_room.py``).
The last two count only where less than ``diskSpaceEnoughFree`` is free (0: always, as in RocketMQ): other users of a large disk are no
reason to delete messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Protocol

from dledger.runtime.env import Environment, is_full
from dledger_wire.errors import DledgerError, NotReadyError, StorageFullError
from store.durability.disk_reserve import Reserve
from store.durability.disk_room import DiskRoom, Replica
from store.durability.retention_floor import RetentionFloor
from store.durability.segment_ages import SegmentAges
from store.log_view import read_with_repair
from store.settings import StoreSettings
from store.state.log_time import LogTime

HOUR_MS = 3_600_000
LOOK_MS = 250

_logger = logging.getLogger(__name__)


class LogHead(Replica, Protocol):
    """Deletes the log's head; ``dledger.node.RaftNode`` is one."""

    def trim_limit(self) -> int: ...
    async def truncate_head(self, upto_index: int) -> int: ...
    def kept_elsewhere(self) -> tuple[int, int]:
        """The first and the last of the entries that another replica has and deletes only by age; (0, 0): none is known."""
        ...


class TrimListener(Protocol):
    """Something made of the log that must never point before the log's start.  ``follow`` may be called with the same position again."""

    @property
    def has_stale_files(self) -> bool: ...
    async def follow(self, first_pos: int) -> None:
        """Forget everything before ``first_pos``: readers get an error for it from now on."""
        ...

    async def remove_files(self) -> None:
        """Delete the files that hold nothing else; a durable snapshot no longer needs them."""
        ...


class SnapshotWriter(Protocol):
    """Makes the derived state durable; ``persistence.Persistence`` is one."""

    @property
    def saved_index(self) -> int:
        """The index of the newest snapshot on disk."""
        ...

    async def save_behind(self, index: int) -> int:
        """Make snapshots durable that reach ``index``, if possible; the index that they reach."""
        ...

    async def save_again(self) -> None:
        """Save a snapshot of what the listeners have changed."""
        ...


@dataclass(frozen=True, slots=True)
class ExpiryTime:
    """What ages are counted by, and when ``deleteWhen`` is: both by the group's time, which a node that has just started does not know."""

    log: LogTime
    utc_offset_ms: Callable[[], int]
    is_known: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Expired:
    """What one round deleted, where the log begins now, and what the next segment stays for (empty: it is the one being written)."""

    segments: int
    size_bytes: int
    first_index: int
    first_pos: int
    held_by: str = ""


class Expiry:
    """Runs while the store does.  One deletion at a time."""

    def __init__(
        self,
        settings: StoreSettings,
        env: Environment,
        head: LogHead,
        snapshots: SnapshotWriter,
        floor: RetentionFloor,
        listeners: Sequence[TrimListener],
        time: ExpiryTime,
    ) -> None:
        self._settings = settings
        self._env = env
        self._log, self._repair = floor.log, floor.repair
        self._head = head
        self._snapshots = snapshots
        self._floor = floor
        self._listeners = listeners
        self._time = time
        self._ages = SegmentAges(self._log)
        self._reserve = Reserve(env.disk, settings.reserve_bytes)
        self._deleting = asyncio.Lock()
        self._asked: dict[asyncio.Task[Expired], None] = {}
        self._deletes: asyncio.Task[Any] | None = None
        self._logged = ""
        self.room = DiskRoom(settings, env, head)
        # The last deletion ended at a message with a delivery time; the timer service sees to it.
        self.waits_for_timers = False

    async def run(self) -> None:
        """Look every ``cleanResourceInterval`` until cancelled."""
        is_first = True
        while True:
            try:
                if is_first:
                    is_first = False
                    await self._reserve.keep(await self.room.look())
                await self._pause()
                await self._round()
            except DledgerError as error:
                _logger.warning("retention paused: %s", error.message, extra={"event": "retention_paused"})
            except OSError as error:
                if not is_full(error):
                    raise
                _logger.warning("the disk is full; retention paused: %s", error, extra={"event": "retention_paused"})

    async def _pause(self) -> None:
        """Until the next round.  Meanwhile look again and again whether there is room for new messages."""
        left_ms = self._settings.cleanResourceInterval
        while left_ms > LOOK_MS:
            await asyncio.sleep(LOOK_MS / 1000)
            left_ms -= LOOK_MS
            await self.room.look()
        await asyncio.sleep(left_ms / 1000)

    async def _round(self) -> None:
        settings = self._settings
        free = await self.room.look()
        await read_with_repair(self._repair, self._follow)
        if any(listener.has_stale_files for listener in self._listeners):
            async with self._deleting:
                await self._settle()
        if self.room.must_shed:
            self._log_held(await self._expire(0, settings.deleteFileBatchMax, sheds=True))
        elif self._time.is_known() and (self.room.used_percent > settings.diskMaxUsedSpaceRatio or self._is_time()):
            self._log_held(await self._expire(settings.fileReservedTime, settings.deleteFileBatchMax))
        await self._reserve.keep(free)

    async def _follow(self) -> None:
        """Let what is made of the log begin where it does; a start could not while the log was damaged."""
        async with self._deleting:
            for listener in self._listeners:
                await listener.follow(self._log.first_pos)

    def _is_time(self) -> bool:
        hour = (self._env.clock.wall_ms() + self._time.utc_offset_ms()) // HOUR_MS % 24
        return hour in self._settings.delete_hours

    def _log_held(self, done: Expired) -> None:
        """Log once why a segment that should be deleted is kept."""
        if done.held_by and done.held_by != self._logged:
            _logger.warning(
                "the log cannot be deleted beyond entry %d: %s", done.first_index, done.held_by, extra={"event": "retention_held"}
            )
        self._logged = done.held_by

    async def expire(self, reserved_ms: int | None = None, max_segments: int = 1 << 30) -> Expired:
        """Delete up to ``max_segments`` segments whose newest message is older than ``reserved_ms`` (None: ``fileReservedTime``).

        StorageFullError when the disk has no room even for what a deletion writes, StorageDamagedError when an entry of the log that is
        looked at cannot be read or repaired, NotReadyError when the log is replaced meanwhile.  A deletion that has begun goes on when the
        caller is cancelled: half of one would leave files that belong to no log any more.
        """
        if reserved_ms is None:
            reserved_ms = self._settings.fileReservedTime
        work = asyncio.create_task(self._expire(reserved_ms, max_segments), name="store.asked expiry")
        self._asked[work] = None
        work.add_done_callback(self._asked_ended)
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            if work is not self._deletes:
                work.cancel()
            raise
        if work.cancelled():
            raise NotReadyError("the log is being closed or replaced by a snapshot; what was deleted of it does not count")
        return work.result()

    def _asked_ended(self, work: asyncio.Task[Expired]) -> None:
        del self._asked[work]
        if not work.cancelled() and (error := work.exception()) is not None:
            _logger.info("a deletion that was asked for failed: %s", error)  # the caller may be gone

    async def end(self) -> None:
        """Break off what was asked for: a deletion that went on would apply positions of this log to the next one."""
        if asked := list(self._asked):
            for work in asked:
                work.cancel()
            await asyncio.wait(asked)

    async def _expire(self, reserved_ms: int, max_segments: int, *, sheds: bool = False) -> Expired:
        """``sheds``: only what another replica keeps."""
        return await read_with_repair(self._repair, lambda: self._expire_once(reserved_ms, max_segments, sheds))

    async def _expire_once(self, reserved_ms: int, max_segments: int, sheds: bool) -> Expired:
        if reserved_ms and not self._time.is_known():
            raise NotReadyError("the age of messages is unknown until this node has the cluster time from a leader")
        async with self._deleting:
            first_index, first_pos = self._log.first_index, self._log.first_pos
            starts = [segment.start_pos for segment in self._log.segments]
            end, held_by = await self._last_to_go(self._time.log.now_ms() - reserved_ms, max_segments, sheds)
            if end >= first_index:
                self._deletes = asyncio.current_task()
                try:
                    await self._delete(end)
                finally:
                    self._deletes = None
            # Not by how many there are now: new ones come meanwhile, and a follower may have to cut some off the log's end.
            removed = sum(start < self._log.segments[0].start_pos for start in starts)
            if removed:
                text = "deleted %d segments of the log, it now begins at entry %d (position %d)"
                _logger.info(text, removed, self._log.first_index, self._log.first_pos)
                await self.room.look()  # new messages are not refused until the next look
            return Expired(removed, self._log.first_pos - first_pos, self._log.first_index, self._log.first_pos, held_by)

    async def _last_to_go(self, before_ms: int, max_segments: int, sheds: bool) -> tuple[int, str]:
        """(the last entry of the newest segment that may go, below the log's start when none may; what one that is old enough stays for)"""
        hold = await self._floor.hold()
        self.waits_for_timers = False
        segments, latest = self._log.segments, self._head.trim_limit()
        end = self._log.first_index - 1
        kept_from, kept_upto = self._head.kept_elsewhere() if sheds else (0, latest)
        for segment, following in islice(pairwise(segments), max_segments):
            if following.first_index > latest:
                return end, f"entry {latest} is not applied here yet, or a replica that follows or copies still needs it"
            if not kept_from <= segment.first_index < following.first_index <= kept_upto + 1:
                return end, f"no other replica is known that keeps the entries {segment.first_index} to {following.first_index - 1}"
            newest_ms = await self._ages.newest_ms(segment, following.first_index)
            if newest_ms is None or newest_ms > before_ms:
                break
            if hold is not None and following.start_pos > hold.pos:
                self.waits_for_timers = hold.can_be_moved
                return end, await self._floor.text(hold)
            end = following.first_index - 1
        return end, ""

    async def _delete(self, end: int) -> None:
        reached, full = await self._snapshot_behind(end)
        if full is not None and reached < self._log.segments[1].first_index - 1 and await self._reserve.release():
            reached, full = await self._snapshot_behind(end)  # there was none yet that lets a segment go: the reserve pays for it
        end = min(end, reached)
        # Whole segments only, so the log will begin with the last segment that begins at or before the entry behind ``end``.
        starts = [segment.start_pos for segment in self._log.segments if segment.first_index <= end + 1]
        if starts[-1] <= self._log.first_pos:
            if full is not None:
                text = (
                    f"the disk is full ({full}), and the newest snapshot on it reaches entry {reached}: nothing can be deleted before that"
                )
                raise StorageFullError(f"{text}; free some room by hand") from full
            return
        for listener in self._listeners:
            await listener.follow(starts[-1])
        await self._cut_head(end)
        await self._settle()

    async def _snapshot_behind(self, end: int) -> tuple[int, OSError | None]:
        """The entry that durable snapshots reach, and why that is not ``end`` where the disk is full."""
        try:
            return await self._snapshots.save_behind(end), None
        except OSError as error:
            if not is_full(error):
                raise
            return self._snapshots.saved_index, error

    async def _cut_head(self, end: int) -> None:
        """Delete, on a full disk with the room of what is kept for that."""
        try:
            await self._head.truncate_head(end)
        except OSError as error:
            if not is_full(error):
                raise
            full = error
        else:
            return
        for give_back in (self._reserve.release, self._log.release_prepared):
            try:
                if await give_back():
                    await self._head.truncate_head(end)
                    return
            except OSError as error:
                if not is_full(error):
                    raise
                full = error
        raise StorageFullError(f"the disk is full ({full}): a deletion itself needs some room; free some by hand") from full

    async def _settle(self) -> None:
        """Delete what only older snapshots name.  Without room for a newer one, later: ``has_stale_files`` says so."""
        try:
            await self._snapshots.save_again()
        except OSError as error:
            if not is_full(error):
                raise
            _logger.warning("the disk is full; obsolete files are removed later: %s", error, extra={"event": "write_deferred"})
            return
        for listener in self._listeners:
            await listener.remove_files()
