"""What is counted where it happens: distributions of values, with fixed bounds.

Owns ``Histogram`` and the bounds that several parts share.  Plain counters are plain integers of the counting part; the collector reads
both (``broker/metrics/``).  Nothing here takes a lock: each one belongs to the event loop that counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

# From a tenth of a millisecond, a sync of a good disk, to ten seconds, when callers give up.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BYTES = (128, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
COUNTS = (1, 2, 4, 8, 16, 64, 256, 1024)


class Histogram:
    """How often a value was at most each of ``bounds``.

    Attributes:
        bounds: Upper bounds, rising; a value that equals one counts below it.
        counts: How many values fell between the bound before and each bound, and last how many were above all.
        total: The sum of all values.
    """

    __slots__ = ("_edges", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._edges = np.array(self.bounds, np.float64)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        """As it is now."""
        copied = copy(self)
        copied.counts = self.counts.copy()
        return copied

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: npt.NDArray[Any]) -> None:
        """Count every value of an array of integers."""
        places = np.searchsorted(self._edges, values, side="left")
        for place, count in enumerate(np.bincount(places, minlength=len(self.counts)).tolist()):
            self.counts[place] += count
        self.total += int(values.sum(dtype=np.int64))
