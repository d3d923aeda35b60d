"""Filter push-down: translates a query's filters on queues, offsets, store times and tags.

A filter is pushed down only if the translation is exact; all others are returned to Spark.  Spark passes filters only
to batch reads, and only if ``spark.sql.python.filterPushdown.enabled`` is on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from pyspark_dledger.options.model import Filters, ReadOptions

NEVER_NULL = {"topic", "group", "queue_id", "queue_offset", "store_timestamp"}
MAX_TAGS = 1024  # brokers take no more in one request
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def narrowed(options: ReadOptions, filters: Iterable[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """(options with the filters applied, filters that Spark must evaluate)."""
    left = []
    for condition in filters:
        taken = _taken(options, condition)
        if taken is None:
            left.append(condition)
        else:
            options = taken
    return options, left


def _taken(options: ReadOptions, condition: Filter) -> ReadOptions | None:
    """The options with one filter applied; None if it has no exact translation."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return None
    name = attribute[0]
    if isinstance(condition, IsNotNull):
        return options if name in NEVER_NULL else None
    if isinstance(condition, In) or (isinstance(condition, EqualTo) and name in ("topic", "queue_id", "tags")):
        values = list(condition.value) if isinstance(condition, In) else [condition.value]
        return _among(options, name, [value for value in values if value is not None])
    if not isinstance(condition, _COMPARISONS) or condition.value is None:
        return None
    if name == "queue_offset":
        first, end = _bounds(condition, int(condition.value))
        return replace(options, filters=_offsets(options.filters, first, end))
    if name == "store_timestamp" and isinstance(condition.value, datetime):
        return replace(options, filters=_times(options.filters, condition, condition.value))
    return None


def _among(options: ReadOptions, name: str, values: list[Any]) -> ReadOptions | None:
    filters = options.filters
    if not values:
        return None
    if name == "tags":
        tags = tuple(tag for tag in values if not filters.tags or tag in filters.tags)
        # An empty intersection is left to Spark: no tags would select every tag.  So is what an expression of tags cannot say.
        exact = all(tag and tag == tag.strip() and "||" not in tag for tag in tags)
        return replace(options, filters=replace(filters, tags=tags)) if exact and 0 < len(tags) <= MAX_TAGS else None
    if name == "queue_id":
        wanted = frozenset(int(value) for value in values)
        return replace(options, filters=replace(filters, queue_ids=wanted if filters.queue_ids is None else wanted & filters.queue_ids))
    if name == "topic" and options.topics:
        topics = tuple(topic for topic in options.topics if topic in values)
        # Offsets of a topic that is not looked at would name queues that do not exist.
        start, end = options.start.of_topics(topics), options.end.of_topics(topics)
        if len(topics) < len(options.topics):
            filters = replace(filters, fewer_topics=True)
        return replace(options, topics=topics, start=start, end=end, filters=filters) if topics else None
    return None


def _bounds(condition: Filter, value: int) -> tuple[int | None, int | None]:
    """[first, end) of a comparison with an integer."""
    if isinstance(condition, EqualTo):
        return value, value + 1
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(condition, GreaterThan), None
    return None, value + isinstance(condition, LessThanOrEqual)


def _offsets(filters: Filters, first: int | None, end: int | None) -> Filters:
    least = filters.least_offset if first is None else max(filters.least_offset, first)
    return replace(filters, least_offset=least, end_offset=filters.end_offset if end is None else min(filters.end_offset, end))


def _times(filters: Filters, condition: Filter, value: datetime) -> Filters:
    """Store times are whole milliseconds and never decrease along a queue, so a time bound is an offset bound."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    span = value - _EPOCH
    micros = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    up, down = -(-micros // 1000), micros // 1000
    first = {EqualTo: up, GreaterThanOrEqual: up, GreaterThan: down + 1}.get(type(condition))
    end = {EqualTo: down + 1, LessThan: up, LessThanOrEqual: down + 1}.get(type(condition))
    since, until = filters.since_ms, filters.until_ms
    if first is not None:
        since = first if since is None else max(since, first)
    if end is not None:
        until = end if until is None else min(until, end)
    return replace(filters, since_ms=since if since is None else max(0, since), until_ms=until if until is None else max(0, until))
