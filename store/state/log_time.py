"""The log's time: what messages and commands are stamped with, and what ages are counted by.

Owns the rule that it never goes back and never stands still: it is the group's time, or, where the log is ahead of that (its newest stamp
is of a time when a clock was wrong), goes on from the newest stamp a little slower than time passes.
"""

from __future__ import annotations

from dledger_wire.clock import Clock

BEHIND = 0.01  # how much slower, so that the group's time catches up


class LogTime:
    """On every replica; ``seen`` gets every stamp that the log has."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stamp_ms = 0  # the log's time at
        self._since_ms = clock.monotonic_ms()  # this moment

    def now_ms(self) -> int:
        return max(self._clock.wall_ms(), self._onward_ms(self._clock.monotonic_ms()))

    def seen(self, store_ms: int) -> None:
        """The log has a stamp of ``store_ms``."""
        at_ms = self._clock.monotonic_ms()
        if store_ms > self._onward_ms(at_ms):
            self._stamp_ms, self._since_ms = store_ms, at_ms

    def _onward_ms(self, at_ms: int) -> int:
        return self._stamp_ms + int((at_ms - self._since_ms) * (1 - BEHIND))
