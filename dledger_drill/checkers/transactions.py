"""Transactions: a committed one is there once, one that was rolled back never, one of unknown end once or never."""

from __future__ import annotations

from collections.abc import Iterator

from dledger_drill.checkers.model import Violation, ViolationKind
from dledger_drill.checkers.topic import TopicHistory
from dledger_drill.history.records import Operation, OperationKind, Outcome


def check_transactions(topic: TopicHistory) -> Iterator[Violation]:
    places = topic.places()
    given: dict[str, Operation] = {}
    for delivery in topic.deliveries:
        given.setdefault(delivery.data["value"], delivery)
    for value, transaction in topic.sends.items():
        if transaction.kind is not OperationKind.TRANSACTION:
            continue
        found = places.get(value, [])
        shown = tuple(topic.excerpt(*place) for place in found[:3])
        if value in given:
            shown += (given[value],)
        if len(found) > 1:
            text = f"transaction {value} is stored {len(found)} times"
            yield Violation(ViolationKind.TRANSACTION, transaction.round, text, (transaction, *shown))
        elif shown and not may_be_visible(transaction):
            ended = "failed" if transaction.data["end"] == "commit" else "was rolled back"
            text = f"transaction {value} {ended} and is visible"
            yield Violation(ViolationKind.TRANSACTION, transaction.round, text, (transaction, *shown))
        elif _has_the_other_end(transaction):
            text = f"transaction {value} was reported to have another end than {transaction.data['end']}, which was never asked for"
            yield Violation(ViolationKind.TRANSACTION, transaction.round, text, (transaction,))
        elif topic.is_audited and not found and is_committed(transaction):
            text = f"transaction {value} was committed and is not stored"
            yield Violation(ViolationKind.TRANSACTION, transaction.round, text, (transaction,))
        elif topic.is_audited and not found and topic.subscribed and was_to_be_checked(transaction):
            text = f"transaction {value} was left to the broker's check, which was to commit it, and is not stored"
            yield Violation(ViolationKind.TRANSACTION, transaction.round, text, (transaction,))


def is_committed(transaction: Operation) -> bool:
    """Its client was answered so; one that was left open for the broker's check was only prepared by then."""
    return transaction.outcome is Outcome.OK and transaction.data["end"] == "commit" and transaction.data.get("by", "client") == "client"


def _has_the_other_end(transaction: Operation) -> bool:
    """It was prepared, and every check would have been answered with its own end.  One that was not prepared has failed as any message."""
    return transaction.outcome is Outcome.FAILED and "group" in transaction.data


def was_to_be_checked(transaction: Operation) -> bool:
    """It was prepared, so the broker has to ask about it; consumers waited for it before the audit."""
    data = transaction.data
    return data.get("by") == "check" and data["end"] == "commit" and "group" in data and transaction.outcome is not Outcome.FAILED


def may_be_visible(transaction: Operation) -> bool:
    return transaction.data["end"] == "commit" and transaction.outcome is not Outcome.FAILED
