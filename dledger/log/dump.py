"""The entries of a segment file as they stand, each with what is wrong with it.  For ``dledger dump``.

Reads a buffer, so that it needs no node and no disk.  Nothing is repaired and nothing is raised: damage is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from dledger.log.entry import Header, chain_crc_of, header_fault
from dledger_wire.checksum import crc32c
from dledger_wire.layout import ENTRY_HEADER_SIZE, FILLER, FILLER_SIZE, MAGIC_FILLER


@dataclass(frozen=True, slots=True)
class DumpedEntry:
    """An entry at ``pos`` of the log.

    ``body_fault`` and ``link_fault`` say what is wrong with its body, and with its position or its checksum of the entries before; empty
    when nothing is.
    """

    pos: int
    header: Header
    body: memoryview
    body_fault: str
    link_fault: str


@dataclass(frozen=True, slots=True)
class DumpedFiller:
    """The filler at a sealed segment's end."""

    pos: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DumpedEnd:
    """Zeros to the end of the file: nothing is written there yet."""

    pos: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DumpedDamage:
    """Bytes that are not a header; where the next entry begins is not known."""

    pos: int
    text: str


Dumped: TypeAlias = DumpedEntry | DumpedFiller | DumpedEnd | DumpedDamage


def dump_entries(data: memoryview, start_pos: int, from_pos: int = 0) -> Iterator[Dumped]:
    """What stands in the segment file ``data`` that begins at ``start_pos`` of the log; entries that end by ``from_pos`` are left out."""
    at, chain_crc = 0, None
    while at + FILLER_SIZE <= len(data):
        pos = start_pos + at
        magic, size = FILLER.unpack_from(data, at)
        if magic == MAGIC_FILLER:
            yield DumpedFiller(pos, size)
            return
        if magic == 0 and not any(data[at : at + ENTRY_HEADER_SIZE]):
            yield DumpedEnd(pos, len(data) - at)
            return
        if at + ENTRY_HEADER_SIZE > len(data):
            return
        header = Header.unpack(data, at)
        fault = header_fault(header, len(data) - at)
        if fault is not None:
            yield DumpedDamage(pos, fault)
            return
        if pos + header.size > from_pos:
            yield _entry(data[at : at + header.size], header, pos, chain_crc)
        chain_crc = header.chain_crc
        at += header.size


def _entry(entry: memoryview, header: Header, pos: int, chain_crc: int | None) -> DumpedEntry:
    body = entry[ENTRY_HEADER_SIZE:]
    body_fault = "" if crc32c(body) == header.body_crc else "the body's checksum does not match"
    faults = [f"pos {header.pos}, stands at {pos}"] if header.pos != pos else []
    if chain_crc is not None and chain_crc_of(chain_crc, entry[:ENTRY_HEADER_SIZE]) != header.chain_crc:
        faults.append("the chain checksum does not follow the entry before")
    return DumpedEntry(pos, header, body, body_fault, "; ".join(faults))
