"""What the checkers keep does not grow with the number of segments of a drill."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

from dledger_drill.checkers.check import HistoryCheck, Limits, check_all
from dledger_drill.checkers.model import ViolationKind
from dledger_drill.history.records import Operation, OperationKind
from tests.unit.drill.checkers.operations import admin
from tests.unit.drill.checkers.simulated import simulate


def segments(count: int) -> Iterator[Operation]:
    """Each with a topic of its own, which is deleted in the end."""
    for number in range(count):
        yield from of_topic(simulate(number, topic=f"t{number}"), f"t{number}")
        yield admin("delete_topic", f"t{number}", 1_000_000)


def of_topic(history: list[Operation], name: str) -> list[Operation]:
    return [each for each in history if each.kind is OperationKind.PAUSE or each.data.get("topic") == name]


def peak_bytes(count: int) -> int:
    tracemalloc.start()
    try:
        assert check_all(segments(count)).violations == []
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_one_segment() -> None:
    """The least of some runs: what a process allocates once, such as a larger table of interned strings, is in one of them only."""
    few, many = (min(peak_bytes(count) for _ in range(3)) for count in (4, 40))
    assert many < 1.5 * few


def test_a_segment_is_judged_when_its_topic_is_deleted() -> None:
    check = HistoryCheck(Limits())
    for operation in of_topic(simulate(1), "t"):
        empty = operation.data | {"values": [], "keys": []}
        check.take(replace(operation, data=empty) if operation.kind is OperationKind.STORED else operation)
    assert not check.verdict.violations
    check.take(admin("delete_topic", "t", 1_000_000))
    assert ViolationKind.LOST in {violation.kind for violation in check.verdict.violations}
