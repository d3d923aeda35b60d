"""From a history to what a report shows of each round: rates, latencies, leaders, faults.

Owns little of each round, so that a drill of a thousand rounds fits in memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dledger_drill.checkers.model import Verdict, Violation
from dledger_drill.history.records import Operation, OperationKind, Outcome, encode
from dledger_drill.plan.model import RoundPlan
from dledger_drill.report.model import (
    BIN_S,
    COUNTED,
    FaultSpan,
    LeaderSpan,
    OutageSpan,
    RoundReport,
    ViolationText,
)

SENDS = (OperationKind.SEND, OperationKind.DELAYED)
SHOWN_OPERATIONS, SHOWN_CHARACTERS = 5, 400
# A leader that such a fault struck leads no longer; with others, such as a slow disk, it may go on for a while.
ENDS_LEADER = ("kill-", "power-", "pause-", "partition-", "replace-")


@dataclass(slots=True)
class RoundTimes:
    """A round as it was run, and what its part of the history adds.  Times are ns of the history."""

    plan: RoundPlan
    repeat: str
    start_ns: int
    end_ns: int = 0
    acknowledged: int = 0
    rates: dict[str, list[int]] = field(default_factory=dict)
    waits_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    latencies_ms: list[float | None] = field(default_factory=list)
    leaders: list[tuple[int, str, str, int]] = field(default_factory=list)  # when, group, node, term
    faults: list[FaultSpan] = field(default_factory=list)
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)  # leaders at its start
    not_struck: list[str] = field(default_factory=list)

    @property
    def bins(self) -> int:
        return max(1, int((self.end_ns - self.start_ns) / 1e9 / BIN_S) + 1)

    def seconds(self, at_ns: int) -> float:
        return (at_ns - self.start_ns) / 1e9


class Timelines:
    """``take`` the operations of a segment after its rounds were run, then ``close_segment``."""

    def __init__(self) -> None:
        self.rounds: dict[int, RoundTimes] = {}

    def take(self, operation: Operation) -> None:
        found = self.rounds.get(operation.round)
        if found is None:
            return
        if operation.kind in SENDS and operation.outcome is Outcome.OK and operation.returned_ns is not None:
            self._acknowledged(found, operation, operation.returned_ns)
        elif operation.kind is OperationKind.LEADER:
            data = operation.data
            found.leaders.append((operation.invoked_ns, data["group"], data["node"], data["term"]))
        elif operation.kind is OperationKind.FAULT and operation.returned_ns is not None:
            start_s, end_s = found.seconds(operation.invoked_ns), found.seconds(operation.returned_ns)
            data = operation.data
            if operation.outcome is Outcome.FAILED:
                found.not_struck.append(f"{data['name']}: {data['note']}")
                return
            found.faults.append(FaultSpan(data["name"], tuple(data["nodes"]), start_s, end_s, data.get("note", "")))

    def _acknowledged(self, found: RoundTimes, operation: Operation, returned_ns: int) -> None:
        at = int((returned_ns - found.start_ns) / 1e9 / BIN_S)
        if not 0 <= at < found.bins:
            return
        found.acknowledged += 1
        found.rates.setdefault(operation.data["group"], [0] * found.bins)[at] += 1
        found.waits_ms[at].append((returned_ns - operation.invoked_ns) / 1e6)

    def close_segment(self) -> None:
        """Keep a percentile of each bin instead of all waits."""
        for found in self.rounds.values():
            if found.waits_ms:
                found.latencies_ms = [_p99(found.waits_ms.get(at)) for at in range(found.bins)]
                found.waits_ms.clear()


def round_reports(rounds: Iterable[RoundTimes], verdict: Verdict) -> list[RoundReport]:
    """One of each round, with the outages and the violations that are its."""
    reports = []
    for found in rounds:
        own = [each for each in verdict.violations if each.round == found.plan.number]
        counts = Counter(dict.fromkeys(COUNTED, 0))
        counts.update(str(each.kind) for each in own)
        duration_s = found.seconds(found.end_ns)
        outages = [
            OutageSpan(each.group, max(0.0, found.seconds(each.start_ns)), min(duration_s, found.seconds(each.end_ns)))
            for each in verdict.outages
            if each.round == found.plan.number
        ]
        leaders = _leader_spans(found, duration_s, outages)
        reports.append(
            RoundReport(
                number=found.plan.number,
                seed=found.plan.seed,
                faults=found.plan.names,
                repeat=found.repeat,
                duration_s=duration_s,
                acknowledged=found.acknowledged,
                terms=_new_terms(found),
                counts=dict(counts),
                violations=[violation_text(each) for each in own],
                outages=outages,
                fault_spans=found.faults,
                not_struck=found.not_struck,
                judged=found.plan.number not in verdict.not_judged,
                leaders=leaders,
                rates=found.rates,
                latencies_ms=found.latencies_ms,
            )
        )
    return reports


def violation_text(violation: Violation) -> ViolationText:
    lines = tuple(_shortened(encode(each).decode().strip()) for each in violation.operations[:SHOWN_OPERATIONS])
    return ViolationText(str(violation.kind), violation.text, lines)


def _shortened(line: str) -> str:
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]} ..."


def _leader_spans(found: RoundTimes, duration_s: float, outages: Sequence[OutageSpan]) -> list[LeaderSpan]:
    """A leader leads until it is struck; where that is not known, until nothing is acknowledged, or the next one is seen."""
    spans: list[LeaderSpan] = []
    seen = {group: (0.0, node, term) for group, (node, term) in found.seen.items()}
    for at_ns, group, node, term in sorted(found.leaders):
        at_s = max(0.0, found.seconds(at_ns))
        if group in seen:
            since_s, old, old_term = seen[group]
            struck = [
                fault.start_s
                for fault in found.faults
                if fault.name.startswith(ENDS_LEADER) and old in fault.nodes and since_s < fault.start_s < at_s
            ]
            silent = [outage.start_s for outage in outages if outage.group == group and since_s < outage.start_s < at_s]
            spans.append(LeaderSpan(group, old, old_term, since_s, min(struck, default=max(silent, default=at_s))))
        seen[group] = at_s, node, term
    spans += [LeaderSpan(group, node, term, since_s, duration_s) for group, (since_s, node, term) in seen.items()]
    return spans


def _new_terms(found: RoundTimes) -> int:
    newest: dict[str, int] = {group: term for group, (_, term) in found.seen.items()}
    first = dict(newest)
    for _, group, _, term in found.leaders:
        newest[group] = max(newest.get(group, 0), term)
        first.setdefault(group, term)
    return max((newest[group] - first[group] for group in newest), default=0)


def _p99(waits_ms: list[float] | None) -> float | None:
    if not waits_ms:
        return None
    ordered = sorted(waits_ms)
    return round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 1)
