"""The next messages of the timer topic to fall due, in the order of their due times.

Owns a bounded part of what waits: the ``limit`` earliest.  Whatever is due later than ``horizon_ms`` is only in the queue's units and comes
in when the window is filled again, so that a million waiting messages cost no more memory than the limit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dledger_wire.dtypes import QUEUE_UNIT_DTYPE
from store.queues.queue_files import Units

Offsets = npt.NDArray[np.int64]
NO_HORIZON = 1 << 62


class TimerWindow:
    """Messages sorted by (due time, offset); ``limit`` is the most that is kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        self._due: Offsets = np.empty(0, np.int64)
        self._offsets: Offsets = np.empty(0, np.int64)
        self._units: Units = np.empty(0, QUEUE_UNIT_DTYPE)
        self.horizon_ms = NO_HORIZON  # messages due at this time or later may be missing here

    def __len__(self) -> int:
        return len(self._due)

    @property
    def next_due_ms(self) -> int | None:
        return int(self._due[0]) if len(self._due) else None

    def add(self, offsets: Offsets, units: Units) -> None:
        """Take in messages whose offsets are all greater than those here."""
        due = units["tag_hash"].astype(np.int64)
        near = np.flatnonzero(due < self.horizon_ms)
        near = near[np.argsort(due[near], kind="stable")]
        places = np.searchsorted(self._due, due[near], side="right")
        self._offsets = np.insert(self._offsets, places, offsets[near])
        self._units = np.insert(self._units, places, units[near])
        self._due = np.insert(self._due, places, due[near])
        if len(self._due) > self._limit:
            self._cut()

    def _cut(self) -> None:
        """Keep what is due before the first one too many; messages due in the same ms stay together, were they ever so many."""
        self.horizon_ms = int(self._due[self._limit])
        kept = int(np.searchsorted(self._due, self.horizon_ms))
        if not kept:
            self.horizon_ms += 1
            kept = int(np.searchsorted(self._due, self.horizon_ms))
        self._keep(slice(0, kept))

    def due(self, now_ms: int, max_messages: int, max_bytes: int) -> tuple[Offsets, Units]:
        """(offsets, units) of the first ones due by ``now_ms``, in due order, within both limits but for the first."""
        count = min(int(np.searchsorted(self._due, now_ms, side="right")), max_messages)
        if count > 1:
            sizes = np.cumsum(self._units["size"][:count], dtype=np.int64)
            count = max(1, int(np.searchsorted(sizes, max_bytes, side="right")))
        return self._offsets[:count], self._units[:count]

    def drop_first(self, count: int) -> None:
        self._due, self._offsets, self._units = self._due[count:], self._offsets[count:], self._units[count:]

    def drop_below(self, offset: int) -> None:
        """Forget messages before ``offset``: they were stored again further back."""
        self._keep(np.flatnonzero(self._offsets >= offset))

    def _keep(self, which: slice | npt.NDArray[np.intp]) -> None:
        # Copies, so that what is not kept gives its memory back.
        self._due, self._offsets, self._units = self._due[which].copy(), self._offsets[which].copy(), self._units[which].copy()
