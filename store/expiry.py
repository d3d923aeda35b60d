"""Expiry: deleting the log's oldest segments, by age and by how full the disk is, and everything that follows the log's start.

Owns when a segment goes (upstream's rules and names) and the order in which it does:

    a snapshot behind it is durable -> readers no longer see it -> its files go -> a snapshot that says so -> files derived from it go

A crash anywhere in between leaves a store that starts: the derived state is behind the log's start or can be made anew from it.  Only whole
        needed_pos = await self._hooks.needed_from()
        segments, latest = self._log.segments, self._head.latest_start()
        upto = self._log.first_index - 1
        for segment, following in islice(pairwise(segments), most):
            if following.first_index > latest or (needed_pos is not None and following.start_pos > needed_pos):

Messages of the last ``fileReservedTime`` are kept.  Older segments go in the hours ``deleteWhen``, or at any time once the disk is used
beyond ``diskMaxUsedSpaceRatio``; beyond ``diskSpaceCleanForciblyRatio`` the oldest go whatever their age; beyond
``diskSpaceWarningLevelRatio`` the store takes no new messages.  The last two count only where less than ``diskSpaceEnoughFree`` is free (0:
anywhere, as upstream): a large disk that others fill is no reason to throw messages away.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Protocol

from dledger.env import Environment, SyncFailedError
from dledger_wire.errors import DledgerError, NotReadyError
from store.log_time import LogTime
from store.log_view import LogView
from store.segment_ages import SegmentAges
from store.settings import StoreSettings

HOUR_MS = 3_600_000
_FULL = (errno.ENOSPC, errno.EDQUOT)

_logger = logging.getLogger(__name__)


class LogHead(Protocol):
    """Who may cut the log's head; ``dledger.node.RaftNode`` is one."""

    def latest_start(self) -> int: ...
    async def truncate_head(self, upto_index: int) -> int: ...


class HeadFollower(Protocol):
    """Something made of the log that must never point before the log's start.  ``follow`` may be called with the same position again."""

    @property
    def has_stale_files(self) -> bool: ...
    async def follow(self, first_pos: int) -> None:
        """Forget what lies before ``first_pos``: whoever reads it from now on is told that it is gone."""
        ...

    async def remove_files(self) -> None:
        """Delete the files that hold nothing else; a durable snapshot no longer needs them."""
        ...


@dataclass(frozen=True, slots=True)
class ExpiryHooks:
    """What expiry needs of the store.  ``followers`` are told in this order."""

    save: Callable[[int], Awaitable[int]]  # make snapshots durable that reach an index, if possible; how far they do
    save_anew: Callable[[], Awaitable[None]]  # a snapshot of what followers have changed
    needed_from: Callable[[], Awaitable[int | None]]  # log position of the oldest message that is still to be delivered
    followers: Sequence[HeadFollower]


@dataclass(frozen=True, slots=True)
class ExpiryTime:
    """What ages are counted by, and when ``deleteWhen`` is: both by the group's time, which a node that has just started does not know."""

    log: LogTime
    utc_offset_ms: Callable[[], int]
    is_known: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Expired:
    """What one round deleted, and where the log begins now."""

    segments: int
    size_bytes: int
    first_index: int
    first_pos: int


