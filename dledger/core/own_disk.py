"""A leader whose disk is full or nearly so, or slower than an election timeout, gives leadership away.

Owns since when it has been low on space.  A slow one keeps leadership unless a majority without it has disks faster by a clear factor
(``sync_times.py``): where all are as slow, another leader serves no better, and each election costs several writes.
"""

from __future__ import annotations

from dledger.core.causes import Cause
from dledger.core.state import CoreState, Storage

# A store looks at its disk four times a second: by then, and by two answers, this leader knows of voters whose disks filled at the same
# time.  Meanwhile the store still takes messages (``store/durability/disk_room.py``).
LOW_SETTLES_MS = 300
LOW_SETTLES_BEATS = 2


class OwnDisk:
    """Of a core while it leads."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self._had_space_ms = 0  # when this leader was last not low on space, or began to lead

    def lead(self) -> None:
        self._had_space_ms = self._core.now_ms

    def watch(self, late_ms: int, *, counts: bool) -> None:
        """At each heartbeat.  ``counts``: this leader is a voter.

        ``late_ms``: how late this comes.  Beyond a heartbeat: this node was paused, and hears only later of writes that ended.
        """
        core = self._core
        if late_ms > core.config.heartbeat_interval_ms:
            core.syncs.paused(late_ms)
        slow = counts and core.syncs.log_waiting_ms > core.config.election_timeout_ms
        if core.storage is Storage.FULL:
            core.transfers.hand_over(Cause.DISK_FULL)
        elif slow:
            core.transfers.hand_over(Cause.DISK_SLOW)
        elif not core.low_on_space:
            self._had_space_ms = core.now_ms
        elif core.now_ms - self._had_space_ms >= LOW_SETTLES_MS + LOW_SETTLES_BEATS * core.config.heartbeat_interval_ms:
            core.transfers.hand_over(Cause.DISK_LOW)
