"""The log as the core knows it: terms, the newest entries, and the durable watermark.

Owns the watermark's rule.  *The watermark is a property of the log's content: truncation lowers it, and only a completion whose
(index, term) is still in the log raises it* (ra #637, openraft #2118).

That rule alone has an ABA problem: entry 5 of term 1 is written, replaced by 5 of term 2, and restored by a leader of term 3.  The late
completion of the first write then matches an entry that is in the log again but not on disk.  So a truncation sets a fence: completions
count only below it, until one arrives for an entry of the term that ordered the truncation.  That entry was written after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.saved import LogView, Saved
from dledger.core.terms import TermTable
from dledger.core.types import EntryId, EntryMeta

# Entries whose meta is kept although they are committed, so that a follower a little behind never asks the log view.
KEPT_COMMITTED = 2048
_VIEW_ENTRIES = 512


class LogIndex:
    """Term table, newest metas, durable watermark."""

    __slots__ = ("_fence_index", "_fence_term", "_first_meta", "_metas", "_view", "durable", "last", "terms")

    def __init__(self, saved: Saved, view: LogView) -> None:
        self.terms = TermTable(saved.terms, saved.before, saved.last.index)
        self.last = EntryId(saved.last.index, self.terms.last_term)
        self.durable = saved.last.index
        self._metas: list[EntryMeta] = []
        self._first_meta = self.last.index + 1
        self._view = view
        self._fence_index = 0
        self._fence_term = 0

    @property
    def first_index(self) -> int:
        return self.terms.before.index + 1

    @property
    def before(self) -> EntryId:
        return self.terms.before

    def term_at(self, index: int) -> int | None:
        """The term of an entry, also of the one just below the first; None outside.  The newest is asked for most."""
        return self.last.term if index == self.last.index else self.terms.term_at(index)

    def holds(self, entry: EntryId) -> bool:
        """Whether exactly this entry is in the log (or is the one just below it)."""
        return self.term_at(entry.index) == entry.term

    def append(self, entries: Sequence[EntryMeta]) -> None:
        terms = self.terms
        for meta in entries:
            terms.append(meta.term)
        self._metas.extend(entries)
        self.last = EntryId(terms.last_index, entries[-1].term)

    def truncate(self, from_index: int, node_term: int) -> None:
        """Remove ``from_index`` and everything after it, by order of the leader of ``node_term``."""
        self.terms.truncate(from_index)
        if from_index <= self._first_meta:
            self._metas.clear()
            self._first_meta = from_index
        else:
            del self._metas[from_index - self._first_meta :]
        self.last = EntryId(self.terms.last_index, self.terms.last_term)
        self.durable = min(self.durable, from_index - 1)
        self._fence_index = min(self._fence_index, from_index) if self._fence_term else from_index
        self._fence_term = node_term

    def replace(self, terms: Sequence[tuple[int, int]], before: EntryId, last: EntryId, node_term: int) -> None:
        """The whole log was replaced by a durable copy that ends at ``last``."""
        self.terms = TermTable(terms, before, last.index)
        self.last = last
        self._metas.clear()
        self._first_meta = last.index + 1
        self.durable = last.index
        self._fence_index, self._fence_term = last.index + 1, node_term

    def trim(self, before: EntryId) -> None:
        """Forget everything up to ``before``.  What head truncation deletes lies in sealed files, so it was on stable storage."""
        self.terms.trim(before)
        self.durable = max(self.durable, before.index)
        self._drop_metas(before.index)

    def stored(self, last: EntryId) -> bool:
        """A write up to ``last`` completed; whether the watermark rose."""
        if self._fence_term:
            if last.term >= self._fence_term:
                self._fence_term = 0
            elif last.index >= self._fence_index:
                return False
        if last.index <= self.durable or not self.holds(last):
            return False
        self.durable = last.index
        return True

    def committed(self, index: int) -> None:
        """Metas of entries long committed may go."""
        if index - self._first_meta > 2 * KEPT_COMMITTED:
            self._drop_metas(index - KEPT_COMMITTED)

    def metas(self, first_index: int, max_bytes: int) -> tuple[EntryMeta, ...]:
        """Entries from ``first_index`` that fit ``max_bytes``, at least one; none when they are out of reach."""
        at = first_index - self._first_meta
        found: Sequence[EntryMeta]
        if at >= 0:
            found = self._metas
        else:
            found = self._view.metas(first_index, min(self._first_meta - 1, first_index + _VIEW_ENTRIES - 1))
            at = 0
        end = at
        count = len(found)
        while end < count:
            max_bytes -= found[end].size_bytes
            if max_bytes < 0 and end > at:
                break
            end += 1
        return tuple(found[at:end])

    def size_between(self, first_index: int, last_index: int) -> int:
        """Bytes of entries the core itself has seen added."""
        start = first_index - self._first_meta
        return sum([meta.size_bytes for meta in self._metas[max(start, 0) : max(last_index - self._first_meta + 1, 0)]])

    def _drop_metas(self, last_index: int) -> None:
        count = last_index + 1 - self._first_meta
        if count > 0:
            del self._metas[:count]
            self._first_meta = max(min(last_index + 1, self.last.index + 1), self._first_meta)
