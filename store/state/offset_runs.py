"""Sets of offsets, kept as runs: compact while neighbouring offsets are in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from store.commands.command import OffsetRun


class OffsetRuns:
    """A set of offsets, kept as sorted runs ``[first, end)`` that neither touch nor overlap."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, runs: Iterable[OffsetRun] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in runs:
            self.add(first, end)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[OffsetRun]:
        return iter(zip(self._firsts, self._ends, strict=True))

    def add(self, first: int, end: int) -> None:
        """Add ``first`` to ``end`` (exclusive); what is in already stays."""
        low = bisect_right(self._firsts, first)
        if low and self._ends[low - 1] >= first:
            low -= 1
        high = low
        while high < len(self._firsts) and self._firsts[high] <= end:
            first, end = min(first, self._firsts[high]), max(end, self._ends[high])
            high += 1
        self._firsts[low:high], self._ends[low:high] = [first], [end]

    def first_gap(self, offset: int) -> int:
        """The first offset from ``offset`` on that is not in."""
        at = bisect_right(self._firsts, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def count_beyond(self, offset: int) -> int:
        """How many runs have offsets from ``offset`` on."""
        return len(self._ends) - bisect_right(self._ends, offset)

    def forget_below(self, offset: int) -> None:
        at = bisect_right(self._firsts, offset)
        if at and self._ends[at - 1] > offset:
            at -= 1
            self._firsts[at] = max(offset, self._firsts[at])
        del self._firsts[:at], self._ends[:at]


def runs_of(offsets: Iterable[int]) -> tuple[OffsetRun, ...]:
    """Rising offsets as runs ``[first, end)``."""
    runs: list[OffsetRun] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return tuple(runs)
