"""Latency fault tolerance: replica groups that are slow or unreachable get no messages without a key for a while.

Owns RocketMQ's rule (latencyMax, notAvailableDuration): the slower the last response, the longer its replica group is avoided.  Only a
preference: when no replica group is available, all are used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

FAILED_MS = 3000  # after a broken stream: most failovers take far less


class Availability(Protocol):
    """Which replica groups to prefer."""

    def is_available(self, replica_group: str) -> bool: ...


class LatencyFaultTolerance:
    """What one producer has measured of each replica group; ``now_ms`` is its monotonic clock."""

    def __init__(self, latency_max: Sequence[int], not_available: Sequence[int], now_ms: Callable[[], int], *, enabled: bool) -> None:
        self._latency_max = latency_max
        self._not_available = not_available
        self._now_ms = now_ms
        self._enabled = enabled
        self._avoided_until_ms: dict[str, int] = {}

    def responded(self, replica_group: str, latency_ms: int) -> None:
        """The replica group responded after that long."""
        level = bisect_right(self._latency_max, latency_ms) - 1
        pause_ms = self._not_available[level] if level >= 0 and self._enabled else 0
        if pause_ms:
            self._avoided_until_ms[replica_group] = self._now_ms() + pause_ms
        else:
            self._avoided_until_ms.pop(replica_group, None)

    def failed(self, replica_group: str) -> None:
        """The replica group could not be reached, or the stream to its leader broke."""
        if self._enabled:
            self._avoided_until_ms[replica_group] = max(self._avoided_until_ms.get(replica_group, 0), self._now_ms() + FAILED_MS)

    def is_available(self, replica_group: str) -> bool:
        until_ms = self._avoided_until_ms.get(replica_group)
        return until_ms is None or self._now_ms() >= until_ms
