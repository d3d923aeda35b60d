"""Figures over rounds: the table by fault, percentiles of outages, and the verdict in one sentence."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dledger_drill.checkers.model import Limits
from dledger_drill.report.model import COUNTED, Report, RoundReport

TWO = "two at once"
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Rounds with one fault alone, or with the same two; unavailability in milliseconds is the longest outage of each round.

    ``counts``: violations by kind, those of ``COUNTED`` always.  ``not_struck``: rounds in which a fault could not be struck; figures are
    of the others, None when there are none.  ``numbers``: of its rounds; ``worst_round``: the one with the longest outage.
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
    numbers: tuple[int, ...] = ()
    worst_round: int | None = None

    @property
    def others(self) -> dict[str, int]:
        """Violations of the kinds that have no column of their own."""
        return {name: count for name, count in self.counts.items() if count and name not in COUNTED}

    @property
    def columns(self) -> tuple[int, ...]:
        """Violations of each kind of ``COUNTED``, of the others, and the rounds that have any."""
        return (*(self.counts[name] for name in COUNTED), sum(self.others.values()), self.failed)


def by_fault(rounds: Sequence[RoundReport]) -> list[FaultRow]:
    """A row for each fault in the order of their names; all rounds with two faults come last, as one row."""
    return _rows(rounds, lambda each: each.faults[0] if len(each.faults) == 1 else TWO)


def by_pair(rounds: Sequence[RoundReport]) -> list[FaultRow]:
    """A row for each two faults that overlapped, in the order of their names."""
    return _rows([each for each in rounds if len(each.faults) > 1], lambda each: " + ".join(sorted(each.faults)))


def _rows(rounds: Sequence[RoundReport], name: Callable[[RoundReport], str]) -> list[FaultRow]:
    found: dict[str, list[RoundReport]] = {}
    for each in rounds:
        found.setdefault(name(each), []).append(each)
    return [_row(fault, found[fault]) for fault in sorted(found, key=lambda fault: (fault == TWO, fault))]


def _row(fault: str, rounds: list[RoundReport]) -> FaultRow:
    struck = [each for each in rounds if not each.not_struck]
    unavailable, terms = [each.unavailable_ms for each in struck], [each.terms for each in struck]
    counts = Counter[str](dict.fromkeys(COUNTED, 0))
    for each in rounds:
        counts.update(each.counts)
    return FaultRow(
        fault=fault,
        rounds=len(rounds),
        median_ms=statistics.median(unavailable) if struck else None,
        worst_ms=max(unavailable, default=None),
        terms_median=statistics.median(terms) if struck else None,
        terms_worst=max(terms, default=None),
        counts=dict(counts),
        failed=sum(not each.passed for each in rounds),
        not_struck=len(rounds) - len(struck),
        numbers=tuple(each.number for each in rounds),
        worst_round=max(struck, key=lambda each: each.unavailable_ms).number if struck else None,
    )


def outage_percentiles(rounds: Sequence[RoundReport]) -> dict[int, float]:
    """Percentile -> milliseconds, over the longest outages of all rounds that were struck."""
    ordered = sorted(each.unavailable_ms for each in rounds if not each.not_struck)
    return {each: ordered[min(len(ordered) - 1, len(ordered) * each // 100)] for each in PERCENTILES} if ordered else {}


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
    counts = Counter(each.kind for each in report.all_violations).most_common()
    most = Limits().reported  # of a kind; more are not kept
    said = ", ".join(f"{'at least ' if count >= most else ''}{count} x {kind}" for kind, count in counts)
    bad = [str(each.number) for each in report.rounds if not each.passed]
    return f"{said} in round{'s' if len(bad) > 1 else ''} {', '.join(bad[:5])}{' ...' if len(bad) > 5 else ''}" if bad else said
