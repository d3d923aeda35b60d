"""Index units: where each entry lies, 32 bytes an entry, in one file a segment; and the newest of them in memory.

A unit is written only after its entry was synced, so a unit proves that its entry was whole on the disk once, and before that sync is
reported, so that a killed process leaves none out.  So recovery can distinguish a torn tail (bad entry, no unit: never acknowledged) from
damage (bad entry with a unit).  Units are synced a little later: the power may take the newest of them.  Otherwise units are derived: what
is missing or wrong is rewritten from the log.  Unit n of a segment's file is that of the segment's n-th entry; zeros are no unit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dledger.core.types import EntryKind
from dledger.runtime.env import Buffer
from dledger_wire.check import InvariantBrokenError, require
from dledger_wire.dtypes import INDEX_UNIT_DTYPE
from dledger_wire.layout import ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_CONFIG, MAGIC_NORMAL

Units = npt.NDArray[np.void]


@dataclass(slots=True)
class EntryPlace:
    """Where an entry lies and what it is."""

    index: int
    term: int
    pos: int
    size: int
    kind: EntryKind

    @property
    def end_pos(self) -> int:
        return self.pos + self.size


def encode_units(places: Iterable[EntryPlace]) -> bytes:
    """The units of consecutive entries."""
    pack = INDEX_UNIT.pack
    return b"".join([pack(int(place.kind), place.pos, place.size, place.index, place.term) for place in places])


def decode_units(data: Buffer) -> Units:
    """The whole units in ``data`` as a structured array over its memory."""
    return np.frombuffer(data, INDEX_UNIT_DTYPE, len(data) // INDEX_UNIT_SIZE)


def place_of_unit(unit: np.void) -> EntryPlace:
    return EntryPlace(int(unit["index"]), int(unit["term"]), int(unit["pos"]), int(unit["size"]), EntryKind(int(unit["magic"])))


def proven_count(units: Units, first_index: int, start_pos: int, end_limit: int) -> int:
    """One past the last unit that proves its entry was synced.

    A unit with one damaged field still proves it, and one damaged field does not make a proof out of zeros: three of four must be right.
    """
    if not len(units):
        return 0
    pos, size, magic = units["pos"], units["size"], units["magic"]
    score = (magic >= MAGIC_NORMAL).astype(np.int8) & (magic <= MAGIC_CONFIG)
    score = score + (size >= ENTRY_HEADER_SIZE) + ((pos >= start_pos) & (pos < end_limit))
    score += units["index"].astype(np.int64) == first_index + np.arange(len(units))
    proven = np.flatnonzero(score >= 3)
    return int(proven[-1]) + 1 if len(proven) else 0


def sound_prefix(units: Units, first_index: int, start_pos: int, end_limit: int) -> int:
    """How many units from the first on agree with each other as the entries of one segment."""
    if not len(units):
        return 0
    index, pos, size = units["index"].astype(np.int64), units["pos"].astype(np.int64), units["size"].astype(np.int64)
    term, magic = units["term"].astype(np.int64), units["magic"].astype(np.int64)
    # Sums of damaged numbers may wrap around; they then miss the comparison, which is all that is asked of them.
    ends = pos + size
    sound = (magic >= MAGIC_NORMAL) & (magic <= MAGIC_CONFIG) & (size > 0) & (ends <= end_limit)
    sound &= index == first_index + np.arange(len(units))
    sound &= pos == np.concatenate(([start_pos], ends[:-1]))
    sound[1:] &= term[1:] >= term[:-1]
    wrong = np.flatnonzero(~sound)
    return int(wrong[0]) if len(wrong) else len(units)


class PlaceTable:
    """Places and chain CRCs of the newest entries, consecutive, in compact arrays: 29 bytes an entry, at most ``limit`` and a quarter."""

    def __init__(self, limit: int) -> None:
        require(limit >= 1, "a table of %d places", limit)
        self._limit = limit
        self._first = 1
        self._pos = array("q")
        self._term = array("q")
        self._size = array("i")
        self._kind = array("b")
        self._chain = array("q")  # -1 where it is not known (taken from units alone)

    @property
    def first_index(self) -> int:
        """The oldest entry the table knows (one past the last when it is empty)."""
        return self._first

    @property
    def next_index(self) -> int:
        return self._first + len(self._pos)

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return (self._pos, self._term, self._size, self._kind, self._chain)

    def restart(self, next_index: int) -> None:
        """Forget everything; the next place to be added is that of ``next_index``."""
        self._first = next_index
        for column in self._columns:
            del column[:]

    def add(self, place: EntryPlace, chain_crc: int | None) -> None:
        if place.index != self._first + len(self._pos):
            raise InvariantBrokenError(f"place of entry {place.index} added after {self.next_index - 1}")
        self._pos.append(place.pos)
        self._term.append(place.term)
        self._size.append(place.size)
        self._kind.append(place.kind)
        self._chain.append(-1 if chain_crc is None else chain_crc)
        if len(self._pos) > self._limit + self._limit // 4:
            self._drop_head(len(self._pos) - self._limit)

    def add_units(self, units: Units, last_chain_crc: int | None) -> None:
        """Add many at once (start-up); the chain CRC is known of the last one only."""
        if not len(units):
            return
        require(int(units["index"][0]) == self.next_index, "units from %d added after %d", int(units["index"][0]), self.next_index - 1)
        self._pos.frombytes(units["pos"].astype("=i8").tobytes())
        self._term.frombytes(units["term"].astype("=i8").tobytes())
        self._size.frombytes(units["size"].astype("=i4").tobytes())
        self._kind.frombytes(units["magic"].astype("=i1").tobytes())
        self._chain.frombytes(np.full(len(units), -1, "=i8").tobytes())
        self._chain[-1] = -1 if last_chain_crc is None else last_chain_crc
        if len(self._pos) > self._limit:
            self._drop_head(len(self._pos) - self._limit)

    def get(self, index: int) -> EntryPlace | None:
        at = index - self._first
        if not 0 <= at < len(self._pos):
            return None
        return EntryPlace(index, self._term[at], self._pos[at], self._size[at], EntryKind(self._kind[at]))

    def chain_crc(self, index: int) -> int | None:
        """The chain CRC of an entry, None when the table does not know it."""
        at = index - self._first
        if not 0 <= at < len(self._chain) or self._chain[at] < 0:
            return None
        return self._chain[at]

    def correct(self, place: EntryPlace, chain_crc: int | None = None) -> None:
        """The entry at ``place`` was read: so it lies and so it is, if the table knows it.  ``chain_crc``: its own, if proven."""
        at = place.index - self._first
        if 0 <= at < len(self._pos):
            self._pos[at], self._term[at], self._size[at], self._kind[at] = place.pos, place.term, place.size, place.kind
            if chain_crc is not None:
                self._chain[at] = chain_crc

    def cut(self, from_index: int) -> None:
        """Forget ``from_index`` and everything after it."""
        keep = from_index - self._first
        if keep < 0:
            self.restart(from_index)
            return
        for column in self._columns:
            del column[keep:]

    def trim(self, first_index: int) -> None:
        """Forget everything before ``first_index``."""
        if first_index > self._first:
            self._drop_head(min(first_index - self._first, len(self._pos)))
            self._first = max(self._first, first_index)

    def fitting(self, first_index: int, last_index: int, max_bytes: int) -> int:
        """The last entry up to which the entries from ``first_index`` take at most ``max_bytes`` (``first_index`` itself always)."""
        first = first_index - self._first
        limit = self._pos[first] + max_bytes
        low, high = first, last_index - self._first + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._pos[middle] + self._size[middle] <= limit:
                low = middle
            else:
                high = middle
        return low + self._first

    def index_at(self, pos: int) -> int | None:
        """The entry that covers byte ``pos``, or starts after it in the table; None when it is older or newer than the table."""
        if not self._pos or pos < self._pos[0]:
            return None
        low, high = 0, len(self._pos)
        while high - low > 1:
            middle = (low + high) // 2
            if self._pos[middle] <= pos:
                low = middle
            else:
                high = middle
        return self._first + low if pos < self._pos[low] + self._size[low] else None

    def _drop_head(self, count: int) -> None:
        for column in self._columns:
            del column[:count]
        self._first += count


def term_runs(units: Units) -> Sequence[tuple[int, int]]:
    """(term, first index) for each change of term in ``units``."""
    if not len(units):
        return []
    terms = units["term"].astype(np.int64)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(terms)) + 1))
    return [(int(terms[at]), int(units["index"][at])) for at in starts]
