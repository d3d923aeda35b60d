"""``dledger transaction``: open and parked transactions, listed, and ended in place of their producers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.connection import connection
from dledger_cli.context import YesOption, ask, bootstrap_of, confirm
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.output import fields_of, json_wanted, note, note_unanswered, print_answer, report, unanswered_json
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.open_transactions import GroupTransactions
    from dledger_client.aio import Admin
    from dledger_client.fetch.records import ReceivedMessage

MAX_LISTED = 1000
REAL_TOPIC = "REAL_TOPIC"
OUTCOMES = {"COMMITTED": "committed", "ROLLED_BACK": "rolled back", "PARKED": "parked, so its message is never delivered"}
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The transaction: the id of its message.")]
HEADER = ("TRANSACTION", "PRODUCER-GROUP", "TOPIC", "QUEUE", "AGE-S", "CHECKS", "REPLICA-GROUP")


def register(root: typer.Typer) -> None:
    app = command_group(root, "transaction")
    reading_command(app, "list")(list_transactions)
    app.command("commit", cls=AskingCommand)(commit)
    app.command("rollback", cls=AskingCommand)(rollback)


def list_transactions(
    name: Annotated[str, typer.Argument(metavar="[GROUP]", help="Producer group. Default: all.")] = "",
    max_transactions: Annotated[int, typer.Option("--max", metavar="N", min=1, max=1000, help="The N oldest of each replica group.")] = 100,
) -> None:
    """List open transactions, oldest first.  Also counts transactions that were parked because no producer knew their state."""
    found = ask(lambda admin: admin.transactions(name, max_transactions=max_transactions, partial=True))
    now_ms = time.time() * 1000
    rows = [
        (each.transaction_id, each.producer_group, each.topic, each.queue_id, f"{age_s:.1f}", each.check_times, each.replica_group)
        for of_group in found
        for each in of_group.transactions
        for age_s in [(now_ms - each.stored_ms) / 1000]
    ]
    answer = {"groups": [_group_json(each) for each in found]} | unanswered_json(found.unanswered)
    print_answer(answer, HEADER, rows, right=("QUEUE", "AGE-S", "CHECKS"))
    for each in found if not json_wanted() else ():
        producers = ", ".join(f"{group} {count}" for group, count in each.producers.items()) or "none"
        parked = f"{each.parked} parked in TRANS_CHECK_MAX_TIME_TOPIC"
        note(f"{each.replica_group}: {each.open} open, {parked}; connected producers: {producers}")
    note_unanswered(found.unanswered)


def commit(transaction_id: IdArgument, yes: YesOption = False) -> None:
    """Commit an open or parked transaction.  The message of a parked one is sent to its topic.  Safe to repeat."""
    confirm(f"Commit transaction {transaction_id}? Consumers get its message.", yes)
    _end(transaction_id, wanted="COMMITTED")


def rollback(transaction_id: IdArgument, yes: YesOption = False) -> None:
    """Roll back an open transaction.  Consumers never receive its message, nor that of a parked one."""
    confirm(f"Roll back transaction {transaction_id}? Consumers never get its message.", yes)
    _end(transaction_id, wanted="ROLLED_BACK")


def _end(transaction_id: str, *, wanted: str) -> None:
    """``wanted``: the outcome, by its name."""
    from dledger_client.transactions.resolver import TransactionState
    from dledger_wire.errors import InvalidArgumentError
    from dledger_wire.names import CHECK_MAX_TIME_TOPIC, is_system_topic

    bootstrap = bootstrap_of()

    async def work(admin: Admin) -> str:
        state = TransactionState.COMMIT if wanted == "COMMITTED" else TransactionState.ROLLBACK
        for group in await admin.transactions(max_transactions=MAX_LISTED):
            for each in group.transactions:
                if each.transaction_id == transaction_id:
                    outcome = (await admin.resolve_transaction(each, state)).name
                    if outcome != "PARKED":
                        return outcome
        copies = {each.topic: each for each in (await admin.query_by_id(transaction_id)).messages}
        parked = copies.get(CHECK_MAX_TIME_TOPIC)
        if parked is not None:
            return await _send_parked(bootstrap, parked, connection().timeout_s) if wanted == "COMMITTED" else "PARKED"
        if any(not is_system_topic(topic) for topic in copies):
            return "COMMITTED"  # before
        text = f"{transaction_id} is neither parked nor among the {MAX_LISTED} oldest open transactions of a replica group"
        raise InvalidArgumentError(f"{text}; it may have been rolled back (dledger transaction list)")

    outcome = ask(work)
    ended = "ROLLED_BACK" if wanted == "ROLLED_BACK" and outcome == "PARKED" else outcome
    text = f"transaction {transaction_id}: {OUTCOMES.get(outcome, outcome.lower())}"
    report({"transaction_id": transaction_id, "outcome": outcome.lower()}, text)
    if ended != wanted:
        raise typer.Exit(1)


async def _send_parked(bootstrap: str, parked: ReceivedMessage, timeout_s: float) -> str:
    """Send it as a new message, once: the producer's id counts what an earlier command has stored."""
    from dledger_client.aio import Message, Producer
    from dledger_client.message_fields import RESERVED_PROPERTIES

    own = {name: value for name, value in parked.properties.items() if name not in RESERVED_PROPERTIES}
    message = Message(parked.properties[REAL_TOPIC], parked.body, keys=parked.keys, tags=parked.tags, properties=own)
    async with Producer(bootstrap, producer_id=f"parked-{parked.msg_id}", send_timeout_ms=int(timeout_s * 1000)) as producer:
        if not any((await producer.stored(message.topic)).values()):
            await producer.send(message, queue_key=parked.msg_id)
    return "COMMITTED"


def _group_json(found: GroupTransactions) -> dict[str, Any]:
    names = ("transaction_id", "producer_group", "topic", "queue_id", "half_offset", "stored_ms", "check_times", "checked_ms")
    transactions = [fields_of(each, *names, group="replica_group") for each in found.transactions]
    return fields_of(found, "open", "parked", group="replica_group", attending="producers") | {"transactions": transactions}
