"""Which half messages are open, as replicated state: the one place that says whether a transaction has ended.

Owns config/transactions.json.  A transaction is named by the offset of its half message in the half topic.  The command that ends it stands
in the same log entry as the message it publishes (``redelivery.py``): both are committed or neither, and since the master proposes an end
only for what is open here, and one at a time (``broker/transactions/resolver.py``), a transaction is published once or never.

    stored in the half topic --> open --commit--> published and ended     (one entry)
                                  |  |--rollback--> ended
                                  |--transactionCheckMax checks without an answer--> parked and ended     (one entry)

What is ended is kept as runs of offsets, so memory grows with what is open, and that is limited.  How the newest of the ended ones ended is
kept too, for producers that ask twice; how often the open ones were checked, so that no change of masters asks more often.  Whose the open
ones are stands in their half messages only: a master learns it when it reads them (``broker/transactions/checker.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum

from dledger_wire.errors import BusyError
from store.commands.command import JsonObject
from store.commands.transactions import CountTransactionChecks, EndTransactions
from store.state.offset_runs import OffsetRuns
from store.state.state_machine import CommandContext, CommandHandlers

MAX_OPEN = 100_000  # beyond that new half messages wait until older ones have ended
MAX_OPEN_OF_GROUP = MAX_OPEN // 2  # of one producer group, so that the others can go on when its transactions are never ended
KNOWN_OUTCOMES = 65_536  # so many of the newest half messages


class Outcome(Enum):
    """What became of a transaction; the value is its name in the snapshot."""

    OPEN = "open"
    COMMITTED = "commit"
    ROLLED_BACK = "rollback"
    PARKED = "park"
    ENDED = "ended"  # how is not known any more


_ENDS = (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.PARKED, Outcome.ENDED)


class Transactions:
    """Implements ``StateMachineSection``."""

    file_name = "transactions.json"

    def __init__(self) -> None:
        self._ended = OffsetRuns()
        self._ended_count = 0
        self._known: dict[Outcome, OffsetRuns] = {outcome: OffsetRuns() for outcome in _ENDS[:3]}
        self._checks: dict[int, tuple[int, int]] = {}
        self._newest = -1  # the newest half message that has ended
        self._owners: dict[int, str] = {}  # the producer groups of open ones, as far as this process has read them
        self._held: Counter[str] = Counter()  # how many of those each group has

    def outcome(self, offset: int) -> Outcome:
        """What became of the half message at ``offset``, which must be there."""
        if offset not in self._ended:
            return Outcome.OPEN
        return next((outcome for outcome, runs in self._known.items() if offset in runs), Outcome.ENDED)

    def checks(self, offset: int) -> tuple[int, int]:
        """(how often the producers of an open one were asked, when last); (0, 0) for one that was not."""
        return self._checks.get(offset, (0, 0))

    def open_count(self, end: int) -> int:
        """How many are open of the ``end`` half messages there are."""
        return end - self._ended_count

    def first_open(self, offset: int) -> int:
        """The first offset from ``offset`` on that has not ended; there may be no message yet."""
        return self._ended.first_gap(offset)

    def open_from(self, offset: int, end: int) -> Iterator[int]:
        """Offsets of open ones in ``[offset, end)``, the oldest first."""
        offset = self.first_open(offset)
        while offset < end:
            yield offset
            offset = self.first_open(offset + 1)

    def owned(self, offset: int, group: str) -> None:
        """The half message at ``offset`` was read: it is of that producer group."""
        if offset not in self._owners and offset not in self._ended:
            self._owners[offset] = group
            self._held[group] += 1

    def require_room(self, end: int) -> None:
        """BusyError while too many are open."""
        if self.open_count(end) >= MAX_OPEN:
            raise BusyError(f"{MAX_OPEN} transactions are open; nothing was stored")

    def require_share(self, group: str) -> None:
        """BusyError while too many of the open ones are of this producer group."""
        if self._held[group] >= MAX_OPEN_OF_GROUP:
            raise BusyError(f"{MAX_OPEN_OF_GROUP} transactions of producer group {group} are open; nothing was stored")

    # Commands

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(EndTransactions, self._end)
        handlers.on(CountTransactionChecks, self._count_checks)

    def _end(self, command: EndTransactions, _context: CommandContext) -> None:
        ends = (command.committed, command.rolled_back, command.parked, command.ended)
        for outcome, runs in zip(_ENDS, ends, strict=True):
            for first, end in runs:
                self._end_run(outcome, first, end)
        for known in self._known.values():
            known.forget_below(self._newest + 1 - KNOWN_OUTCOMES)

    def _end_run(self, outcome: Outcome, first: int, end: int) -> None:
        for offset in range(first, end):
            self._ended_count += offset not in self._ended
            self._checks.pop(offset, None)
            self._disowned(offset)
        self._ended.add(first, end)
        self._newest = max(self._newest, end - 1)
        if outcome is not Outcome.ENDED:
            self._known[outcome].add(first, end)

    def _disowned(self, offset: int) -> None:
        group = self._owners.pop(offset, None)
        if group is not None:
            self._held[group] -= 1
            if not self._held[group]:
                del self._held[group]

    def _count_checks(self, command: CountTransactionChecks, context: CommandContext) -> None:
        for first, end in command.runs:
            for offset in range(first, end):
                if offset not in self._ended:
                    self._checks[offset] = (self.checks(offset)[0] + 1, context.at_ms)

    # Snapshot

    def dump(self) -> JsonObject:
        return {
            "ended": _rows(self._ended),
            "outcomes": {outcome.value: _rows(runs) for outcome, runs in self._known.items()},
            "checks": [[offset, times, at_ms] for offset, (times, at_ms) in self._checks.items()],
        }

    def load(self, data: JsonObject) -> None:
        self._ended = _runs(data["ended"])
        self._ended_count = sum(end - first for first, end in self._ended)
        self._known = {outcome: _runs(data["outcomes"].get(outcome.value, [])) for outcome in _ENDS[:3]}
        self._checks = {offset: (times, at_ms) for offset, times, at_ms in data["checks"]}
        self._newest = max((end - 1 for _, end in self._ended), default=-1)
        self._owners.clear()
        self._held.clear()


def _rows(runs: OffsetRuns) -> list[list[int]]:
    return [list(run) for run in runs]


def _runs(rows: list[list[int]]) -> OffsetRuns:
    return OffsetRuns((first, end) for first, end in rows)
