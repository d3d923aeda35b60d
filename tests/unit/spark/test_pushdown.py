"""Conditions of a query: what is taken over narrows exactly, the rest goes back to Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from pyspark_dledger.options.model import ReadOptions, parse_read_options
from pyspark_dledger.planning.partitions import resolve
from pyspark_dledger.planning.pushdown import narrowed
from pyspark_dledger.planning.queue_offsets import PartBounds, TopicPart

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
MS = int(MOMENT.timestamp() * 1000)


def options(**extra: str) -> ReadOptions:
    return parse_read_options({"bootstrap": "h:1", "topic": "orders,payments", **extra})


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (EqualTo(("queue_offset",), 5), (5, 6)),
        (GreaterThan(("queue_offset",), 5), (6, 1 << 63)),
        (GreaterThanOrEqual(("queue_offset",), 5), (5, 1 << 63)),
        (LessThan(("queue_offset",), 5), (0, 5)),
        (LessThanOrEqual(("queue_offset",), 5), (0, 6)),
    ],
)
def test_offsets_are_bounds(condition: Any, bounds: tuple[int, int]) -> None:
    found, left = narrowed(options(), [condition])
    assert left == []
    assert (found.filters.least_offset, found.filters.end_offset) == bounds


@pytest.mark.parametrize("micros", [0, 1, 999])
@pytest.mark.parametrize("kind", [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
def test_times_between_two_milliseconds_are_rounded_to_the_right_side(kind: Any, micros: int) -> None:
    value = MOMENT + timedelta(microseconds=micros)
    found, left = narrowed(options(), [kind(("store_timestamp",), value)])
    assert left == []
    compare: Callable[[int, int], bool] = {
        EqualTo: lambda a, b: a == b,
        GreaterThan: lambda a, b: a > b,
        GreaterThanOrEqual: lambda a, b: a >= b,
        LessThan: lambda a, b: a < b,
        LessThanOrEqual: lambda a, b: a <= b,
    }[kind]
    for stamp in range(MS - 3, MS + 4):
        taken = (found.filters.since_ms is None or stamp >= found.filters.since_ms) and (
            found.filters.until_ms is None or stamp < found.filters.until_ms
        )
        assert taken == compare(stamp * 1000, MS * 1000 + micros)


def test_tags_queues_and_topics_are_taken_once() -> None:
    conditions = [In(("tags",), ("a", "b")), EqualTo(("queue_id",), 3), EqualTo(("topic",), "orders"), IsNotNull(("queue_id",))]
    found, left = narrowed(options(), conditions)
    assert left == []
    assert (found.filters.tags, found.topics, found.filters.has_queue("orders", "g", 3), found.filters.has_queue("orders", "g", 2)) == (
        ("a", "b"),
        ("orders",),
        True,
        False,
    )


@pytest.mark.parametrize("which", ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
def test_bounds_of_topics_that_a_condition_leaves_out_are_left_out(which: str) -> None:
    value = 10**12 if "Timestamp" in which else 7
    asked = options(**{which: f'{{"orders":{{"g0:0":{value}}},"payments":{{"g0:1":{value}}}}}'})
    found, left = narrowed(asked, [EqualTo(("topic",), "payments")])
    assert left == []
    bounds = {TopicPart("payments", "g0"): PartBounds(np.array([0, 0]), np.array([9, 9]), {10**12: np.array([2, 2])})}
    ranges = resolve(bounds, found.start, found.end, found.filters, fail_on_data_loss=True)
    named = {"startingOffsets": (7, 9), "endingOffsets": (0, 7), "startingOffsetsByTimestamp": (2, 9), "endingOffsetsByTimestamp": (0, 2)}
    assert [(each.queue.queue_id, each.start, each.end) for each in ranges] == [(0, 0, 9), (1, *named[which])]


@pytest.mark.parametrize("number", [9, -1, 1])
def test_a_queue_that_the_options_leave_out_or_that_does_not_exist_gives_no_rows(number: int) -> None:
    found, left = narrowed(options(queues="0"), [EqualTo(("queue_id",), number), In(("queue_id",), (number, 0))])
    assert left == []
    assert not any(found.filters.has_queue("orders", "g", queue) for queue in range(10))


def test_what_cannot_be_taken_exactly_goes_back() -> None:
    conditions = [
        EqualTo(("topic",), "other"),
        EqualTo(("tags",), "x"),
        StringContains(("tags",), "a"),
        Not(EqualTo(("queue_offset",), 1)),
        EqualTo(("keys",), "k"),
        IsNotNull(("tags",)),
        EqualTo(("properties", "n"), "1"),
        GreaterThan(("tags",), "a"),
    ]
    asked = options(tags="a", queues="0")
    assert narrowed(asked, conditions) == (asked, conditions)


@pytest.mark.parametrize("tag", [" paid", "paid ", "", "a||b"])
def test_a_tag_that_no_expression_of_tags_can_say_is_left_to_spark(tag: str) -> None:
    condition = EqualTo(("tags",), tag)
    assert narrowed(options(), [condition]) == (options(), [condition])


@pytest.mark.parametrize(("count", "is_taken"), [(1024, True), (1025, False)])
def test_more_tags_than_brokers_take_are_left_to_spark(count: int, is_taken: bool) -> None:
    condition = In(("tags",), tuple(f"tag-{number}" for number in range(count)))
    found, left = narrowed(options(), [condition])
    assert (len(found.filters.tags), left) == ((count, []) if is_taken else (0, [condition]))
