"""Any file of a node's data folder as rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dledger_offline.files import index_rows, log_rows, other_rows
from dledger_wire.errors import InvalidArgumentError

KINDS = {"commitlog", "index-units", "consumequeue", "index", "config", "quarantine"}


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
    return index_rows.index_rows(file, from_pos) if kind == "index" else other_rows.small_rows(file)
