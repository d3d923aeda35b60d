"""``dledger dump``: any file of a node's data folder as readable lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dledger_cli.help_page import JsonCommand
from dledger_cli.output import json_wanted, print_json, print_line


def register(app: typer.Typer) -> None:
    app.command("dump", cls=JsonCommand)(dump)


def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of the data folder.")],
    from_pos: Annotated[int, typer.Option("--from-pos", metavar="N", min=0, help="Start at this position.")] = 0,
    messages: Annotated[bool, typer.Option("--messages", help="Print every message, not only the batches.")] = False,
) -> None:
    """Print the entries, units or records of a store file.  One a line."""
    from dledger_offline.files import dump as library

    for row in library.dump(file, from_pos=from_pos, messages=messages):
        if json_wanted():
            print_json(row)
        else:
            print_line(_line(row))


def _line(row: dict[str, Any]) -> str:
    indent = {"batch": "  ", "command": "  ", "configuration": "  ", "message": "    "}.get(row["what"], "")
    rest = "  ".join(f"{key} {_text(value)}" for key, value in row.items() if key not in ("pos", "what"))
    return f"{row['pos']:>12}  {indent}{row['what']}  {rest}".rstrip()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
