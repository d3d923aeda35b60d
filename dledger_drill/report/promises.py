"""What is promised, and what a drill says of each promise: kept, broken, or not checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from dledger_drill.checkers.model import Limits
from dledger_drill.checkers.model import ViolationKind as Kind
from dledger_drill.history.records import OperationKind as Op
from dledger_drill.report.model import Report


class PromiseState(StrEnum):
    KEPT = "kept"
    BROKEN = "broken"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Promise:
    """``violations``: how often it was broken.  ``why``: why it was not checked, else empty."""

    text: str
    state: PromiseState
    violations: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Promised:
    """A promise, the kinds of its violations, and what it takes to check it: one operation of a kind, of a workload, in enough rounds."""

    text: str
    kinds: tuple[Kind, ...]
    operation: Op
    otherwise: str
    workload: str = ""
    rounds: int = 0


_UNREAD, _TOO_FEW = "nothing was read back", f"takes {Limits().leak_rounds} rounds with a private cluster"
_DELAYS = (Kind.DELAY_EARLY, Kind.DELAY_LATE)
_PROMISES = (
    _Promised("what was acknowledged is stored", (Kind.LOST,), Op.STORED, _UNREAD),
    _Promised("it is stored once", (Kind.DOUBLED,), Op.STORED, _UNREAD),
    _Promised("it has the bytes that were sent", (Kind.CHANGED,), Op.STORED, _UNREAD),
    _Promised("it is in the order of its key and of its producer", (Kind.REORDERED,), Op.STORED, _UNREAD),
    _Promised("a transaction is there once or never", (Kind.TRANSACTION,), Op.TRANSACTION, "no transaction was made"),
    _Promised("a delayed message comes not before its time, and soon after it", _DELAYS, Op.DELAYED, "no delayed message was sent"),
    _Promised("an ordered queue has one consumer at a time", (Kind.ORDERLY_OVERLAP,), Op.DELIVER, "no ordered consumer ran", "orderly"),
    _Promised("a linearizable read has what was acknowledged before", (Kind.STALE_READ,), Op.READ, "no linearizable read was made", "pull"),
    _Promised("a committed offset does not go back", (Kind.OFFSET_BACK,), Op.COMMIT_OFFSET, "no offset was committed"),
    _Promised("replicas are equal", (Kind.REPLICAS_DIFFER,), Op.REPLICA, "they were not compared, as with --against"),
    _Promised("a term has one leader", (Kind.TWO_LEADERS,), Op.LEADER, "no leader was seen"),
    _Promised("the cluster becomes whole again", (Kind.NOT_RECOVERED,), Op.FAULT, "no fault was struck"),
    _Promised("nodes leak no memory, files or threads", (Kind.LEAK,), Op.RESOURCE, _TOO_FEW, rounds=Limits().leak_rounds),
)


def promises(report: Report) -> list[Promise]:
    """All of them, in a fixed order."""
    found = Counter(each.kind for each in report.all_violations)
    return [_judged(each, report, sum(found[str(kind)] for kind in each.kinds)) for each in _PROMISES]


def promises_line(report: Report) -> str:
    """All in one line: those that were broken or not checked by their names."""
    all_ = promises(report)
    said = [f"{sum(each.state is PromiseState.KEPT for each in all_)} of {len(all_)} promises kept"]
    said += [f"broken: {each.text} ({each.violations})" for each in all_ if each.state is PromiseState.BROKEN]
    said += [f"not checked: {each.text} ({each.why})" for each in all_ if each.state is PromiseState.NOT_CHECKED]
    return "; ".join(said)


def _judged(promised: _Promised, report: Report, violations: int) -> Promise:
    if violations:
        return Promise(promised.text, PromiseState.BROKEN, violations)
    names = report.settings.get("workloads")
    runs = not promised.workload or names is None or promised.workload in str(names).split(", ")
    seen = report.workloads.get(promised.operation, {}).get("ok", 0)
    if runs and seen and len(report.rounds) >= promised.rounds:
        return Promise(promised.text, PromiseState.KEPT)
    return Promise(promised.text, PromiseState.NOT_CHECKED, why=promised.otherwise)
