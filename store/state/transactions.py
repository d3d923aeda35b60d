"""Which half messages are open, as replicated state: the one place that says whether a transaction has ended.

Owns config/transactions.json.  A transaction is named by the offset of its half message in the half topic.  The command that ends it stands
in the same log entry as the message it publishes (``delivery.py``): both are committed or neither, and since the master proposes an end
only for what is open here, and one at a time (``broker/transactions/resolver.py``), a transaction is published once or never.

    stored in the half topic --> open --commit--> published and ended     (one entry)
                                  |  |--rollback--> ended
                                  |--transactionCheckMax checks without an answer--> parked and ended     (one entry)

What is ended is kept as runs of offsets, so memory grows with what is open, and that is limited.  How the newest of the ended ones ended is
kept too, for producers that ask twice; how often the open ones were checked, so that no change of masters asks more often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from dledger_wire.errors import BusyError
from store.state.sections import CommandContext, CommandResult, Handler
from store.state.send_backs import Runs

END, CHECKED = "end_transactions", "check_transactions"
MAX_OPEN = 100_000  # beyond that new half messages wait until older ones have ended
KNOWN_OUTCOMES = 65_536  # so many of the newest half messages


class Outcome(Enum):
    """What became of a transaction; the value is the argument of the command that ended it."""

    OPEN = "open"
    COMMITTED = "commit"
    ROLLED_BACK = "rollback"
    PARKED = "park"
    ENDED = "ended"  # nobody knows any more how


_ENDS = (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.PARKED, Outcome.ENDED)


class Transactions:
    """Implements ``group_state.Section``."""

    file_name = "transactions.json"

    def __init__(self) -> None:
        self._ended = Runs()
        self._ended_count = 0
        self._known: dict[Outcome, Runs] = {outcome: Runs() for outcome in _ENDS[:3]}
        self._checks: dict[int, tuple[int, int]] = {}
        self._newest = -1  # the newest half message that has ended

    def outcome(self, offset: int) -> Outcome:
        """What became of the half message at ``offset``, which must be there."""
        if offset not in self._ended:
            return Outcome.OPEN
        return next((outcome for outcome, runs in self._known.items() if offset in runs), Outcome.ENDED)

    def checks(self, offset: int) -> tuple[int, int]:
        """(how often the producers of an open one were asked, when last); (0, 0) for one that was not."""
        return self._checks.get(offset, (0, 0))

    def open_count(self, upto: int) -> int:
        """How many are open of the ``upto`` half messages there are."""
        return upto - self._ended_count

    def first_open(self, offset: int) -> int:
        """The first offset from ``offset`` on that has not ended; there may be no message yet."""
        return self._ended.first_gap(offset)

    def open_from(self, offset: int, upto: int) -> Iterator[int]:
        """Offsets of open ones in ``[offset, upto)``, the oldest first."""
        offset = self.first_open(offset)
        while offset < upto:
            yield offset
            offset = self.first_open(offset + 1)

    def require_room(self, upto: int) -> None:
        """BusyError while too many are open."""
        if self.open_count(upto) >= MAX_OPEN:
            raise BusyError(f"{MAX_OPEN} transactions are open; nothing was stored")

    # Commands

    def handlers(self) -> Mapping[str, Handler]:
        return {END: self._end, CHECKED: self._checked}

    def _end(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        for outcome in _ENDS:
            for first, upto in arguments.get(outcome.value, []):
                self._end_run(outcome, int(first), int(upto))
        for runs in self._known.values():
            runs.forget_below(self._newest + 1 - KNOWN_OUTCOMES)
        return {}

    def _end_run(self, outcome: Outcome, first: int, upto: int) -> None:
        for offset in range(first, upto):
            self._ended_count += offset not in self._ended
            self._checks.pop(offset, None)
        self._ended.add(first, upto)
        self._newest = max(self._newest, upto - 1)
        if outcome is not Outcome.ENDED:
            self._known[outcome].add(first, upto)

    def _checked(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        for first, upto in arguments["runs"]:
            for offset in range(int(first), int(upto)):
                if offset not in self._ended:
                    self._checks[offset] = (self.checks(offset)[0] + 1, context.at_ms)
        return {"at_ms": context.at_ms}

    # Snapshot

    def dump(self) -> dict[str, Any]:
        return {
            "ended": _rows(self._ended),
            "outcomes": {outcome.value: _rows(runs) for outcome, runs in self._known.items()},
            "checks": [[offset, times, at_ms] for offset, (times, at_ms) in self._checks.items()],
        }

    def load(self, data: dict[str, Any]) -> None:
        self._ended = _runs(data["ended"])
        self._ended_count = sum(upto - first for first, upto in self._ended)
        self._known = {outcome: _runs(data["outcomes"].get(outcome.value, [])) for outcome in _ENDS[:3]}
        self._checks = {offset: (times, at_ms) for offset, times, at_ms in data["checks"]}
        self._newest = max((upto - 1 for _, upto in self._ended), default=-1)


def _rows(runs: Runs) -> list[list[int]]:
    return [list(run) for run in runs]


def _runs(rows: list[list[int]]) -> Runs:
    return Runs((first, upto) for first, upto in rows)
