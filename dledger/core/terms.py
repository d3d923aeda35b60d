"""The term table: the term of every entry of the log, as runs.

Owns the shape of the log (first, last, terms) and nothing of its contents.  Invariants: terms rise strictly from run to run, indexes
too; ``before`` is the entry just below the first one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from dledger.core.types import EntryId
from dledger_wire.check import require


class TermTable:
    """Runs of equal terms between ``before`` and ``last_index``."""

    __slots__ = ("_firsts", "_terms", "before", "last_index")

    def __init__(self, runs: Sequence[tuple[int, int]], before: EntryId, last_index: int) -> None:
        self.before = before
        self.last_index = last_index
        self._terms = [term for term, _first in runs]
        self._firsts = [first for _term, first in runs]
        require(last_index >= before.index, "a log that ends at %d, before its start %s", last_index, before)
        require(bool(runs) or last_index == before.index, "a log up to %d without terms", last_index)
        self._clip()
        self.check()

    @property
    def last_term(self) -> int:
        return self._terms[-1] if self._terms else self.before.term

    def term_at(self, index: int) -> int | None:
        """The term of an entry, also of the one just below the first; None outside."""
        before = self.before
        if index <= before.index or index > self.last_index:
            return before.term if index == before.index else None
        firsts = self._firsts
        if index >= firsts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(firsts, index) - 1]

    def append(self, term: int, count: int = 1) -> None:
        """Add ``count`` entries of one term."""
        if not self._terms or self._terms[-1] != term:
            require(term >= self.last_term, "term %d after %d", term, self.last_term)
            self._terms.append(term)
            self._firsts.append(self.last_index + 1)
        self.last_index += count

    def truncate(self, from_index: int) -> None:
        """Remove ``from_index`` and everything after it."""
        require(self.before.index < from_index <= self.last_index, "cut at %d of %d..%d", from_index, self.before.index, self.last_index)
        while self._firsts and self._firsts[-1] >= from_index:
            self._firsts.pop()
            self._terms.pop()
        self.last_index = from_index - 1

    def trim(self, before: EntryId) -> None:
        """Forget everything up to ``before``, which is in the log."""
        require(self.term_at(before.index) == before.term, "trim up to %s, which is not in the log", before)
        self.before = before
        self._clip()

    def last_at_or_below(self, index: int, term: int) -> EntryId | None:
        """The last entry not after ``index`` whose term is not above ``term``; None when the log has no such entry (any more).

        Two logs cannot agree on an entry later than that of the one, asked with an (index, term) of the other: that makes the fast
        back-up skip a whole term a round.
        """
        index = min(index, self.last_index)
        if index > self.before.index:
            run = bisect_right(self._firsts, index) - 1
            if self._terms[run] <= term:
                return EntryId(index, self._terms[run])
            run = bisect_right(self._terms, term) - 1
            if run >= 0:
                return EntryId(self._firsts[run + 1] - 1, self._terms[run])
            index = self.before.index
        return self.before if index == self.before.index and self.before.term <= term else None

    def runs(self) -> list[tuple[int, int]]:
        return list(zip(self._terms, self._firsts, strict=True))

    def check(self) -> None:
        """Raise unless the table's invariants hold."""
        firsts, terms = self._firsts, self._terms
        require(all(low < high for low, high in pairwise(terms)), "terms %s do not rise", terms)
        require(all(low < high for low, high in pairwise(firsts)), "runs %s do not rise", firsts)
        require(not terms or terms[0] >= self.before.term, "terms %s after %s", terms, self.before)
        require(not firsts or (firsts[0] == self.before.index + 1 and firsts[-1] <= self.last_index), "runs %s in %s", firsts, self.before)
        require(bool(firsts) == (self.last_index > self.before.index), "runs %s up to %d", firsts, self.last_index)

    def _clip(self) -> None:
        """Let the first run start right after ``before``."""
        first = self.before.index + 1
        firsts = self._firsts
        if first > self.last_index:
            firsts.clear()
            self._terms.clear()
            return
        drop = bisect_right(firsts, first) - 1
        if drop > 0:
            del firsts[:drop], self._terms[:drop]
        firsts[0] = first
