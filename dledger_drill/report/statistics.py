"""Figures over rounds: the table by fault, percentiles of outages, and the verdict in one sentence."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dledger_drill.checkers.limits import Limits
from dledger_drill.checkers.model import ViolationKind as Kind
from dledger_drill.report.model import COUNTED, Report, RoundReport

TWO = "two at once"
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Rounds with one fault alone, or all with two; unavailability in milliseconds is the longest outage of each round.

    ``not_struck``: rounds in which a fault could not be struck; figures are of the others, None when there are none.
    """

    fault: str
    rounds: int
    median_ms: float | None
    worst_ms: float | None
    terms_median: float | None
    terms_worst: int | None
    counts: dict[str, int]
    failed: int
    not_struck: int = 0


def by_fault(rounds: Sequence[RoundReport]) -> list[FaultRow]:
    """A row for each fault in the order of their names; rounds with two faults come last."""
    found: dict[str, list[RoundReport]] = {}
    for each in rounds:
        found.setdefault(each.faults[0] if len(each.faults) == 1 else TWO, []).append(each)
    return [_row(fault, found[fault]) for fault in sorted(found, key=lambda name: (name == TWO, name))]


def _row(fault: str, rounds: list[RoundReport]) -> FaultRow:
    struck = [each for each in rounds if not each.not_struck]
    unavailable, terms = [each.unavailable_ms for each in struck], [each.terms for each in struck]
    counts = Counter[str]()
    for each in rounds:
        counts.update(each.counts)
    return FaultRow(
        fault=fault,
        rounds=len(rounds),
        median_ms=statistics.median(unavailable) if struck else None,
        worst_ms=max(unavailable, default=None),
        terms_median=statistics.median(terms) if struck else None,
        terms_worst=max(terms, default=None),
        counts={name: counts[name] for name in COUNTED},
        failed=sum(not each.passed for each in rounds),
        not_struck=len(rounds) - len(struck),
    )


def outage_percentiles(rounds: Sequence[RoundReport]) -> dict[int, float]:
    """Percentile -> milliseconds, over the longest outages of all rounds that were struck."""
    ordered = sorted(each.unavailable_ms for each in rounds if not each.not_struck)
    return {each: ordered[min(len(ordered) - 1, len(ordered) * each // 100)] for each in PERCENTILES} if ordered else {}


@dataclass(frozen=True, slots=True)
class Promise:
    """``broken``: how often, None when nothing was there to check it by."""

    text: str
    broken: int | None


# What was promised; the kinds of its violations; the operations that it is checked by, any of them.
_PROMISES = (
    ("what was acknowledged is stored", (Kind.LOST,), ("stored",)),
    ("it is stored once", (Kind.DOUBLED,), ("stored",)),
    ("with the bytes that were sent", (Kind.CHANGED,), ("stored",)),
    ("in the order of its key and of its producer", (Kind.REORDERED,), ("stored",)),
    ("transactions are there once or never", (Kind.TRANSACTION,), ("transaction",)),
    ("delayed messages come not before their time, and soon after it", (Kind.DELAY_EARLY, Kind.DELAY_LATE), ("delayed",)),
    ("an ordered queue has one consumer at a time", (Kind.ORDERLY_OVERLAP,), ("deliver",)),
    ("linearizable reads have what was acknowledged before", (Kind.STALE_READ,), ("read",)),
    ("committed offsets do not go back", (Kind.OFFSET_BACK,), ("commit_offset",)),
    ("replicas are equal", (Kind.REPLICAS_DIFFER,), ("replica",)),
    ("a term has one leader", (Kind.TWO_LEADERS,), ("leader",)),
    ("the cluster becomes whole again", (Kind.NOT_RECOVERED,), ("fault",)),
    (f"nodes leak no memory, files or threads, from {Limits().leak_rounds} rounds on", (Kind.LEAK,), ("resource",)),
)


def promises(report: Report) -> list[Promise]:
    """All of them, also those that this drill could not check."""
    found = Counter(each.kind for each in [*report.violations, *(each for round_ in report.rounds for each in round_.violations)])
    rows = []
    for text, kinds, operations in _PROMISES:
        checked = any(sum(report.workloads.get(name, {}).values()) for name in operations)
        checked &= Kind.LEAK not in kinds or len(report.rounds) >= Limits().leak_rounds
        broken = sum(found[str(kind)] for kind in kinds)
        rows.append(Promise(text, broken if checked or broken else None))
    return rows


def verdict(report: Report) -> str:
    """What came of it, in one sentence."""
    rounds = f"{len(report.proving)} round{'s' if len(report.proving) != 1 else ''}, seed {report.seed}"
    if report.broken:
        return f"FAIL {rounds}{_ended(report)}: {_broken(report)}"
    if report.problem:
        return f"STOPPED after {rounds}: {report.problem}"
    if not report.proving:
        return f"NOTHING WAS PROVED: no round was struck and judged, seed {report.seed}{_ended(report)}"
    promise = "no acknowledged message lost, doubled, changed or reordered"
    worst_s = max(each.unavailable_ms for each in report.proving) / 1000
    return f"PASS {rounds}{_ended(report)}: {promise}; longest pause of writes {worst_s:.2f} s"


def _ended(report: Report) -> str:
    unjudged = sum(not each.judged for each in report.rounds)
    said = (["ended early"] if report.interrupted else []) + ([f"{unjudged} not judged"] if unjudged else [])
    return f" ({', '.join(said)})" if said else ""


def _broken(report: Report) -> str:
    violations = [*report.violations, *(each for found in report.rounds for each in found.violations)]
    said = ", ".join(f"{count} x {kind}" for kind, count in Counter(each.kind for each in violations).most_common())
    bad = [str(each.number) for each in report.rounds if not each.passed]
    return f"{said} in round{'s' if len(bad) > 1 else ''} {', '.join(bad[:5])}{' ...' if len(bad) > 5 else ''}" if bad else said
