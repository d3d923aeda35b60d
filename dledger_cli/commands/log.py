"""``dledger log tail``: the newest lines of the log of a node or a name server, without a shell on its machine."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ask
from dledger_cli.help_page import ReadingCommand, command_group
from dledger_cli.message_text import time_text
from dledger_cli.output import RED, YELLOW, end_if_unread, json_wanted, note, print_json, print_line
from dledger_wire.errors import DeadlineExceededError, UnreachableError

if TYPE_CHECKING:
    from dledger_client.admin.diagnostics import LogLevel, LogLine
    from dledger_client.aio import Admin

LOOK_S = 1.0
MOST = 2_000
LEVELS = ("debug", "info", "warning", "error", "critical")
COLOURS = {"warning": YELLOW, "error": RED, "critical": RED}
_BOUND = ("group", "node")


def register(root: typer.Typer) -> None:
    app = command_group(root, "log")
    app.command("tail", cls=ReadingCommand)(tail)


def _level(text: str) -> str:
    if text not in ("", *LEVELS):
        raise typer.BadParameter(f"expected one of {', '.join(LEVELS)}")
    return text


def tail(
    node: Annotated[str, typer.Option("--node", metavar="ID", help="The node or name server, by id or address.")],
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=MOST, help="How many lines.")] = 50,
    level: Annotated[
        str,
        typer.Option("--level", metavar="LEVEL", callback=_level, help="Only lines of this level or above: debug, info, warning, error."),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Print new records as they are written, until interrupted.")] = False,
) -> None:
    """Show the newest log lines of a node, oldest first.  They are read from the node's memory.  With --json, one object a line."""

    async def work(admin: Admin) -> None:
        wanted: LogLevel | None = level or None  # type: ignore[assignment]
        found = await admin.log_tail(node, count, level=wanted)
        _show(found.lines)
        silent = False
        while follow:
            await asyncio.sleep(LOOK_S)
            end_if_unread()
            try:
                found = await admin.log_tail(node, MOST, level=wanted, after=found.newest)
            except (UnreachableError, DeadlineExceededError) as error:
                if not silent:
                    note(f"{node} does not answer, waiting for it: {error}")
                silent = True
                continue
            silent = False
            _show(found.lines)

    ask(work)


def _show(lines: tuple[LogLine, ...]) -> None:
    for line in lines:
        if json_wanted():
            print_json({"at": time_text(line.at_ms), **asdict(line)})
            continue
        fields = " ".join(f"{name}={value}" for name, value in line.fields.items() if name not in (*_BOUND, "exception"))
        about = " ".join(part for part in (line.event, fields) if part)
        print_line(
            f"{time_text(line.at_ms)}  {line.level.upper():8}  {line.text}{f'  ({about})' if about else ''}", COLOURS.get(line.level, "")
        )
        if trace := line.fields.get("exception"):
            for each in trace.splitlines():
                print_line(f"    {each}")
