"""``dledger transaction``: which transactions are open, how often their producers were asked, how many were given up."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, bootstrap_of, run
from dledger_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from dledger_client.admin.open_transactions import GroupTransactions

HEADER = ("TRANSACTION", "PRODUCER-GROUP", "TOPIC", "QUEUE", "AGE-S", "CHECKS", "REPLICA-GROUP")


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Transactions of producers.", no_args_is_help=True, rich_markup_mode=None)
    app.command("list", epilog="Example: dledger transaction list --json")(list_transactions)
    root.add_typer(app, name="transaction")


def list_transactions(
    name: Annotated[str, typer.Argument(metavar="[GROUP]", help="Producer group; all when none is named.")] = "",
    most: Annotated[int, typer.Option("--max", metavar="N", min=1, max=1000, help="No more than the N oldest of a replica group.")] = 100,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List open transactions, the oldest first; then how many were parked because no producer knew of them."""
    found = run(_list(bootstrap_of(config), name, most, timeout))
    if as_json:
        print_json({"groups": [asdict(each) for each in found]})
        return
    now_ms = time.time() * 1000
    rows = [
        (each.transaction_id, each.producer_group, each.topic, each.queue_id, f"{age_s:.1f}", each.check_times, each.group)
        for of_group in found
        for each in of_group.transactions
        for age_s in [(now_ms - each.stored_ms) / 1000]
    ]
    print_table(HEADER, rows, right=("QUEUE", "AGE-S", "CHECKS"))
    for each in found:
        asked = ", ".join(f"{group} {count}" for group, count in each.attending.items()) or "none"
        note(f"{each.group}: {each.open} open, {each.parked} parked in TRANS_CHECK_MAX_TIME_TOPIC; producers that can be asked: {asked}")


async def _list(bootstrap: str, name: str, most: int, timeout_s: float) -> list[GroupTransactions]:
    from dledger_client.aio import Admin

    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        return await admin.transactions(name, most=most)
