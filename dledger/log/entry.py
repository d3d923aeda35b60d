"""One entry as it stands in the file: encoding, chaining, checking.

Owns the meaning of the 48-byte header (``dledger_wire/layout.py`` owns its format).  Pure: bytes in, values out.

The chain CRC covers the previous entry's chain CRC and this header without the chain field; the header holds the body's CRC.  So one
chain value stands for the whole log up to its entry, and an entry that is intact but belongs to another log, another place or an
overwritten history is distinguished from the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dledger.core.types import EntryId, EntryKind, EntryMeta
from dledger.log.index_units import EntryPlace
from dledger.runtime.env import Buffer
from dledger_wire.check import require
from dledger_wire.checksum import crc32c, extend_crc32c
from dledger_wire.errors import CorruptEntryError
from dledger_wire.layout import BODY_CRC_AT, CHAIN_CRC, CHAIN_CRC_AT, ENTRY_HEADER, ENTRY_HEADER_SIZE, MAX_SEGMENT_BYTES

_KINDS = {int(kind): kind for kind in EntryKind}


@dataclass(slots=True)
class Header:
    """The fields of an entry header in file order."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int

    @classmethod
    def unpack(cls, data: Buffer, at: int = 0) -> Header:
        return cls(*ENTRY_HEADER.unpack_from(data, at))

    def is_of(self, place: EntryPlace) -> bool:
        """Whether it says of itself what the entry's index unit says."""
        return (self.index, self.term, self.pos, self.size) == (place.index, place.term, place.pos, place.size)


@dataclass(slots=True)
class RawEntry:
    """An entry with its bytes: ``buffers`` are header and body one after the other, exactly as in the file.  Never changed once made."""

    index: int
    term: int
    kind: EntryKind
    pos: int
    size_bytes: int
    chain_crc: int
    buffers: tuple[Buffer, ...]
    end_pos: int = field(init=False)

    def __post_init__(self) -> None:
        self.end_pos = self.pos + self.size_bytes

    @property
    def id(self) -> EntryId:
        return EntryId(self.index, self.term)

    def meta(self) -> EntryMeta:
        """The entry as the core sees it, without a configuration (that is in the body)."""
        return EntryMeta(self.term, self.size_bytes, self.kind)

    def header_bytes(self) -> bytes:
        first = self.buffers[0]
        return bytes(first if len(first) == ENTRY_HEADER_SIZE else memoryview(first)[:ENTRY_HEADER_SIZE])

    def body(self) -> tuple[Buffer, ...]:
        """The body's buffers; no bytes are copied."""
        first = self.buffers[0]
        if len(first) == ENTRY_HEADER_SIZE:
            return self.buffers[1:]
        return (memoryview(first)[ENTRY_HEADER_SIZE:], *self.buffers[1:])

    def body_bytes(self) -> bytes:
        """The body in one piece (a copy)."""
        return b"".join(self.body())


def chain_crc_of(previous_chain_crc: int, header: Buffer) -> int:
    """The chain CRC that belongs into ``header``, whatever stands there now."""
    view = bytes(header[:ENTRY_HEADER_SIZE])
    return extend_crc32c(0, CHAIN_CRC.pack(previous_chain_crc) + view[:CHAIN_CRC_AT] + view[BODY_CRC_AT:])


def encode_entry(index: int, term: int, kind: EntryKind, pos: int, previous_chain_crc: int, body: Sequence[Buffer]) -> RawEntry:
    """Put the header before ``body``; the body's buffers are kept as they are, not copied."""
    body_size = sum(memoryview(buffer).nbytes for buffer in body)
    size = ENTRY_HEADER_SIZE + body_size
    require(index >= 1 and term >= 0 and pos >= 0, "entry %d of term %d at %d", index, term, pos)
    require(size <= MAX_SEGMENT_BYTES, "entry of %d bytes", size)
    fields = (int(kind), size, index, term, pos, 0)
    body_crc = crc32c(*body)
    chain_crc = chain_crc_of(previous_chain_crc, ENTRY_HEADER.pack(*fields, 0, body_crc, body_size))
    header = ENTRY_HEADER.pack(*fields, chain_crc, body_crc, body_size)
    return RawEntry(index, term, kind, pos, size, chain_crc, (header, *body))


def header_fault(header: Header, room: int) -> str | None:
    """What is wrong with a header by itself, or None; ``room`` is how many bytes an entry may take there."""
    if header.magic not in _KINDS:
        return f"magic {header.magic}, expected one of {sorted(_KINDS)}"
    if header.size != ENTRY_HEADER_SIZE + header.body_size or header.body_size < 0:
        return f"size {header.size} with a body of {header.body_size} bytes"
    if header.size > room:
        return f"size {header.size}, but only {room} bytes are left"
    if header.index < 1 or header.term < 0 or header.pos < 0:
        return f"index {header.index}, term {header.term}, pos {header.pos}"
    return None


def parse_entry(data: memoryview, at: int = 0, *, check_body: bool = True) -> RawEntry:
    """The entry that starts at ``at``; its buffer is a slice of ``data``.  CorruptEntryError when it is cut short or damaged."""
    room = len(data) - at
    if room < ENTRY_HEADER_SIZE:
        raise CorruptEntryError(f"{room} bytes where an entry header takes {ENTRY_HEADER_SIZE}")
    header = Header.unpack(data, at)
    fault = header_fault(header, room)
    if fault is not None:
        raise CorruptEntryError(fault)
    entry = data[at : at + header.size]
    if check_body and crc32c(entry[ENTRY_HEADER_SIZE:]) != header.body_crc:
        raise CorruptEntryError(f"entry {header.index}: the body's checksum does not match", index=header.index)
    return RawEntry(header.index, header.term, _KINDS[header.magic], header.pos, header.size, header.chain_crc, (entry,))


def parse_entries(data: Buffer, *, check_body: bool = True) -> list[RawEntry]:
    """A run of entries one right after the other (a message from the leader, a piece of a file), whole or CorruptEntryError.

    Bodies are checked here; chain and place are checked where the entries join a log (``Log.append``).
    """
    view = memoryview(data).cast("B").toreadonly()
    entries = []
    at = 0
    while at < len(view):
        entry = parse_entry(view, at, check_body=check_body)
        entries.append(entry)
        at += entry.size_bytes
    return entries


def link_fault(header: Header, head: Buffer, index: int, term: int, pos: int, previous_chain_crc: int | None) -> str | None:
    """What is wrong with an entry as the one after (index - 1, term) at ``pos``, or None.  ``term`` is the previous entry's."""
    if header.index != index:
        return f"index {header.index}, expected {index}"
    if header.pos != pos:
        return f"pos {header.pos}, expected {pos}"
    if header.term < term:
        return f"term {header.term} after term {term}"
    if previous_chain_crc is not None and chain_crc_of(previous_chain_crc, head) != header.chain_crc:
        return f"the chain checksum does not follow entry {index - 1}"
    return None
