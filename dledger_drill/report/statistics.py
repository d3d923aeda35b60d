"""Figures over rounds: the table by fault, percentiles of outages, and the verdict in one sentence."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dledger_drill.report.model import COUNTED, Report, RoundReport

TWO = "two at once"
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Rounds with one fault alone, or all with two; unavailability in milliseconds is the longest outage of each round.

    ``not_struck``: rounds in which the fault could not be struck; figures are of the others.
    """

    fault: str
    rounds: int
    median_ms: float
    worst_ms: float
    terms_median: float
    terms_worst: int
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
    unavailable = [each.unavailable_ms for each in struck] or [0.0]
    terms = [each.terms for each in struck] or [0]
    counts = Counter[str]()
    for each in rounds:
        counts.update(each.counts)
    return FaultRow(
        fault=fault,
        rounds=len(rounds),
        median_ms=statistics.median(unavailable),
        worst_ms=max(unavailable),
        terms_median=statistics.median(terms),
        terms_worst=max(terms),
        counts={name: counts[name] for name in COUNTED},
        failed=sum(not each.passed for each in rounds),
        not_struck=len(rounds) - len(struck),
    )


def outage_percentiles(rounds: Sequence[RoundReport]) -> dict[int, float]:
    """Percentile -> milliseconds, over the longest outages of all rounds."""
    ordered = sorted(each.unavailable_ms for each in rounds)
    return {each: ordered[min(len(ordered) - 1, len(ordered) * each // 100)] for each in PERCENTILES} if ordered else {}


def any_violation(report: Report) -> bool:
    return bool(report.violations) or not all(each.passed for each in report.rounds)


def verdict(report: Report) -> str:
    """What came of it, in one sentence."""
    rounds = f"{len(report.rounds)} round{'s' if len(report.rounds) != 1 else ''}, seed {report.seed}"
    ended = " (ended early)" if report.interrupted else ""
    worst_s = max((each.unavailable_ms for each in report.rounds), default=0.0) / 1000
    if report.passed:
        if not report.rounds:
            return f"NOTHING WAS RUN: no round was finished, seed {report.seed}"
        promise = "no acknowledged message lost, doubled, changed or reordered"
        return f"PASS {rounds}{ended}: {promise}; longest pause of writes {worst_s:.2f} s"
    if report.problem and not any_violation(report):
        return f"STOPPED after {rounds}: {report.problem}"
    violations = [*report.violations, *(each for found in report.rounds for each in found.violations)]
    kinds = Counter(each.kind for each in violations)
    said = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    bad = [str(each.number) for each in report.rounds if not each.passed]
    where = f" in round{'s' if len(bad) > 1 else ''} {', '.join(bad[:5])}{' ...' if len(bad) > 5 else ''}" if bad else ""
    return f"FAIL {rounds}{ended}: {said}{where}"
