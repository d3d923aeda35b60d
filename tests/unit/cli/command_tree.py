"""Every command of ``dledger`` and its options, for rules that hold over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from dledger_cli.app import app


def commands(group: Any = None, path: str = "dledger") -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield f"{path} {name}", command
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{path} {name}")


def options(command: Any, name: str) -> list[Any]:
    return [param for param in command.params if name in param.opts]
