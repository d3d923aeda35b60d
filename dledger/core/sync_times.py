"""How long a write takes to be on a disk: on this node's, and on those of the voters that it knows of.

Owns the times, measured by what the core sees: from the write to its completion, and of a write under way what it has taken so far.  Each
node says with its answers, to heartbeats and to candidates, what it took lately (``RECENT_MS``); the leader sends the longest of all within
``KEPT_MS`` in its heartbeats.  What is made of it:

*Elections wait for disks* (``election_timer.py``): a vote is two writes, the candidate's own and the voter's.
*A slow leader hands over* to a voter whose disk is ``FASTER`` times as fast, where a majority has such disks (``own_disk.py``).

Times up to a heartbeat's interval count as none, and are not kept: then nothing waits longer than it would without all this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.core.silence import Lateness

if TYPE_CHECKING:
    from dledger.core.state import CoreState

RECENT_MS = 5_000
KEPT_MS = 30_000
MOST_MS = 5_000  # nothing waits for a disk that hangs for longer: its node may be started again, and asked once more
FASTER = 3


class SyncTimes:
    """Of one core."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self._recent, self._kept, self._reported = Lateness(RECENT_MS), Lateness(KEPT_MS), Lateness(KEPT_MS)
        self._log_since_ms = self._promise_since_ms = core.now_ms
        self._noted_ms = core.now_ms - 2 * KEPT_MS  # when a slow write was last noted, of this node or by report
        self._announced: tuple[int, int] = (0, core.now_ms)  # by a leader, and when

    # This node's writes

    def log_waits(self) -> None:
        """Entries follow a log that was durable to its end."""
        self._log_since_ms = self._core.now_ms

    def log_stored(self) -> None:
        """Entries reached the disk, perhaps not the newest."""
        self._took(self._core.now_ms - self._log_since_ms)
        self._log_since_ms = self._core.now_ms

    def promised(self) -> None:
        """The hard state is to be written."""
        self._promise_since_ms = self._core.now_ms

    def promise_kept(self) -> None:
        self._took(self._core.now_ms - self._promise_since_ms)
        if self._log_since_ms >= self._promise_since_ms:
            self._log_since_ms = self._core.now_ms  # what was written behind it waited for it

    def paused(self, for_ms: int) -> None:
        """This node stood still, and hears only now of writes that ended."""
        self._log_since_ms = min(self._core.now_ms, self._log_since_ms + for_ms)

    def _took(self, took_ms: int) -> None:
        if took_ms > self._core.config.heartbeat_interval_ms:
            self._noted_ms = self._core.now_ms
            self._recent.add(self._core.now_ms, took_ms)
            self._kept.add(self._core.now_ms, took_ms)

    @property
    def log_waiting_ms(self) -> int:
        """How long the disk has been busy with entries by now."""
        log = self._core.log
        return self._core.now_ms - self._log_since_ms if log.durable < log.last.index else 0

    @property
    def own_ms(self) -> int:
        """The longest of this node lately, also of what is under way."""
        core = self._core
        promising_ms = 0 if core.hard_state_durable else core.now_ms - self._promise_since_ms
        waiting_ms = core.now_ms - self._log_since_ms if core.log.durable < core.log.last.index else 0
        recent_ms = self._recent.longest_ms(core.now_ms) if self._has_slow else 0
        return max(recent_ms, waiting_ms, promising_ms)

    @property
    def _has_slow(self) -> bool:
        return self._core.now_ms - self._noted_ms <= KEPT_MS + KEPT_MS // 10  # the last part may be forgotten a little later

    # Others'

    def reported(self, sync_ms: int) -> None:
        """By a voter, of itself."""
        if sync_ms > 0:
            self._noted_ms = self._core.now_ms
            self._reported.add(self._core.now_ms, sync_ms)

    def announced(self, sync_ms: int) -> None:
        """By the leader, of the group."""
        self._announced = (sync_ms, self._core.now_ms)

    @property
    def group_ms(self) -> int:
        """The longest of this node and of those that reported to it."""
        own_ms, now_ms = self.own_ms, self._core.now_ms
        return max(own_ms, self._kept.longest_ms(now_ms), self._reported.longest_ms(now_ms)) if self._has_slow else own_ms

    @property
    def slow_ms(self) -> int:
        """How long to wait for any disk of the group; 0 where all are fast."""
        announced_ms, at_ms = self._announced
        longest_ms = max(self.group_ms, announced_ms if self._core.now_ms - at_ms < KEPT_MS else 0)
        return min(longest_ms, MOST_MS) if longest_ms > self._core.config.heartbeat_interval_ms else 0

    @property
    def others_slow_ms(self) -> int:
        """The same without this node's disk, as this leader knows it."""
        longest_ms = self._reported.longest_ms(self._core.now_ms)
        return min(longest_ms, MOST_MS) if longest_ms > self._core.config.heartbeat_interval_ms else 0