class Expiry:
    """Runs while the store does.  One deletion at a time."""

    def __init__(
        self, settings: StoreSettings, env: Environment, log: LogView, head: LogHead, hooks: ExpiryHooks, time: ExpiryTime
    ) -> None:
        self._settings = settings
        self._env = env
        self._log = log
        self._head = head
        self._hooks = hooks
        self._time = time
        self._ages = SegmentAges(log)
        self._deleting = asyncio.Lock()
        self.used_percent = 0.0
        self.refuses_messages = False

    async def run(self) -> None:
        """Look every ``cleanResourceInterval`` until cancelled."""
        while True:
            await asyncio.sleep(self._settings.cleanResourceInterval / 1000)
            try:
                await self._round()
            except DledgerError as error:
                _logger.warning("expiry waits: %s", error.message)
            except OSError as error:
                if isinstance(error, SyncFailedError) or error.errno not in _FULL:
                    raise
                _logger.warning("the disk is full; expiry waits: %s", error)

    async def _round(self) -> None:
        settings, disk = self._settings, self._env.disk
        total, free = await disk.total_bytes(), await disk.free_bytes()
        self.used_percent = 100.0 * (1.0 - free / total) if total else 0.0
        in_need = not settings.diskSpaceEnoughFree or free < settings.diskSpaceEnoughFree
        self._warn(in_need and self.used_percent > settings.diskSpaceWarningLevelRatio)
        if any(follower.has_stale_files for follower in self._hooks.followers):
            async with self._deleting:
                await self._settle()
        if in_need and self.used_percent > settings.diskSpaceCleanForciblyRatio and settings.cleanFileForciblyEnable:
            await self.expire(0, settings.deleteFileBatchMax)
        elif self._time.is_known() and (self.used_percent > settings.diskMaxUsedSpaceRatio or self._is_time()):
            await self.expire(settings.fileReservedTime, settings.deleteFileBatchMax)

    def _warn(self, refuses: bool) -> None:
        if refuses != self.refuses_messages:
            self.refuses_messages = refuses
            text = "takes no new messages" if refuses else "takes new messages again"
            limit = self._settings.diskSpaceWarningLevelRatio
            _logger.warning("the disk is used to %.1f %% (diskSpaceWarningLevelRatio %d): this node %s", self.used_percent, limit, text)

    def _is_time(self) -> bool:
        hour = (self._env.clock.wall_ms() + self._time.utc_offset_ms()) // HOUR_MS % 24
        return hour in self._settings.delete_hours

    async def expire(self, reserved_ms: int | None = None, most: int = 1 << 30) -> Expired:
        """Delete up to ``most`` segments whose newest message is older than ``reserved_ms`` (None: ``fileReservedTime``)."""
        if reserved_ms is None:
            reserved_ms = self._settings.fileReservedTime
        if reserved_ms and not self._time.is_known():
            raise NotReadyError("how old messages are is not known before a leader has told this node the group's time")
        async with self._deleting:
            first_index, first_pos, count = self._log.first_index, self._log.first_pos, len(self._log.segments)
            upto = await self._last_to_go(self._time.log.now_ms() - reserved_ms, most)
            if upto >= first_index:
                await self._delete(upto)
            removed = count - len(self._log.segments)
            if removed > 0:
                text = "deleted %d segments of the log, it now begins at entry %d (position %d)"
                _logger.info(text, removed, self._log.first_index, self._log.first_pos)
            return Expired(max(removed, 0), self._log.first_pos - first_pos, self._log.first_index, self._log.first_pos)

    async def _last_to_go(self, before_ms: int, most: int) -> int:
        """The last entry of the newest segment that may go; below the log's start when none may."""
        needed_pos = await self._hooks.needed_from()
        segments, latest = self._log.segments, self._head.latest_start()
        upto = self._log.first_index - 1
        for segment, following in islice(pairwise(segments), most):
            if following.first_index > latest or (needed_pos is not None and following.start_pos > needed_pos):
                break
            newest_ms = await self._ages.newest_ms(segment, following.first_index)
            if newest_ms is None or newest_ms > before_ms:
                break
            upto = following.first_index - 1
        return upto

    async def _delete(self, upto: int) -> None:
        upto = min(upto, await self._hooks.save(upto))
        # Whole segments only, so the log will begin with the last segment that begins at or before the entry behind ``upto``.
        starts = [segment.start_pos for segment in self._log.segments if segment.first_index <= upto + 1]
        if starts[-1] <= self._log.first_pos:
            return
        for follower in self._hooks.followers:
            await follower.follow(starts[-1])
        await self._head.truncate_head(upto)
        await self._settle()

    async def _settle(self) -> None:
        await self._hooks.save_anew()
        for follower in self._hooks.followers:
            await follower.remove_files()
