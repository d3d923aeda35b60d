"""From the operations of a round to its leaders and counts."""

from __future__ import annotations

import pytest

from dledger_drill.checkers.model import Outage, Verdict, Violation, ViolationKind
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_drill.plan.model import RoundPlan
from dledger_drill.report.model import LeaderSpan, RoundReport
from dledger_drill.run.timelines import RoundTimes, Timelines, round_reports

S = 1_000_000_000


def leader(at_s: float, node: str, term: int) -> Operation:
    at_ns = int(at_s * S)
    return Operation("observer", OperationKind.LEADER, at_ns, at_ns, Outcome.OK, 1, {"group": "g0", "node": node, "term": term})


def fault(name: str, start_s: float, end_s: float, *nodes: str) -> Operation:
    data = {"name": name, "group": "g0", "nodes": list(nodes), "note": ""}
    return Operation("drill", OperationKind.FAULT, int(start_s * S), int(end_s * S), Outcome.OK, 1, data)


def told(verdict: Verdict, *operations: Operation) -> RoundReport:
    """A round of ten seconds that n0 leads when it begins."""
    times = Timelines()
    times.rounds[1] = RoundTimes(RoundPlan(1, 1, ()), "dledger drill", 0, 10 * S, seen={"g0": ("n0", 3)})
    for each in operations:
        times.take(each)
    times.close_segment()
    (found,) = round_reports(times.rounds.values(), verdict)
    return found


@pytest.mark.parametrize(
    ("struck", "until_s"),
    [
        (fault("kill-leader", 1.0, 3.0, "n0"), 1.0),
        (fault("partition-leader", 1.0, 3.0, "n0"), 1.0),
        (fault("kill-follower", 1.0, 3.0, "n1"), 1.5),  # it was not the leader: as long as there were acknowledgements
        (fault("slow-disk-leader", 1.0, 3.0, "n0"), 1.5),
        (fault("kill-leader", 4.0, 5.0, "n0"), 1.5),  # after the next one was seen
    ],
)
def test_a_leader_leads_until_it_is_struck(struck: Operation, until_s: float) -> None:
    found = told(Verdict(outages=[Outage("g0", 1, int(1.5 * S), int(2.5 * S))]), struck, leader(2.4, "n1", 4))
    assert found.leaders == [LeaderSpan("g0", "n0", 3, 0.0, until_s), LeaderSpan("g0", "n1", 4, 2.4, 10.0)]
    assert found.terms == 1


def test_without_fault_and_outage_a_leader_leads_until_the_next_is_seen() -> None:
    assert told(Verdict(), leader(2.4, "n1", 4)).leaders[0].end_s == 2.4
    assert told(Verdict(), fault("kill-leader", 1.0, 3.0, "n0")).leaders == [LeaderSpan("g0", "n0", 3, 0.0, 10.0)]


def test_violations_of_every_kind_are_counted() -> None:
    violations = [Violation(kind, 1, "x") for kind in (ViolationKind.LOST, ViolationKind.STALE_READ, ViolationKind.STALE_READ)]
    found = told(Verdict(violations=[*violations, Violation(ViolationKind.LEAK, 2, "of another round")]))
    assert found.counts == {"lost": 1, "doubled": 0, "changed": 0, "reordered": 0, "stale read": 2}
    assert [each.kind for each in found.violations] == ["lost", "stale read", "stale read"]
