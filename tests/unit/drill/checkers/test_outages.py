"""Outages as the probes of replica groups see them."""

from __future__ import annotations

from dledger_drill.checkers.check import check_all
from dledger_drill.checkers.model import Outage
from dledger_drill.history.records import Operation
from tests.unit.drill.checkers.operations import MS, fault, probe


def outages(history: list[Operation]) -> list[Outage]:
    return check_all(sorted(history, key=lambda operation: operation.invoked_ns)).outages


def steady(first: int, count: int, at: float, round: int = 1) -> list[Operation]:
    return [probe(first + n, at + 5 * n, at + 5 * n + 4, round=round) for n in range(count)]


def test_a_gap_across_a_fault_is_an_outage_from_the_last_acknowledgement_to_the_next() -> None:
    history = [*steady(0, 10, 0), fault(49.5, 1500), probe(10, 50, 80, "unknown"), probe(11, 81, 1049), *steady(12, 5, 1050)]
    assert outages(history) == [Outage("g0", 1, 49 * MS, 1049 * MS)]
    assert outages(history)[0].duration_ms == 1000


def test_a_gap_that_follows_a_fault_counts_for_its_round() -> None:
    history = [*steady(0, 10, 0), fault(30, 40), probe(10, 50, 300), *steady(11, 5, 301)]
    assert [outage.duration_ms for outage in outages(history)] == [251]


def test_a_gap_before_any_fault_is_none() -> None:
    assert outages([*steady(0, 10, 0), probe(10, 50, 300), fault(400, 500), *steady(11, 5, 450)]) == []


def test_a_gap_of_a_later_round_without_a_fault_yet_is_none() -> None:
    assert outages([*steady(0, 10, 0), fault(20, 30), *steady(10, 5, 50), probe(15, 100, 300, round=2)]) == []


def test_usual_gaps_are_none() -> None:
    slow = [probe(n, 50 * n, 50 * n + 49) for n in range(20)]
    assert outages([*slow, fault(300, 600)]) == []


def test_time_in_which_the_probe_stood_still_does_not_count() -> None:
    history = [*steady(0, 10, 0), fault(60, 70), probe(10, 5000, 5100), *steady(11, 5, 5101)]
    assert outages(history) == [Outage("g0", 1, 5000 * MS, 5100 * MS)]


def test_an_outage_that_lasts_to_the_end_of_the_history_is_one() -> None:
    history = [*steady(0, 10, 0), fault(50, 90), probe(10, 50, 1000, "unknown"), probe(11, 1001, 2000, "unknown")]
    assert outages(history) == [Outage("g0", 1, 49 * MS, 2000 * MS)]


def test_a_probe_that_ends_without_an_answer_had_no_outage() -> None:
    assert outages([*steady(0, 10, 0), fault(20, 30), probe(10, 50, 55, "unknown")]) == []


def test_a_short_outage_of_a_slow_probe_counts_from_the_last_acknowledgement() -> None:
    paced = [probe(n, 50 * n, 50 * n + 4) for n in range(20)]
    assert outages([*paced, fault(960, 990), probe(20, 1000, 1070)]) == [Outage("g0", 1, 954 * MS, 1070 * MS)]


def test_two_faults_of_a_round_make_one_outage() -> None:
    history = [*steady(0, 10, 0), fault(49.5, 400), fault(100, 500), probe(10, 50, 700)]
    assert len(outages(history)) == 1
