"""What a log holds, in memory: its start and end, where entries lie, and which term they have.

Owns what may stand in a log, behind what: indexes without gaps, positions as the segments allow, chain checksums.  No I/O: ``Log`` adds the
files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from dledger.core.types import EntryId, EntryKind
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry, chain_crc_of, encode_entry
from dledger.log.index_units import EntryPlace
from dledger.log.recovery import Recovered
from dledger.log.segment import Segment, SegmentMap
from dledger.log.start import LogStart
from dledger.runtime.env import Buffer
from dledger_wire.check import InvariantBrokenError, require
from dledger_wire.errors import CorruptEntryError, MessageTooLargeError
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER_SIZE, MAX_SEGMENT_BYTES


class LogContents:
    """Of one log, as ``Log.open`` found it and as it was changed since."""

    def __init__(self, found: Recovered, config: LogConfig) -> None:
        self._config, self._max_entry_bytes = config, config.max_entry_bytes
        self.start = found.start  # where the log begins, and what lay just before
        self.first_index, self.first_pos = found.start.first_index, found.start.first_pos
        self.last, self.end_pos = found.last, found.end_pos
        self.chain_crc = found.chain_crc  # of the last entry: what the next one continues
        self._segments = SegmentMap(found.segments)
        self._places = found.places
        self._terms = found.terms

    @property
    def before(self) -> EntryId:
        """The entry just below the first one (trimmed away; index 0 in a log never trimmed)."""
        return self.start.before

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments.all()

    def terms(self) -> list[tuple[int, int]]:
        """(term, its first index), oldest first; the first pair starts at or before ``first_index``."""
        return list(self._terms)

    def term_at(self, index: int) -> int | None:
        """The term of an entry, also of the one just below the first; None outside the log."""
        if not self.first_index - 1 <= index <= self.last.index:
            return None
        return self._term_at(index)

    def entry_id(self, index: int) -> EntryId | None:
        """(index, term) of an entry, or of the one just below the first; None outside the log."""
        term = self.term_at(index)
        return EntryId(index, term) if term is not None else None

    def _term_at(self, index: int) -> int:
        if index < self.first_index:
            return self.start.before_term
        term, first_index = self._terms[-1]
        return term if index >= first_index else self._terms[bisect_right(self._terms, index, key=lambda run: run[1]) - 1][0]

    def locate(self, index: int) -> EntryPlace | None:
        """Where an entry lies; None when it is not in the log or older than the places in memory (then ``await find(index)``)."""
        return self._places.get(index) if self.first_index <= index <= self.last.index else None

    # What comes next

    def place(self, size_bytes: int) -> int:
        """Where the next entry would start if it takes ``size_bytes``, header included.  MessageTooLargeError beyond a segment."""
        if size_bytes > (limit := self._max_entry_bytes):
            raise MessageTooLargeError(
                f"an entry of {size_bytes} bytes does not fit a segment (at most {limit})", size=size_bytes, limit=limit
            )
        segment_end = self._segments.last.start_pos + self._config.segment_bytes
        if self.end_pos + size_bytes + FILLER_SIZE <= segment_end:
            return self.end_pos
        return max(segment_end, self.end_pos + FILLER_SIZE)

    def encode(self, term: int, kind: EntryKind, body: Sequence[Buffer]) -> RawEntry:
        """The entry that would come next with this body; not yet appended."""
        pos = self.place(ENTRY_HEADER_SIZE + sum(len(buffer) for buffer in body))
        return encode_entry(self.last.index + 1, term, kind, pos, self.chain_crc, body)

    def incompatibility(self, prev: EntryId, entries: Sequence[RawEntry]) -> str | None:
        """Why entries that a peer sent behind ``prev`` cannot stand in this log; None when they can, or ``prev`` is not in it.

        Checks what ``append`` and ``cut`` assume: chain checksums, positions without gaps, and no cut below what is in memory.
        """
        if self.term_at(prev.index) != prev.term:
            return None
        chain_crc, end_pos = self._chain_and_end(prev.index)
        is_empty_segment = end_pos == self.first_pos
        for entry in entries:
            if chain_crc is not None and chain_crc_of(chain_crc, entry.header_bytes()) != entry.chain_crc:
                return f"entry {entry.index}: its chain checksum does not continue entry {entry.index - 1}"
            gap = 0 if end_pos is None else entry.pos - end_pos
            if gap != 0 and (is_empty_segment or not FILLER_SIZE <= gap <= MAX_SEGMENT_BYTES):
                return f"entry {entry.index} at {entry.pos}, expected at {end_pos}"
            if self.term_at(entry.index) not in (None, entry.term) and (chain_crc is None or end_pos is None):
                return f"entry {entry.index} conflicts further back than this node can cut its log"
            chain_crc, end_pos, is_empty_segment = entry.chain_crc, entry.end_pos, False
        return None

    def _chain_and_end(self, index: int) -> tuple[int | None, int | None]:
        """Chain CRC and end of an entry in the log, or of what lies below it; None where memory does not have it."""
        if index < self.first_index:
            return self.start.before_chain_crc, self.first_pos
        if index == self.last.index:
            return self.chain_crc, self.end_pos
        place = self._places.get(index)
        return self._places.chain_crc(index), place.end_pos if place is not None else None

    def _check_follows(self, entry: RawEntry) -> None:
        if entry.index != self.last.index + 1 or entry.term < self.last.term:
            raise InvariantBrokenError(f"entry {entry.id} appended after {self.last}")
        gap = entry.pos - self.end_pos
        # The filler of an empty segment would be a file that holds nothing else; no leader makes that.
        if gap != 0 and (gap < FILLER_SIZE or self.end_pos == self._segments.last.start_pos):
            raise CorruptEntryError(f"entry {entry.index} at {entry.pos}, but the log ends at {self.end_pos}", index=entry.index)
        if chain_crc_of(self.chain_crc, entry.header_bytes()) != entry.chain_crc:
            raise CorruptEntryError(f"entry {entry.index}: its chain checksum does not continue entry {self.last.index}", index=entry.index)

    # Changes

    def entry_repaired(self, entry: RawEntry) -> None:
        """An entry's file has the bytes of ``entry`` again: what memory took from a damaged header follows."""
        self._places.correct(EntryPlace(entry.index, entry.term, entry.pos, entry.size_bytes, entry.kind), entry.chain_crc)

    def _add(self, entry: RawEntry) -> None:
        """Add the next entry.  CorruptEntryError when it does not follow the last one."""
        self._check_follows(entry)
        if entry.pos != self.end_pos:
            self._segments.add(Segment(entry.pos, entry.index))
        self._places.add(EntryPlace(entry.index, entry.term, entry.pos, entry.size_bytes, entry.kind), entry.chain_crc)
        if not self._terms or self._terms[-1][0] != entry.term:
            self._terms.append((entry.term, entry.index))
        self.last = EntryId(entry.index, entry.term)
        self.end_pos = entry.end_pos
        self.chain_crc = entry.chain_crc

    def _remove_from(self, from_index: int) -> None:
        """Remove ``from_index`` and everything after it, no deeper than memory has places and chain checksums."""
        before = self._places.get(from_index - 1)
        require(before is not None or from_index == self.first_index, "cut at %d, deeper than the places in memory", from_index)
        chain_crc = self.start.before_chain_crc if from_index == self.first_index else self._places.chain_crc(from_index - 1)
        require(chain_crc is not None, "cut at %d, deeper than the chain checksums in memory", from_index)
        self.chain_crc = chain_crc or 0
        self.end_pos = before.end_pos if before is not None else self.first_pos
        self.last = EntryId(from_index - 1, self._term_at(from_index - 1))
        self._segments.cut(from_index)
        self._places.cut(from_index)
        while self._terms and self._terms[-1][1] >= from_index:
            self._terms.pop()

    def _begin_at(self, start: LogStart) -> Sequence[Segment]:
        """Remove the segments before ``start``; returns them."""
        self.start = start
        self.first_index, self.first_pos = start.first_index, start.first_pos
        dropped = self._segments.trim(start.first_pos)
        self._places.trim(start.first_index)
        at = bisect_right(self._terms, start.first_index, key=lambda run: run[1]) - 1
        self._terms[: at + 1] = [(self._terms[at][0], start.first_index)]
        return dropped
