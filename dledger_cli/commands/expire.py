"""``dledger expire``: delete old messages now, on every node of a replica group or on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import (
    YesOption,
    ask,
    confirm,
    parse_duration_option,
    replica_group_of,
)
from dledger_cli.help_page import LongCommand
from dledger_cli.output import error_line, fields_of, json_wanted, note, print_answer

if TYPE_CHECKING:
    from dledger_client.admin.replica_groups import NodeExpiry
    from dledger_client.aio import Admin


def register(root: typer.Typer) -> None:
    root.command("expire", cls=LongCommand)(expire)


def expire(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="Delete messages older than this. Default: fileReservedTime of each node."),
    ] = "",
    node_id: Annotated[str, typer.Option("--id", metavar="ID", help="Only on this node.")] = "",
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group.")] = "",
    yes: YesOption = False,
) -> None:
    """Delete old messages.  Deletes whole sealed segments of the log, with the queue files that point into them."""
    older_than_ms = parse_duration_option(older_than, "--older-than") if older_than else None

    async def choose(admin: Admin) -> str:
        return await replica_group_of(admin, group)

    chosen = ask(choose)
    where = node_id or f"every node of replica group {chosen}"
    confirm(f"Delete messages older than {older_than or 'fileReservedTime'} on {where}?", yes)
    node_ids = [node_id] if node_id else []
    found = ask(lambda admin: admin.expire_messages(older_than_ms=older_than_ms, replica_group=chosen, node_ids=node_ids))
    _show(chosen, [each for each in found if each.error is None])
    failed = [f"{each.node_id}: {each.error.message}" for each in found if each.error is not None]
    for text in failed:
        error_line(text)
    if failed:
        raise typer.Exit(1)


def _show(group: str, found: list[NodeExpiry]) -> None:
    rows = [(each.node_id, each.segments, each.size_bytes, each.first_index) for each in found]
    header = ("NODE", "SEGMENTS", "BYTES", "FIRST-INDEX")
    nodes = [fields_of(each, "segments", "size_bytes", "first_index", "first_pos", "held_by", id="node_id") for each in found]
    print_answer({"group": group, "nodes": nodes}, header, rows, right=header[1:])
    for each in found:
        if each.held_by and not json_wanted():
            note(f"{each.node_id}: kept from entry {each.first_index} on: {each.held_by}")
