"""``dledger transaction``: open transactions, how often their producers were asked, and how many were parked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, ask
from dledger_cli.output import note, note_unanswered, print_json, print_table, unanswered_json
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.open_transactions import GroupTransactions, OpenTransaction

HEADER = ("TRANSACTION", "PRODUCER-GROUP", "TOPIC", "QUEUE", "AGE-S", "CHECKS", "REPLICA-GROUP")


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Transactions of producers.", no_args_is_help=True, rich_markup_mode=None)
    reading_command(app, "list", epilog="Example: dledger transaction list --json")(list_transactions)
    root.add_typer(app, name="transaction")


def list_transactions(
    name: Annotated[str, typer.Argument(metavar="[GROUP]", help="Producer group. Default: all.")] = "",
    max_transactions: Annotated[int, typer.Option("--max", metavar="N", min=1, max=1000, help="The N oldest of each replica group.")] = 100,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List open transactions, oldest first, and how many were parked because no producer knew their state."""
    found = ask(config, timeout, lambda admin: admin.transactions(name, max_transactions=max_transactions, partial=True))
    if as_json:
        print_json({"groups": [_group_json(each) for each in found]} | unanswered_json(found.unanswered))
        note_unanswered(found.unanswered)
        return
    now_ms = time.time() * 1000
    rows = [
        (each.transaction_id, each.producer_group, each.topic, each.queue_id, f"{age_s:.1f}", each.check_times, each.replica_group)
        for of_group in found
        for each in of_group.transactions
        for age_s in [(now_ms - each.stored_ms) / 1000]
    ]
    print_table(HEADER, rows, right=("QUEUE", "AGE-S", "CHECKS"))
    for each in found:
        producers = ", ".join(f"{group} {count}" for group, count in each.producers.items()) or "none"
        parked = f"{each.parked} parked in TRANS_CHECK_MAX_TIME_TOPIC"
        note(f"{each.replica_group}: {each.open} open, {parked}; connected producers: {producers}")
    note_unanswered(found.unanswered)


def _group_json(found: GroupTransactions) -> dict[str, Any]:
    return {
        "group": found.replica_group,
        "open": found.open,
        "parked": found.parked,
        "transactions": [_transaction_json(each) for each in found.transactions],
        "attending": dict(found.producers),
    }


def _transaction_json(found: OpenTransaction) -> dict[str, Any]:
    return {
        "transaction_id": found.transaction_id,
        "producer_group": found.producer_group,
        "topic": found.topic,
        "queue_id": found.queue_id,
        "group": found.replica_group,
        "half_offset": found.half_offset,
        "stored_ms": found.stored_ms,
        "check_times": found.check_times,
        "checked_ms": found.checked_ms,
    }
