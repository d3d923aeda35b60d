"""How old the log's segments are: when the newest message in each was stored, by the log's own word.

Owns that question.  File times would not do: a copy or a repair makes files younger than what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable

from dledger.log.entry import RawEntry
from dledger.log.segment import Segment
from dledger_wire.batches.batch import BatchView
from store.log_view import ReadableLog, entry_records

LOOKED_AT = 64  # entries without a time, such as a new leader's first one, are rare


class SegmentAges:
    """Times of sealed segments, remembered: they never change."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._known: dict[int, int] = {}
        self._oldest: tuple[int, int | None] = (0, None)  # the log's first index, and the time found there

    async def oldest_ms(self) -> int | None:
        """The time of the log's oldest entry that has one; None when the first ones have none."""
        first = self._log.first_index
        if self._oldest[0] != first or self._oldest[1] is None:
            last = min(self._log.last.index, first + LOOKED_AT)
            self._oldest = first, await self._first_time(range(first, last + 1))
        return self._oldest[1]

    async def newest_ms(self, segment: Segment, next_first: int) -> int | None:
        """The store time of the newest message in a segment that ends before entry ``next_first``; None when it is unknown."""
        known = self._known.get(segment.start_pos)
        if known is None:
            last = next_first - 1
            known = await self._first_time(range(last, max(segment.first_index, last - LOOKED_AT) - 1, -1))
            if known is None:  # what follows is not older
                known = await self._first_time(range(next_first, min(self._log.last.index, next_first + LOOKED_AT) + 1))
            if known is not None:
                self._known = {pos: ms for pos, ms in self._known.items() if pos >= self._log.first_pos} | {segment.start_pos: known}
        return known

    async def _first_time(self, indexes: Iterable[int]) -> int | None:
        for index in indexes:
            entries = await self._log.read(index, 0, index)
            time_ms = _time_of(entries[0]) if entries else 0
            if time_ms:
                return time_ms
        return None


def _time_of(entry: RawEntry) -> int:
    """The newest time in an entry; 0 when it has none."""
    newest = 0
    for _pos, record in entry_records(entry):
        time_ms = record.store_timestamp if isinstance(record, BatchView) else int(record.arguments.get("at_ms", 0))
        newest = max(newest, time_ms)
    return newest
