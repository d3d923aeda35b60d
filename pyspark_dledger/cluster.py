"""What a query must know of the cluster before it plans: topics, queue bounds, topic incarnations, who holds what.

Owns the looks at the cluster; they run on the driver.  Bounds are the leaders' word, so a plan never misses what was committed before it;
``linearizable`` makes each leader prove first that it still is one.  That something is gone is the word of all replicas.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from dledger_client import Admin, PullConsumer
from dledger_client.received import Chunk
from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError, TopicNotFoundError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from dledger_wire.status import Perm
from pyspark_dledger.incarnations import joined
from pyspark_dledger.options import STAGING_TOPIC, ReadOptions
from pyspark_dledger.plan import QueueBounds, QueueId

LOOK_TIMEOUT_MS = 15_000
SAMPLE_MESSAGES, SAMPLE_BYTES = 200, 256 << 10


@dataclass(slots=True)
class View:
    """``incarnations`` by topic (of all its groups, joined)."""

    bounds: dict[QueueId, QueueBounds] = field(default_factory=dict)
    incarnations: dict[str, str] = field(default_factory=dict)


def describe(options: ReadOptions, may_lack: Collection[str] = ()) -> View:
    """Ask the cluster; topics of ``may_lack`` that do not exist are left out.  UnreachableError, TopicNotFoundError,
    TopicPermissionError."""
    view = View()
    with PullConsumer(options.bootstrap, timeout_ms=min(LOOK_TIMEOUT_MS, options.read_timeout_ms)) as consumer:
        for topic in wanted_topics(options, may_be_none=bool(may_lack)):
            try:
                _look_at(view, consumer, options, topic)
            except TopicNotFoundError:
                if topic not in may_lack:
                    raise
    if options.filters.queues and view.incarnations and not view.bounds:
        raise InvalidArgumentError("option queues: none of them is a queue of the topics")
    return view


def _look_at(view: View, consumer: PullConsumer, options: ReadOptions, topic: str) -> None:
    """Take one topic into the view."""
    times = [options.start.timestamp_ms, options.end.timestamp_ms, options.filters.since_ms, options.filters.until_ms]
    if options.linearizable:
        _confirm_leaders(consumer, topic)
    held = consumer.offsets(topic)
    by_time = {moment: consumer.offsets(topic, moment) for moment in dict.fromkeys(times) if moment is not None}
    view.incarnations[topic] = joined({group: offsets.incarnation for (group, _), offsets in held.items()})
    for (group, queue_id), offsets in held.items():
        if options.filters.has_queue(group, queue_id):
            moments = {moment: found[group, queue_id].at_time for moment, found in by_time.items()}
            view.bounds[QueueId(topic, group, queue_id)] = QueueBounds(offsets.min_offset, offsets.max_offset, moments)


def widen(view: View, options: ReadOptions, asked: Mapping[QueueId, int]) -> None:
    """Before messages are said to be gone: nodes expire by themselves, so what a leader has not any more, another replica may hold."""
    for queue, offset in asked.items():
        held = view.bounds.get(queue)
        if held is not None and 0 <= offset < held.min_offset:
            view.bounds[queue] = replace(held, min_offset=min(held.min_offset, least_held(options, queue, offset)))


def least_held(options: ReadOptions, queue: QueueId, offset: int) -> int:
    """The first offset from ``offset`` on that a replica holds which tasks may read from."""
    where: dict[str, Any] = {"read_from": options.read_from, "replica": options.replica or None}
    with PullConsumer(options.bootstrap, timeout_ms=min(LOOK_TIMEOUT_MS, options.read_timeout_ms), **where) as consumer:
        try:
            consumer.fetch(queue.topic, queue.queue_id, offset, 1, group_name=queue.group)
        except OffsetOutOfRangeError as error:
            return error.min_offset
    return offset


def wanted_topics(options: ReadOptions, *, may_be_none: bool = False) -> tuple[str, ...]:
    """The named topics, or those that match the pattern now: readable ones, none of the system's own."""
    if options.topics:
        return options.topics
    pattern = re.compile(options.topic_pattern)
    with Admin(options.bootstrap, timeout_ms=min(LOOK_TIMEOUT_MS, options.read_timeout_ms)) as admin:
        found = sorted({topic.topic for topic in admin.list_topics() if topic.perm & Perm.READ and pattern.fullmatch(topic.topic)})
    own = (RETRY_PREFIX, DLQ_PREFIX)
    topics = tuple(name for name in found if not (is_system_topic(name) or name.startswith(own) or name == STAGING_TOPIC))
    if not topics and not may_be_none:
        raise TopicNotFoundError(f"option topicPattern: no topic matches {options.topic_pattern!r}")
    return topics


def _confirm_leaders(consumer: PullConsumer, topic: str) -> None:
    """A read that goes through each leader's read barrier: what was acknowledged before it, the leader knows now."""
    asked = set()
    for (group, queue_id), offsets in consumer.offsets(topic).items():
        if group not in asked:
            asked.add(group)
            consumer.fetch(topic, queue_id, offsets.max_offset, 1, group_name=group, linearizable=True)


def mean_sizes(options: ReadOptions, waiting: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, float]:
    """Bytes of a message as it is stored, from the first ones of each [start, end) that waits."""
    found = {}
    with PullConsumer(options.bootstrap, read_from="follower", timeout_ms=LOOK_TIMEOUT_MS) as consumer:
        for queue, (start, end) in waiting.items():
            first = _sample(consumer, queue, start, end)
            if first is not None and first.count:
                found[queue] = len(first.frames) / first.count
    return found


def _sample(consumer: PullConsumer, queue: QueueId, start: int, end: int) -> Chunk | None:
    """A few messages of [start, end); from where they begin, when the first are expired."""
    upto = min(end, start + SAMPLE_MESSAGES)
    how: dict[str, Any] = {"group_name": queue.group, "chunk_bytes": SAMPLE_BYTES}
    with closing(consumer.read_chunks(queue.topic, queue.queue_id, start, upto, **how)) as chunks:
        try:
            return next(chunks, None)
        except OffsetOutOfRangeError as error:
            begin = error.min_offset
    return _sample(consumer, queue, begin, end) if start < begin < end else None


def mirror(options: ReadOptions, offsets: Mapping[QueueId, int]) -> None:
    """Commit the query's offsets as those of its consumer group, for ``dledger group describe`` to show."""
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for queue, offset in offsets.items():
        by_group.setdefault(queue.group, {})[queue.topic, queue.queue_id] = offset
    with PullConsumer(options.bootstrap, group=options.group_id, timeout_ms=LOOK_TIMEOUT_MS) as consumer:
        for group, positions in by_group.items():
            consumer.commit(positions, group_name=group)
