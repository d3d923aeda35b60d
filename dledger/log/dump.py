"""What stands in a file of the log, readable: entries of a segment, index units, the hard state.  For ``dledger dump``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from dledger.log.entry import Header, chain_crc_of, header_fault
from dledger.log.hard_state import SlotCopy, read_copies
from dledger.log.index_units import decode_units
from dledger.log.scan import PieceReader
from dledger.runtime.env import File
from dledger_wire.checksum import crc32c
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER, FILLER_SIZE, INDEX_UNIT_SIZE, MAGIC_FILLER, MAX_SEGMENT_BYTES

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DumpedEntry:
    """One entry as it stands at ``pos`` of the log; ``fault`` says what is wrong with it, empty when nothing is."""

    pos: int
    header: Header
    body: memoryview
    fault: str


@dataclass(frozen=True, slots=True)
class DumpedFiller:
    """The filler at a segment's end."""

    pos: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DumpedUnit:
    """An index unit; ``pos`` is its place in the units file."""

    pos: int
    magic: int
    entry_pos: int
    entry_size: int
    index: int
    term: int


async def dump_entries(file: File, start_pos: int, from_pos: int = 0) -> AsyncIterator[DumpedEntry | DumpedFiller]:
    """The entries of the segment file that starts at ``start_pos``, from the first one at or after ``from_pos``.

    Ends at the filler, at zeros, or behind an entry whose header does not say where the next one starts.
    """
    reader = PieceReader(file, start_pos, PIECE_BYTES)
    pos = start_pos
    chain_crc: int | None = None
    while True:
        head = await reader.view(pos, ENTRY_HEADER_SIZE)
        if len(head) >= FILLER_SIZE and FILLER.unpack_from(head)[0] == MAGIC_FILLER:
            yield DumpedFiller(pos, FILLER.unpack_from(head)[1])
            return
        if len(head) < ENTRY_HEADER_SIZE or not any(head):
            return
        header = Header.unpack(head)
        fault = header_fault(header, start_pos + MAX_SEGMENT_BYTES - pos)
        if fault is not None:
            yield DumpedEntry(pos, header, head[:0], fault)
            return
        if pos >= from_pos:
            body = (await reader.view(pos, header.size))[ENTRY_HEADER_SIZE:]
            yield DumpedEntry(pos, header, body, _entry_fault(header, head, body, pos, chain_crc))
        chain_crc = header.chain_crc
        pos += header.size


def _entry_fault(header: Header, head: memoryview, body: memoryview, pos: int, chain_crc: int | None) -> str:
    faults = []
    if header.pos != pos:
        faults.append(f"pos {header.pos}, stands at {pos}")
    if chain_crc is not None and chain_crc_of(chain_crc, head) != header.chain_crc:
        faults.append("the chain checksum does not follow the entry before")
    if len(body) < header.body_size:
        faults.append(f"the file ends after {len(body)} of {header.body_size} bytes of the body")
    elif crc32c(body) != header.body_crc:
        faults.append("the body's checksum does not match")
    return "; ".join(faults)


async def dump_units(file: File, from_pos: int = 0) -> AsyncIterator[DumpedUnit]:
    """The units of an index-unit file that are not all zeros, from byte ``from_pos`` on."""
    pos = -(-from_pos // INDEX_UNIT_SIZE) * INDEX_UNIT_SIZE
    while data := await file.pread(pos, PIECE_BYTES):
        for number, unit in enumerate(decode_units(data)):
            at = number * INDEX_UNIT_SIZE
            if any(data[at : at + INDEX_UNIT_SIZE]):
                yield DumpedUnit(pos + at, *(int(unit[name]) for name in ("magic", "pos", "size", "index", "term")))
        pos += len(data)


async def dump_hard_state(file: File) -> list[SlotCopy]:
    """The four copies in a hard-state file."""
    return await read_copies(file)
