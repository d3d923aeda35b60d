"""What the room on a node's disk allows: new messages, or the deletion of old ones whatever their age.

Owns the looks at the disk and the levels.  Beyond ``diskSpaceWarningLevelRatio``, or with less free than ``diskFreeLimit`` where there is
one, the store is low: a leader hands over to a voter with
room, and takes messages until that has had time, so that writes do not stop for it; where no voter has room it takes none from then on.
Beyond ``diskSpaceCleanForciblyRatio`` for ``cleanFileForciblyAfter`` the oldest messages may go before their time; the replica says so to
the others at once, since only what another one keeps may go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from dledger.runtime.env import DiskSpace, Environment, space_of
from store.settings import DiskLimit, StoreSettings

HAND_OVER_MS = 1_500  # what a leader that is low takes at most to hand over
# So far below its level the disk must fall before messages are taken again, or each segment would change it.
CLEAR_PERCENT = 1
CLEAR_FREE = 1.1  # times the limit
_logger = logging.getLogger(__name__)


class Replica(Protocol):
    """What gets reports of free room, and is asked; ``dledger.node.RaftNode`` is one."""

    def low_on_space(self, on: bool, *, sheds: bool = False) -> None:
        """Called at each look at the disk: whether new messages are refused for want of room, and old ones may be deleted."""
        ...

    def may_hand_over(self) -> bool:
        """Whether this replica leads, and another voter is able to lead in its place."""
        ...


class DiskRoom:
    """Of one store.  ``limit`` gives the one that counts now."""

    def __init__(self, settings: StoreSettings, env: Environment, replica: Replica) -> None:
        self._settings, self._env, self._replica = settings, env, replica
        self.limit: Callable[[], DiskLimit] = DiskLimit
        self.used_percent = 0.0
        self.reason = ""  # why it is low, while it is
        self._low_since_ms: int | None = None
        self._crowded_since_ms: int | None = None

    @property
    def is_low(self) -> bool:
        return self._low_since_ms is not None

    @property
    def refuses_messages(self) -> bool:
        """Low, and no other voter is about to take messages in this one's place."""
        since_ms = self._low_since_ms
        if since_ms is None:
            return False
        return self._env.clock.monotonic_ms() - since_ms >= HAND_OVER_MS or not self._replica.may_hand_over()

    @property
    def must_shed(self) -> bool:
        """Whether the oldest messages may be deleted whatever their age: the disk has been too full for long enough."""
        since_ms = self._crowded_since_ms
        return since_ms is not None and self._env.clock.monotonic_ms() - since_ms >= self._settings.cleanFileForciblyAfter

    async def look(self) -> int:
        """Bytes free, and what follows."""
        settings, space, now_ms = self._settings, await space_of(self._env.disk), self._env.clock.monotonic_ms()
        self.used_percent = space.used_percent
        in_need = not settings.diskSpaceEnoughFree or space.free_bytes < settings.diskSpaceEnoughFree
        crowded = in_need and settings.cleanFileForciblyEnable and self.used_percent > settings.diskSpaceCleanForciblyRatio
        if not crowded:
            self._crowded_since_ms = None
        elif self._crowded_since_ms is None:
            self._crowded_since_ms = now_ms
        self._warn(space, in_need, now_ms)
        self._replica.low_on_space(self.is_low, sheds=crowded)
        return space.free_bytes

    def _warn(self, space: DiskSpace, in_need: bool, now_ms: int) -> None:
        ratio, limit = self._settings.diskSpaceWarningLevelRatio, self.limit().of(space.total_bytes)
        if limit:
            low = space.free_bytes < limit * (CLEAR_FREE if self.is_low else 1)
            found, level = f"the disk has {space.free_bytes >> 20} MiB free", f"diskFreeLimit, {limit >> 20} MiB"
            self.reason = f"{found}, below {level}"
        else:
            low = in_need and self.used_percent > ratio - (CLEAR_PERCENT if self.is_low else 0)
            found, level = f"the disk is used to {self.used_percent:.1f} %", f"diskSpaceWarningLevelRatio {ratio}"
            self.reason = f"{found}, above {level}"
        if low == self.is_low:
            return
        self._low_since_ms = now_ms if low else None
        text = "takes no new messages, or hands leadership over" if low else "takes new messages again"
        _logger.warning("%s (%s): this node %s", found, level, text, extra={"event": "disk_watermark"})
