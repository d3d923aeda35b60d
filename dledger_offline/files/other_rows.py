"""Readable lines from the small files of a data folder: hard state, checkpoint, JSON and text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dledger.log.hard_state import COPY_BYTES, decode_record
from dledger_wire import strict_json
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.store_layout import CHECKPOINT

MAX_SMALL_BYTES = 64 << 20
CHECKPOINT_FIELDS = ("log_flushed_ms", "queues_flushed_ms", "index_flushed_ms", "master_flushed_pos", "confirmed_pos")


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
