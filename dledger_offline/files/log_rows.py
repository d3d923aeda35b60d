"""Readable lines from the files of the log: entries of a segment, the records in them, index units, queue units.

Files are shown as they stand, damaged ones too: what cannot be read becomes a row that says so, never an exception.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dledger.core.types import EntryKind
from dledger.log.dump import DumpedDamage, DumpedEnd, DumpedEntry, DumpedFiller, dump_entries
from dledger.membership.configuration import Configuration
from dledger_wire.batches.batch import BatchView, CommandView, iter_records
from dledger_wire.errors import DledgerError
from dledger_wire.frames.compress import compression_in, decompress
from dledger_wire.frames.frame import decode_frame
from dledger_wire.layout import ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, parse_segment_name
from dledger_wire.store_layout import QUEUE_UNIT, QUEUE_UNIT_SIZE

BODY_PREVIEW = 80


def map_file(path: Path) -> memoryview:
    """The file's bytes, read only where they are looked at."""
    with open(path, "rb") as file:
        if path.stat().st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def segment_rows(path: Path, from_pos: int, *, messages: bool) -> Iterator[dict[str, Any]]:
    """Entries of a segment that end after ``from_pos``, each followed by its records."""
    for dumped in dump_entries(map_file(path), parse_segment_name(path.name) or 0, from_pos):
        if isinstance(dumped, DumpedFiller):
            yield {"pos": dumped.pos, "what": "filler", "size": dumped.size_bytes}
        elif isinstance(dumped, DumpedEnd):
            yield {"pos": dumped.pos, "what": "end", "size": dumped.size_bytes}
        elif isinstance(dumped, DumpedDamage):
            yield {"pos": dumped.pos, "what": "damaged", "text": dumped.text}
        else:
            yield from _entry_rows(dumped, messages=messages)


def _entry_rows(entry: DumpedEntry, *, messages: bool) -> Iterator[dict[str, Any]]:
    header, body, pos = entry.header, entry.body, entry.pos
    row = {"pos": pos, "what": "entry", "index": header.index, "term": header.term, "size": header.size}
    row |= {"kind": EntryKind(header.magic).name.lower(), "crc": "BAD" if entry.body_fault else "ok", "at": header.pos}
    yield row | ({"fault": entry.link_fault} if entry.link_fault else {})
    if entry.body_fault:
        return
    if header.magic == EntryKind.CONFIG:
        yield {"pos": pos + ENTRY_HEADER_SIZE, "what": "configuration"} | _configuration(body)
        return
    try:
        for record in iter_records(body):
            yield from _record_rows(record, pos + ENTRY_HEADER_SIZE, messages=messages)
    except DledgerError as error:
        yield {"pos": pos + ENTRY_HEADER_SIZE, "what": "damaged", "text": str(error)}


def _configuration(body: memoryview) -> dict[str, Any]:
    try:
        configuration = Configuration.decode(body)
    except DledgerError as error:
        return {"text": str(error)}
    membership = configuration.membership
    return {"voters": list(membership.voters), "learners": list(membership.learners), "addresses": dict(configuration.addresses)}


def _record_rows(record: BatchView | CommandView, body_pos: int, *, messages: bool) -> Iterator[dict[str, Any]]:
    if isinstance(record, CommandView):
        yield {"pos": body_pos + record.pos, "what": "command", "kind": record.kind} | {"arguments": record.arguments}
        return
    row: dict[str, Any] = {"pos": body_pos + record.pos, "what": "batch", "topic": record.topic, "queue_id": record.queue_id}
    row |= {"first_offset": record.first_queue_offset, "count": record.count, "size": record.size, "stored_at": record.store_timestamp}
    if record.sequence is not None:
        made = record.sequence
        row |= {"producer": made.producer_id, "epoch": made.epoch, "first_sequence": made.first_sequence}
    yield row
    if messages:
        frames = record.frames
        at = 0
        for size in record.sizes.tolist():
            yield _message_row(frames[at : at + size], body_pos + record.pos + record.frames_at + at)
            at += size


def _message_row(frame_bytes: memoryview, pos: int) -> dict[str, Any]:
    try:
        frame = decode_frame(frame_bytes)
        compression = compression_in(frame.sys_flag)
        body = decompress(frame.body, compression)
    except DledgerError as error:
        return {"pos": pos, "what": "damaged", "text": str(error)}
    preview = body[:BODY_PREVIEW].decode("utf-8", "backslashreplace")
    row = {"pos": pos, "what": "message", "topic": frame.topic, "queue_id": frame.queue_id, "queue_offset": frame.queue_offset}
    if compression:
        row["compressed"] = compression.name.lower()
    return row | {"born_at": frame.born_timestamp, "size": len(frame_bytes), "properties": dict(frame.properties), "body": preview}


def index_unit_rows(path: Path, from_pos: int) -> Iterator[dict[str, Any]]:
    data = map_file(path)
    for at in range(0, len(data) - INDEX_UNIT_SIZE + 1, INDEX_UNIT_SIZE):
        magic, pos, size, index, term = INDEX_UNIT.unpack_from(data, at)
        if magic == 0:
            return
        if pos + size > from_pos:
            yield {"pos": at, "what": "unit", "index": index, "term": term, "at": pos, "size": size, "magic": magic}


def queue_unit_rows(path: Path, from_pos: int) -> Iterator[dict[str, Any]]:
    data = map_file(path)
    start = parse_segment_name(path.name) or 0
    for at in range(0, len(data) - QUEUE_UNIT_SIZE + 1, QUEUE_UNIT_SIZE):
        pos, size, tag_hash = QUEUE_UNIT.unpack_from(data, at)
        if size == 0:
            return
        if start + at >= from_pos:
            offset = (start + at) // QUEUE_UNIT_SIZE
            yield {"pos": start + at, "what": "unit", "offset": offset, "at": pos, "size": size, "tag_hash": tag_hash}
