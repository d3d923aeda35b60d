"""Any file of a node's data folder as rows: those of the log in ``log_rows``; here the key index, hard state, checkpoint, JSON and text.

The number of slots of an index file is a setting, not in the file: it comes from config/keyIndex.json of the same data folder, without it
from RocketMQ's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dledger.log.hard_state import COPY_BYTES, decode_record
from dledger_offline.files import log_rows
from dledger_offline.files.log_rows import map_file
from dledger_wire import strict_json
from dledger_wire.dtypes import INDEX_ENTRY_DTYPE
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.store_layout import CHECKPOINT, INDEX_ENTRIES, INDEX_ENTRY_SIZE, INDEX_HEADER, INDEX_HEADER_SIZE, INDEX_SLOTS

KINDS = {"commitlog", "index-units", "consumequeue", "index", "config", "quarantine"}
HEADER_FIELDS = ("begin_ms", "end_ms", "begin_pos", "end_pos", "used_slots", "next_entry")
MAX_SMALL_BYTES = 64 << 20
CHECKPOINT_FIELDS = ("log_flushed_ms", "queues_flushed_ms", "index_flushed_ms", "master_flushed_pos", "confirmed_pos")


def dump(file: str | Path, *, from_pos: int = 0, messages: bool = False) -> Iterator[dict[str, Any]]:
    """The entries, units or records of a store file, a dictionary each, with ``pos`` (a byte of the log or of the file) and ``what``.

    Args:
        from_pos: Starts at this position.
        messages: Each message of a batch gets a row, too.

    Raises:
        InvalidArgumentError: No such file, or not one of a data folder.
    """
    file = Path(file)
    if file.is_dir():
        raise InvalidArgumentError(f"{file}: a folder; expected one of the files in it")
    if not file.is_file():
        raise InvalidArgumentError(f"{file}: no such file")
    if not _is_of_a_node(file):
        raise InvalidArgumentError(f"{file}: not a file of a data folder (expected identity.json in a folder above it)")
    return _rows(file, from_pos, messages=messages)


def _is_of_a_node(file: Path) -> bool:
    """Whether the file lies in a node's data folder, or in a copy of one of its folders."""
    above = file.resolve().parents
    return any((folder / "identity.json").is_file() for folder in above) or bool(KINDS & {folder.name for folder in above})


def _rows(file: Path, from_pos: int, *, messages: bool) -> Iterator[dict[str, Any]]:
    above = [folder.name for folder in file.resolve().parents]
    kind = "consumequeue" if above[2:3] == ["consumequeue"] else above[0]  # consumequeue/TOPIC/QUEUE/FILE, the others KIND/FILE
    if kind == "commitlog":
        return log_rows.segment_rows(file, from_pos, messages=messages)
    if kind == "index-units":
        return log_rows.index_unit_rows(file, from_pos)
    if kind == "consumequeue":
        return log_rows.queue_unit_rows(file, from_pos)
    return index_rows(file, from_pos) if kind == "index" else small_rows(file)


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


def small_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that is none of the log's or queues'."""
    if file.stat().st_size > MAX_SMALL_BYTES:
        raise InvalidArgumentError(f"{file}: not a store file (expected one in commitlog, index-units or consumequeue, or a small one)")
    data = file.read_bytes()
    if file.name == "hardstate":
        yield from _hard_state_rows(data)
    elif file.name == "checkpoint" and len(data) >= CHECKPOINT.size:
        yield {"pos": 0, "what": "checkpoint"} | dict(zip(CHECKPOINT_FIELDS, CHECKPOINT.unpack_from(data), strict=True))
    elif file.suffix == ".json":
        yield {"pos": 0, "what": "json", "value": _json(data)}
    else:
        try:
            yield {"pos": 0, "what": "text", "text": data.decode("utf-8").rstrip("\n")}
        except UnicodeDecodeError:
            raise InvalidArgumentError(f"{file}: not a store file this command knows") from None


def _json(data: bytes) -> object:
    try:
        return strict_json.parse(data)
    except ValueError as error:
        return f"damaged: {error}"


def _hard_state_rows(data: bytes) -> Iterator[dict[str, Any]]:
    for pos in range(0, len(data), COPY_BYTES):
        block = data[pos : pos + COPY_BYTES]
        record = decode_record(block)
        row: dict[str, Any] = {"pos": pos, "what": "promise"}
        if record is not None:
            yield row | {"generation": record.generation, "term": record.state.term, "vote": record.state.vote}
        else:
            yield row | {"text": "damaged" if any(block) else "blank"}
