"""``dledger audit tail``: administrative actions and refusals, from all nodes and name servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ask
from dledger_cli.help_page import ReadingCommand, command_group
from dledger_cli.output import end_if_unread, json_wanted, note, print_json, print_line

if TYPE_CHECKING:
    from dledger_client.admin.audit import AuditLog, AuditRecord
    from dledger_client.aio import Admin

LOOK_S = 1.0
MOST = 10_000


def register(root: typer.Typer) -> None:
    app = command_group(root, "audit")
    app.command("tail", cls=ReadingCommand)(tail)


def tail(
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=MOST, help="How many records.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Print new records as they are written, until interrupted.")] = False,
    node: Annotated[str, typer.Option("--node", metavar="ID", help="Only records of this node or name server (id or address).")] = "",
    by: Annotated[str, typer.Option("--by", metavar="USER", help="Only actions of this user.")] = "",
    action: Annotated[str, typer.Option("--action", metavar="TEXT", help="Only actions that contain this text.")] = "",
    denied: Annotated[bool, typer.Option("--denied", help="Only refusals.")] = False,
) -> None:
    """Show the newest audit records of all nodes, by time.  Includes name servers.  With --json as they were written, one a line."""

    async def work(admin: Admin) -> None:
        silent: dict[str, str] = {}
        after: Mapping[str, int] = {}
        wanted = count
        while True:
            found = await admin.audit_log(wanted, user=by, action=action, denied=denied, node=node, after=after)
            _show(found)
            silent = _report_silent(found, silent)
            if not follow:
                return
            after, wanted = found.positions, MOST
            await asyncio.sleep(LOOK_S)
            end_if_unread()

    ask(work)


def _show(found: AuditLog) -> None:
    for record in found.records:
        if json_wanted():
            print_json({name: value for name, value in asdict(record).items() if value not in (None, "") or name in ("user", "name")})
        else:
            print_line(_line(record))


def _report_silent(found: AuditLog, reported: Mapping[str, str]) -> dict[str, str]:
    """Name those whose records are missing, each once."""
    for name, why in found.unanswered.items():
        if name not in reported:
            note(f"{name} did not answer, its records are missing: {why}")
    return dict(found.unanswered)


def _line(record: AuditRecord) -> str:
    """For people: nothing in it moves the cursor."""
    outcome = record.outcome if record.allowed else f"REFUSED {record.reason}".rstrip()
    what = " ".join(part for part in (record.action, record.resource if record.name else "", record.name) if part)
    change = _change(record.before, record.after)
    count = f"{record.count} times" if record.count else ""
    parts = (record.at, record.node, record.user or "-", record.address or "-", outcome, what, count, change)
    return "  ".join(part for part in parts if part)


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if before is None and after is None:
        return ""
    old, new = before or {}, after or {}
    changed = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return ", ".join(f"{name}: {_short(old.get(name))} -> {_short(new.get(name))}" for name in changed)


def _short(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)
