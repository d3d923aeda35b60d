"""``dledger leader``: leadership of a replica group, and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ask, replica_group_of
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.message_text import time_text
from dledger_cli.output import fields_of, json_wanted, note, print_answer, print_json
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.diagnostics import LeaderChange
    from dledger_client.admin.replica_groups import LeaderTransfer
    from dledger_client.aio import Admin

BEST = "best"


def register(root: typer.Typer) -> None:
    app = command_group(root, "leader")
    app.command("transfer", cls=AskingCommand)(transfer)
    reading_command(app, "history")(history)


def transfer(
    to: Annotated[str, typer.Option("--to", metavar="ID", help="The new leader, or best: the replica with the longest log.")],
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Transfer even to a node that must not lead.")] = False,
) -> None:
    """Transfer leadership and wait for the new leader.

    Rejected for a node that must not lead: its disk is full, its clock is off, its certificate has expired, it does not answer, or it is
    far behind.
    """

    async def work(admin: Admin) -> LeaderTransfer:
        replica_group = await replica_group_of(admin, group)
        return await admin.transfer_leader("" if to == BEST else to, replica_group=replica_group, force=force)

    done = ask(work)
    if json_wanted():
        print_json(fields_of(done, "old_leader", "new_leader", "term", "took_ms", group="replica_group"))
    elif done.old_leader == done.new_leader:
        note(f"replica group {done.replica_group}: {done.new_leader} leads already (term {done.term})")
    else:
        note(f"replica group {done.replica_group}: {done.old_leader} -> {done.new_leader} (term {done.term}) in {done.took_ms:.0f} ms")


def history(
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Only this replica group.")] = "",
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many of the newest changes.")] = 20,
) -> None:
    """Show leader changes and their reasons, oldest first.  Merges the histories of all nodes that answer."""
    changes = ask(lambda admin: admin.leader_history(group))[-count:]
    rows = [
        (
            time_text(change.at_ms),
            change.replica_group,
            change.term,
            change.leader,
            change.previous,
            _seconds(change.took_ms),
            change.reason,
        )
        for change in changes
    ]
    header = ("TIME", "REPLICA-GROUP", "TERM", "LEADER", "BEFORE", "TOOK", "WHY")
    print_answer({"changes": [_change_json(change) for change in changes]}, header, rows, right=("TERM", "TOOK"))


def _seconds(ms: int | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.2f} s"


def _change_json(change: LeaderChange) -> dict[str, Any]:
    found = fields_of(change, "at_ms", "term", "leader", "took_ms", "kind", "cause", "reason", "accounts", group="replica_group")
    return found | {"at": time_text(change.at_ms), "previous": change.previous or None}
