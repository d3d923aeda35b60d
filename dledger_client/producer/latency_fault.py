"""Which replica groups answer slowly or not at all, so that messages that may go anywhere go elsewhere for a while.

Owns RocketMQ's rule (latencyMax, notAvailableDuration): the slower the last answer, the longer its group is left alone.  A hint only:
when no group is left, all are as good as any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

FAILED_MS = 3000  # a broken stream: most failovers are over long before


class LatencyFaultTolerance:
    """What one producer has seen of each group; ``now_ms`` is its monotonic clock."""

    def __init__(self, latency_max: Sequence[int], not_available: Sequence[int], now_ms: Callable[[], int], *, enabled: bool) -> None:
        self._latency_max = latency_max
        self._not_available = not_available
        self._now_ms = now_ms
        self._enabled = enabled
        self._until: dict[str, int] = {}

    def answered(self, group: str, latency_ms: int) -> None:
        """The group has answered after that long."""
        place = bisect_right(self._latency_max, latency_ms) - 1
        pause_ms = self._not_available[place] if place >= 0 and self._enabled else 0
        if pause_ms:
            self._until[group] = self._now_ms() + pause_ms
        else:
            self._until.pop(group, None)

    def failed(self, group: str) -> None:
        """The group could not be reached, or the connection to its leader broke."""
        if self._enabled:
            self._until[group] = max(self._until.get(group, 0), self._now_ms() + FAILED_MS)

    def is_available(self, group: str) -> bool:
        until_ms = self._until.get(group)
        return until_ms is None or self._now_ms() >= until_ms
