"""``dledger dump``: any file of a node's data folder as readable lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dledger_cli.context import JsonOption
from dledger_cli.help_page import examples
from dledger_cli.output import print_json, print_line

KINDS = {"commitlog", "index-units", "consumequeue", "index", "config", "quarantine"}


def register(app: typer.Typer) -> None:
    app.command(
        "dump", epilog=examples("dledger dump data/n0/commitlog/00000000000000000000 --messages", "dledger dump FILE --from-pos 4096")
    )(dump)


def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of the data folder.")],
    from_pos: Annotated[int, typer.Option("--from-pos", metavar="N", min=0, help="Start at this position.")] = 0,
    messages: Annotated[bool, typer.Option("--messages", help="Print every message, not only the batches.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the entries, units or records of a store file.  One a line."""
    from dledger_wire.errors import InvalidArgumentError

    if file.is_dir():
        raise InvalidArgumentError(f"{file}: a folder; expected one of the files in it")
    if not file.is_file():
        raise InvalidArgumentError(f"{file}: no such file")
    if not _is_of_a_node(file):
        raise InvalidArgumentError(f"{file}: not a file of a data folder (expected identity.json in a folder above it)")
    for row in _rows(file, from_pos, messages=messages):
        if as_json:
            print_json(row)
        else:
            print_line(_line(row))


def _is_of_a_node(file: Path) -> bool:
    """Whether the file lies in a node's data folder, or in a copy of one of its folders."""
    above = file.resolve().parents
    return any((folder / "identity.json").is_file() for folder in above) or bool(KINDS & {folder.name for folder in above})


def _rows(file: Path, from_pos: int, *, messages: bool) -> Iterator[dict[str, Any]]:
    from dledger_offline.files import index_rows, log_rows, other_rows

    above = [folder.name for folder in file.resolve().parents]
    kind = "consumequeue" if above[2:3] == ["consumequeue"] else above[0]  # consumequeue/TOPIC/QUEUE/FILE, the others KIND/FILE
    if kind == "commitlog":
        return log_rows.segment_rows(file, from_pos, messages=messages)
    if kind == "index-units":
        return log_rows.index_unit_rows(file, from_pos)
    if kind == "consumequeue":
        return log_rows.queue_unit_rows(file, from_pos)
    return index_rows.index_rows(file, from_pos) if kind == "index" else other_rows.small_rows(file)


def _line(row: dict[str, Any]) -> str:
    indent = {"batch": "  ", "command": "  ", "configuration": "  ", "message": "    "}.get(row["what"], "")
    rest = "  ".join(f"{key} {_text(value)}" for key, value in row.items() if key not in ("pos", "what"))
    return f"{row['pos']:>12}  {indent}{row['what']}  {rest}".rstrip()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
