"""``dledger leader``: leadership of a replica group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, ask, replica_group_of
from dledger_cli.output import note, print_json

if TYPE_CHECKING:
    from dledger_client.admin.membership import LeaderTransfer
    from dledger_client.aio import Admin

BEST = "best"
EXAMPLES = "Examples: dledger leader transfer --replica-group g0 --to n1 | dledger leader transfer --to best"


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Leadership of a replica group.", no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("transfer", epilog=EXAMPLES)(transfer)
    root.add_typer(app, name="leader")


def transfer(
    to: Annotated[str, typer.Option("--to", metavar="ID", help="The new leader, or best: the replica with the longest log.")],
    group: Annotated[str, typer.Option("--replica-group", "--group", "-g", metavar="G", help="Replica group.")] = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Transfer leadership, and wait until the new leader has taken over."""

    async def work(admin: Admin) -> LeaderTransfer:
        return await admin.transfer_leader("" if to == BEST else to, replica_group=await replica_group_of(admin, group))

    done = ask(config, timeout, work)
    if as_json:
        names = {"old_leader": done.old_leader, "new_leader": done.new_leader, "term": done.term, "took_ms": done.took_ms}
        print_json({"group": done.replica_group} | names)
    elif done.old_leader == done.new_leader:
        note(f"replica group {done.replica_group}: {done.new_leader} leads already (term {done.term})")
    else:
        note(f"replica group {done.replica_group}: {done.old_leader} -> {done.new_leader} (term {done.term}) in {done.took_ms:.0f} ms")
