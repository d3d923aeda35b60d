"""What the store needs of the replicated log, and the records inside its entries.

Owns no state.  ``dledger.log.log.Log`` satisfies ``ReadableLog``; positions are bytes in the log, as in frames and queue units.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from dledger.core.types import EntryId, EntryKind
from dledger.log.entry import RawEntry
from dledger.log.index_units import EntryPlace
from dledger.log.segment import Segment
from dledger_wire.batches.batch import BatchView, CommandView, iter_records
from dledger_wire.errors import CorruptBatchError, StorageDamagedError
from dledger_wire.formats import RECORD, newer
from dledger_wire.layout import ENTRY_HEADER_SIZE
from dledger_wire.rpc.stored import StoredBytes

SCAN_BYTES = 8 << 20
MAX_REPAIRS = 8  # damaged entries repaired for one read

# Tries to make the entry whole again that the damage names; whether it is.
Repair = Callable[[StorageDamagedError], Awaitable[bool]]
T = TypeVar("T")


class ReadableLog(Protocol):
    """Reading side of a log, and asking it to be durable as far as what is derived from it."""

    @property
    def first_index(self) -> int: ...
    @property
    def first_pos(self) -> int: ...
    @property
    def end_pos(self) -> int: ...
    @property
    def last(self) -> EntryId: ...
    @property
    def durable(self) -> EntryId: ...
    @property
    def segments(self) -> Sequence[Segment]: ...
    def term_at(self, index: int) -> int | None: ...
    def durable_end(self) -> int: ...
    async def release_prepared(self) -> bool: ...
    async def make_durable(self, index: int) -> bool: ...
    def file_of(self, pos: int) -> tuple[str, int]: ...
    async def find(self, index: int) -> EntryPlace: ...
    async def read(self, first_index: int, max_bytes: int, upto_index: int) -> list[RawEntry]: ...
    async def read_bytes(self, pos: int, size: int) -> bytes: ...
    async def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes]: ...
    def stored(self, ranges: Sequence[tuple[int, int]]) -> StoredBytes | None: ...


async def read_with_repair(repair: Repair, read: Callable[[], Awaitable[T]]) -> T:
    """The result of ``read``, after repairing the damaged entries it meets.  StorageDamagedError when one cannot be repaired."""
    for _ in range(MAX_REPAIRS):
        try:
            return await read()
        except StorageDamagedError as damage:
            if not await repair(damage):
                raise
    return await read()


def entry_records(entry: RawEntry) -> Iterator[tuple[int, BatchView | CommandView]]:
    """(log position, record) of everything in an entry; nothing for no-op and configuration entries."""
    if entry.kind is not EntryKind.NORMAL:
        return
    pos = entry.pos + ENTRY_HEADER_SIZE
    # Each buffer holds whole records: a sealed payload is one buffer, an entry read from a file or a message is one.
    try:
        for buffer in entry.body():
            for record in iter_records(buffer):
                yield pos + record.pos, record
            pos += len(buffer)
    except CorruptBatchError as error:
        if "newer" in error.details:
            raise newer(f"entry {entry.index} of the log, at byte {pos}: record", error.detail_int("newer"), RECORD) from None
        raise


def scan_start(log: ReadableLog, pos: int) -> int:
    """The index of the first entry of the segment that holds ``pos`` (the log's first one when that is gone)."""
    index = log.first_index
    for segment in log.segments:
        if segment.start_pos > pos:
            break
        index = max(index, segment.first_index)
    return index


def scan_end(log: ReadableLog, pos: int) -> int:
    """One past the index of the last entry of the segment that holds ``pos``."""
    return next((segment.first_index for segment in log.segments if segment.start_pos > pos), log.last.index + 1)
