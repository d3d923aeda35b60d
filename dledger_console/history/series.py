"""Numbers over time in a ring of fixed length: what a chart draws, and rates of counters."""

from __future__ import annotations

from collections import deque

POINTS = 900  # half an hour at one point every two seconds
GAP_MS = 60_000  # a counter that was not read for so long, because no page was open, has no rate: it would be that of the whole time


class Series:
    """Points (milliseconds since 1970, value), oldest first; a value of None is a gap."""

    def __init__(self, points: int = POINTS) -> None:
        self._points: deque[tuple[int, float | None]] = deque(maxlen=points)

    def add(self, at_ms: int, value: float | None) -> None:
        """Add the newest point."""
        self._points.append((at_ms, value))

    @property
    def last(self) -> float | None:
        """The newest value; None when there is none."""
        return self._points[-1][1] if self._points else None

    @property
    def newest_ms(self) -> int:
        """The time of the newest point; 0 without points."""
        return self._points[-1][0] if self._points else 0

    def since(self, at_ms: int) -> list[tuple[int, float | None]]:
        """The points after ``at_ms``, oldest first."""
        found: list[tuple[int, float | None]] = []
        for point in reversed(self._points):
            if point[0] <= at_ms:
                break
            found.append(point)
        return found[::-1]

    def points(self) -> list[tuple[int, float | None]]:
        """All points, oldest first."""
        return list(self._points)


class Rate:
    """The rate of a counter that starts again at 0 with its process."""

    def __init__(self, points: int = POINTS) -> None:
        self.series = Series(points)
        self._before: tuple[int, str, int] | None = None

    def add(self, at_ms: int, total: int | None, process: str = "") -> None:
        """Add the counter as it was then; ``process`` identifies one life of it.  None: it is not known."""
        before, self._before = self._before, None if total is None else (at_ms, process, total)
        if before is None or total is None or before[1] != process or total < before[2] or not 0 < at_ms - before[0] <= GAP_MS:
            self.series.add(at_ms, None)
            return
        self.series.add(at_ms, (total - before[2]) * 1000 / (at_ms - before[0]))
