"""What waits to be written: entries and one cut.

Owns the merging.  Order on disk is cut, entries.  The hard state has a stream of its own (``log.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger.log.entry import RawEntry


@dataclass(frozen=True, slots=True)
class Cut:
    """Remove ``from_index`` and everything after it: the log then ends at ``end_pos``."""

    from_index: int
    end_pos: int


@dataclass(slots=True)
class Batch:
    """What one flush writes.  The writer takes out what is done, so the rest can be given back."""

    cut: Cut | None = None
    entries: list[RawEntry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.entries) or self.cut is not None


class WriteQueue:
    """Filled by ``Log`` between two flushes; the entries are always consecutive and follow the cut."""

    def __init__(self) -> None:
        self._next = Batch()

    def __bool__(self) -> bool:
        return bool(self._next)

    def add(self, entry: RawEntry) -> None:
        self._next.entries.append(entry)

    def cut(self, cut: Cut, *, reached_index: int) -> None:
        """Forget queued entries from the cut on; ``reached_index`` is the last entry that may be on the disk already."""
        batch = self._next
        keep = len(batch.entries)
        while keep and batch.entries[keep - 1].index >= cut.from_index:
            keep -= 1
        del batch.entries[keep:]
        if cut.from_index <= reached_index:
            batch.cut = _lower(batch.cut, cut)

    def take_entries(self, max_bytes: int) -> Batch | None:
        """What the next flush writes, if that is nothing but entries of at most ``max_bytes``."""
        batch = self._next
        entries = batch.entries
        if batch.cut is not None or not entries or entries[-1].end_pos - entries[0].pos > max_bytes:
            return None
        return self.take()

    def take(self, max_bytes: int | None = None) -> Batch:
        """What the next flush writes: everything, or about ``max_bytes`` of entries (at least one), the rest stays queued."""
        batch, self._next = self._next, Batch()
        if max_bytes is not None:
            count = taken = 0
            while count < len(batch.entries) and taken < max_bytes:
                taken += batch.entries[count].size_bytes
                count += 1
            self._next.entries = batch.entries[count:]
            del batch.entries[count:]
        return batch

    def give_back(self, batch: Batch) -> None:
        """Put what a failed flush did not do before what has come since."""
        later = self._next
        kept = [entry for entry in batch.entries if later.cut is None or entry.index < later.cut.from_index]
        later.entries[:0] = kept
        later.cut = _lower(batch.cut, later.cut)


def _lower(one: Cut | None, other: Cut | None) -> Cut | None:
    if one is None or other is None:
        return one or other
    return one if one.from_index <= other.from_index else other
