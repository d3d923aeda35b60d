"""Readable lines from a file of the key index: its header and its entries, oldest first.

The number of slots is a setting, not in the file: it comes from config/keyIndex.json of the same data folder, without it from RocketMQ's
defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dledger_offline.files.log_rows import map_file
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.store_layout import INDEX_ENTRIES, INDEX_ENTRY_DTYPE, INDEX_ENTRY_SIZE, INDEX_HEADER, INDEX_HEADER_SIZE, INDEX_SLOTS

HEADER_FIELDS = ("begin_ms", "end_ms", "begin_pos", "end_pos", "used_slots", "next_entry")


def index_rows(path: Path, from_pos: int) -> Iterator[dict[str, Any]]:
    from store.durability.snapshots import CONFIG_FOLDER
    from store.key_index.index_file import Geometry
    from store.key_index.manifest import MARKS, decode_marks

    data = map_file(path)
    marks_file = path.resolve().parents[1] / CONFIG_FOLDER / MARKS
    marks = decode_marks(marks_file.read_bytes()) if marks_file.is_file() else None
    geometry = marks.geometry if marks is not None else Geometry(INDEX_SLOTS, INDEX_ENTRIES)
    if len(data) < INDEX_HEADER_SIZE:
        raise InvalidArgumentError(f"{path}: {len(data)} bytes; expected an index file's header of {INDEX_HEADER_SIZE}")
    header = dict(zip(HEADER_FIELDS, INDEX_HEADER.unpack_from(data), strict=True))
    if from_pos == 0:
        yield {"pos": 0, "what": "index header", **header, "slots": geometry.slots}
    for number in range(1, header["next_entry"]):
        at = geometry.entry_at(number)
        if at + INDEX_ENTRY_SIZE > len(data):
            raise InvalidArgumentError(f"{path}: ends at {len(data)}; expected {header['next_entry'] - 1} entries")
        if at >= from_pos:
            yield {"pos": at, "what": "index entry", "number": number} | _entry(data, at)


def _entry(data: Any, at: int) -> dict[str, int]:
    entry = np.frombuffer(data, INDEX_ENTRY_DTYPE, 1, at)[0]
    return {"at" if name == "pos" else name: int(entry[name]) for name in INDEX_ENTRY_DTYPE.names or ()}
