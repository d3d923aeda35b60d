"""What waits: messages whose delay is not over, and open transactions."""

from __future__ import annotations

import time
from functools import partial

from nicegui import ui

from dledger_client.aio import OpenTransaction, TransactionOutcome, TransactionState
from dledger_console.data import waiting
from dledger_console.layout.actions import act
from dledger_console.layout.parts import Figures, Missing, Question, heading
from dledger_console.layout.tables import BoundedTable, Cell, Column, Link
from dledger_console.layout.view import View, console_page
from dledger_console.layout.words import number, span, stored_at
from dledger_wire.printable import printable

LOOK_S = 3.0
LEVELS = (
    Column("level", "Delay"),
    Column("waiting", "Waiting", number=True),
    Column("due", "Next one due", number=True),
)
DELAYED = (
    Column("due", "Due"),
    Column("topic", "Topic"),
    Column("keys", "Keys"),
    Column("id", "Message"),
    Column("how", "Delay"),
)
TRANSACTIONS = (
    Column("age", "Open for", number=True),
    Column("id", "Transaction"),
    Column("producers", "Producer group"),
    Column("topic", "Topic"),
    Column("place", "Replica group, queue"),
    Column("checks", "Asked", number=True),
    Column("checked", "Asked last"),
)


@console_page("/waiting", "Waiting")
async def waiting_page(view: View) -> None:
    """Both lists."""
    figures = Figures(("Delayed messages", "Open transactions", "Put aside"))
    missing = Missing()
    heading("Delayed messages")
    levels = BoundedTable(LEVELS, key="key", empty="no message waits for its time", label="Delays", rows=20)
    heading("The next ones due")
    delayed = BoundedTable(DELAYED, key="key", empty="no message waits for its time", label="Delayed messages", rows=20)
    heading("Open transactions")
    note = "" if view.read_only else "  Click one to commit it or to roll it back."
    ui.label(f"Neither committed nor rolled back; their producers are asked what became of them.{note}").classes("muted small")
    table = BoundedTable(TRANSACTIONS, key="key", empty="no open transactions", label="Open transactions", rows=20)
    shown: dict[str, OpenTransaction] = {}

    async def show_delays() -> None:
        found = await waiting.delays(view.admin)
        figures.show({"Delayed messages": number(found.waiting)})
        levels.set_rows([_level_row(row) for row in found.rows])
        delayed.set_rows(
            [
                {
                    "key": f"{place} {message.message_id}",
                    "due": _due(message.due_ms),
                    "topic": Link.to(message.topic, "/topic", name=message.topic),
                    "keys": message.key,
                    "id": Link.to(message.message_id, "/message", id=message.message_id),
                    "how": f"level {message.level}" if message.level else "a time of its own",
                }
                for place, message in enumerate(found.messages)
            ]
        )
        missing.show(found.unanswered, read_at=found.read_at)

    async def show_transactions() -> None:
        found = await waiting.open_transactions(view.admin)
        figures.show({"Open transactions": number(found.open), "Put aside": number(found.parked)})
        shown.clear()
        shown.update({_key(row): row for row in found.rows})
        table.set_rows([_transaction_row(row, found.producers.get(row.producer_group, 0)) for row in found.rows])

    if not view.read_only:
        table.table.classes("clickable")
        table.on_row(lambda key: _decide(view, shown[key]) if key in shown else None)
    await view.every(LOOK_S, show_delays)
    await view.every(LOOK_S, show_transactions)


def _level_row(row: waiting.DelayRow) -> dict[str, Cell]:
    return {
        "key": str(row.level),
        "level": f"level {row.level}: {span(row.delay_ms)}" if row.level else "until a set time",
        "waiting": row.waiting if row.exact else f"at least {number(row.waiting)}",
        "due": _due(row.next_due_ms) if row.next_due_ms else "–",
    }


def _due(at_ms: int) -> str:
    left_ms = at_ms - time.time() * 1000
    return f"{stored_at(at_ms)}, in {span(left_ms)}" if left_ms > 0 else f"{stored_at(at_ms)}, now"


def _key(row: OpenTransaction) -> str:
    return f"{row.replica_group} {row.half_offset}"


def _transaction_row(row: OpenTransaction, producers: int) -> dict[str, Cell]:
    return {
        "key": _key(row),
        "age": span(time.time() * 1000 - row.stored_ms),
        "id": Link.to(row.transaction_id, "/message", id=row.transaction_id),
        "producers": f"{row.producer_group}, {producers} connected" if producers else f"{row.producer_group}, none is connected",
        "topic": Link.to(row.topic, "/topic", name=row.topic),
        "place": f"{row.replica_group}/{row.queue_id}",
        "checks": row.check_times,
        "checked": stored_at(row.checked_ms),
    }


async def _decide(view: View, transaction: OpenTransaction) -> None:
    """Ask whether to commit or to roll back, and do it."""
    text = f"Transaction {transaction.transaction_id} of {transaction.producer_group}, for topic {transaction.topic}."
    with Question("End this transaction in place of its producer?", "Commit", dangerous="Roll back") as question:
        ui.label(printable(text)).classes("dialog-text")
        ui.label("Commit: consumers get its message.  Roll back: they never do.  Neither can be undone.").classes("dialog-text")
    answer = await question.answer()
    if answer:
        state = TransactionState.COMMIT if answer == "Commit" else TransactionState.ROLLBACK
        await act(view, partial(_end, view, transaction, state))


async def _end(view: View, transaction: OpenTransaction, state: TransactionState) -> str:
    outcome = await view.admin.resolve_transaction(transaction, state)
    said = f"transaction {transaction.transaction_id}: {outcome.name.lower().replace('_', ' ')}"
    wanted = TransactionOutcome.COMMITTED if state is TransactionState.COMMIT else TransactionOutcome.ROLLED_BACK
    return said if outcome is wanted else f"{said}: it had been ended before"
