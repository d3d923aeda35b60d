"""What is promised, and what a drill says of each promise: kept, broken, or not checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from dledger_drill.checkers.model import Limits
from dledger_drill.checkers.model import ViolationKind as Kind
from dledger_drill.history.records import OperationKind
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
    operation: OperationKind
    otherwise: str
    workload: str = ""
    rounds: int = 0


_UNREAD = "nothing was read back"
_PROMISES = (
    _Promised("what was acknowledged is stored", (Kind.LOST,), OperationKind.STORED, _UNREAD),
    _Promised("it is stored once", (Kind.DOUBLED,), OperationKind.STORED, _UNREAD),
    _Promised("it has the bytes that were sent", (Kind.CHANGED,), OperationKind.STORED, _UNREAD),
    _Promised("it is in the order of its key and of its producer", (Kind.REORDERED,), OperationKind.STORED, _UNREAD),
    _Promised("a transaction is there once or never", (Kind.TRANSACTION,), OperationKind.TRANSACTION, "no transaction was made"),
    _Promised(
        "a delayed message comes not before its time, and soon after it",
        (Kind.DELAY_EARLY, Kind.DELAY_LATE),
        OperationKind.DELAYED,
        "no delayed message was sent",
    ),
    _Promised(
        "an ordered queue has one consumer at a time", (Kind.ORDERLY_OVERLAP,), OperationKind.DELIVER, "no ordered consumer ran", "orderly"
    ),
    _Promised(
        "a linearizable read has what was acknowledged before",
        (Kind.STALE_READ,),
        OperationKind.READ,
        "no linearizable read was made",
        "pull",
    ),
    _Promised("a committed offset does not go back", (Kind.OFFSET_BACK,), OperationKind.COMMIT_OFFSET, "no offset was committed"),
    _Promised("replicas are equal", (Kind.REPLICAS_DIFFER,), OperationKind.REPLICA, "they were not compared, as with --against"),
    _Promised("a term has one leader", (Kind.TWO_LEADERS,), OperationKind.LEADER, "no leader was seen"),
    _Promised("the cluster becomes whole again", (Kind.NOT_RECOVERED,), OperationKind.FAULT, "no fault was struck"),
    _Promised(
        "nodes leak no memory, files or threads",
        (Kind.LEAK,),
        OperationKind.RESOURCE,
        f"takes {Limits().leak_rounds} rounds with a private cluster",
        rounds=Limits().leak_rounds,
    ),
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
