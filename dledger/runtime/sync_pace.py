"""Whether small writes are synced on the event loop or by the write thread: by what the last ones took.

Changing to the thread and back costs more than a fast disk's sync, and a slow disk's sync must not hold the event loop up, on which
heartbeats and elections depend.  So the loop syncs only while almost all of the last syncs were fast, wherever they ran, and after a slow
one not for ``SHARE`` times what that took longer than a fast one.  After one long enough to make a heartbeat late it does not for a while:
for twice as long each time, until there was none for many times that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

FAST_S = 0.0003  # at most: what changing threads costs, twice
STALL_S = 0.020
SHARE = 20  # at most one part in so many of the time is lost to slow syncs on the loop
LOOKED_AT = 8
SLOW_ALLOWED = 2  # of those: a busy machine makes one look slow now and then
HOLD_OFF_S = 1.0
MAX_HOLD_OFF_S = 64.0
CALM = 10  # hold-offs without a stall, until the next one is short again


class SyncPace:
    """Of one disk.  It knows nothing at first, so the thread syncs first."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._slow: deque[bool] = deque(maxlen=LOOKED_AT)
        self._hold_off_s = HOLD_OFF_S
        self._held_until_s = self._calm_until_s = now_s()

    def took(self, duration_s: float) -> None:
        """A small write and its sync took so long."""
        self._slow.append(duration_s > FAST_S)
        if duration_s <= FAST_S:
            return
        now_s = self._now_s()
        may_be_of_the_loop = now_s >= self._held_until_s
        if duration_s <= STALL_S:
            if may_be_of_the_loop:
                self._held_until_s = now_s + SHARE * (duration_s - FAST_S)
            return
        if may_be_of_the_loop:  # else it held nothing up, and only makes this last
            self._hold_off_s = HOLD_OFF_S if now_s >= self._calm_until_s else min(2 * self._hold_off_s, MAX_HOLD_OFF_S)
        self._held_until_s = now_s + self._hold_off_s
        self._calm_until_s = now_s + CALM * self._hold_off_s

    @property
    def is_fast(self) -> bool:
        """Whether the event loop may wait for the next sync."""
        if len(self._slow) < LOOKED_AT or sum(self._slow) > SLOW_ALLOWED:
            return False
        return self._now_s() >= self._held_until_s
