"""What waits: open transactions, and messages whose delay is not over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger_client.admin.diagnostics import DelayLevel, WaitingMessage
from dledger_client.aio import Admin, DledgerError, GroupTransactions, OpenTransaction, ReadAt

MAX_DELAYED = 200  # messages that a page lists, the next ones due
MAX_TRANSACTIONS = 200  # of each replica group, the oldest


@dataclass(frozen=True, slots=True)
class TransactionList:
    """Open transactions of all replica groups.

    Attributes:
        rows: The oldest ones, the oldest first.
        open: How many there are.
        parked: How many were put aside because no producer knew their state.
        producers: Producer group -> how many of its producers can be asked.
        unanswered: The replica groups that did not answer, and why.
        read_at: The replicas that answered for the others.
    """

    rows: Sequence[OpenTransaction]
    open: int
    parked: int
    producers: Mapping[str, int]
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)
    read_at: Mapping[str, ReadAt] = field(default_factory=dict)


async def open_transactions(admin: Admin, producer_group: str = "") -> TransactionList:
    """Of one producer group, or of all."""
    found = await admin.transactions(producer_group, max_transactions=MAX_TRANSACTIONS, partial=True)
    rows = sorted((row for group in found for row in group.transactions), key=lambda row: row.stored_ms)
    counts = sum(group.open for group in found), sum(group.parked for group in found)
    return TransactionList(rows, *counts, _producers(found), found.unanswered, found.read_at)


def _producers(groups: Sequence[GroupTransactions]) -> dict[str, int]:
    """A producer is connected to every replica group, and counts once."""
    found: dict[str, int] = {}
    for group in groups:
        for name, count in group.producers.items():
            found[name] = max(found.get(name, 0), count)
    return found


@dataclass(frozen=True, slots=True)
class DelayRow:
    """What waits at one delay level, or for times of its own, in all replica groups.

    Attributes:
        level: The delay level; 0 for messages with a delivery time of their own.
        delay_ms: How long messages wait at it; 0 for those with a time of their own.
        waiting: How many wait.
        next_due_ms: When the first is due, milliseconds since 1970; 0 when that is not known.
        exact: False: at least ``waiting``.
    """

    level: int
    delay_ms: int
    waiting: int
    next_due_ms: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class DelayList:
    """Delayed messages of all replica groups.

    Attributes:
        rows: By level, those with times of their own last; levels where nothing waits are left out.
        messages: The next ones due, the first one first.
        unanswered: The replica groups that did not answer, and why.
        read_at: The replicas that answered for the others.
    """

    rows: Sequence[DelayRow]
    messages: Sequence[WaitingMessage]
    unanswered: Mapping[str, DledgerError] = field(default_factory=dict)
    read_at: Mapping[str, ReadAt] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many wait, at least."""
        return sum(row.waiting for row in self.rows)


async def delays(admin: Admin) -> DelayList:
    """Messages whose delay is not over."""
    found = await admin.waiting_delays(MAX_DELAYED)
    levels: dict[int, list[DelayLevel]] = {}
    for group in found:
        for level in group.levels:
            if level.waiting:
                levels.setdefault(level.level, []).append(level)
    rows = [
        DelayRow(number, same[0].delay_ms, sum(each.waiting for each in same), _first(each.next_due_ms for each in same))
        for number, same in sorted(levels.items())
    ]
    if any(group.timed for group in found):
        timed = sum(group.timed for group in found)
        rows.append(DelayRow(0, 0, timed, _first(group.timed_next_due_ms for group in found), all(group.exact for group in found)))
    messages = sorted((message for group in found for message in group.messages), key=lambda message: message.due_ms)
    return DelayList(rows, messages[:MAX_DELAYED], found.unanswered, found.read_at)


def _first(times_ms: Iterable[int]) -> int:
    return min((at_ms for at_ms in times_ms if at_ms), default=0)
