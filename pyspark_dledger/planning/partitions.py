"""Splits queue ranges into partitions: a pure function of ranges and options, so that a restarted query gets the same
plan.

The plan does not depend on live nodes or free cores; a task chooses its replica when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from pyspark_dledger.options.model import NO_FILTERS, Filters
from pyspark_dledger.options.read_bounds import EARLIEST, LATEST, ReadBound

# A Python task has an overhead of about 50 ms, so smaller partitions cost more than they gain.
DEFAULT_MAX_RECORDS_PER_PARTITION = 250_000
# Small ranges share a task: always up to MIN_SHARED messages, up to MAX_SHARED if there are many ranges.
MIN_SHARED, MAX_SHARED = 1_000, 25_000
SHARED_BY_TASKS = 4  # target number of tasks when ranges are shared: two for each core of the smallest machine


class QueueId(NamedTuple):
    """A queue of a topic in a replica group.  A tuple: planning hashes and sorts some hundred thousand of them."""

    topic: str
    group: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Bounds of a queue, and the first offset for each requested timestamp."""

    min_offset: int
    max_offset: int
    by_time: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """[start, end) of one queue."""

    queue: QueueId
    start: int
    end: int


def resolve(
    bounds: Mapping[QueueId, QueueBounds], start: ReadBound, end: ReadBound, filters: Filters = NO_FILTERS, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """The range of every queue.

    Raises OffsetOutOfRangeError if requested offsets are expired or beyond the end, InvalidArgumentError if the options
    name a queue that does not exist.
    """
    check_named_queues(bounds, start, "startingOffsets", filters)
    check_named_queues(bounds, end, "endingOffsets", filters)
    ranges = []
    for queue, held in sorted(bounds.items()):
        first = offset_of(queue, held, start, fail_on_data_loss=fail_on_data_loss)
        last = offset_of(queue, held, end, fail_on_data_loss=fail_on_data_loss)
        first, last = max(first, filters.least_offset), min(last, filters.end_offset)
        if filters.since_ms is not None:
            first = max(first, held.by_time[filters.since_ms])
        if filters.until_ms is not None:
            last = min(last, held.by_time[filters.until_ms])
        if first < last:
            ranges.append(OffsetRange(queue, first, last))
    return ranges


def check_named_queues(bounds: Mapping[QueueId, QueueBounds], position: ReadBound, option: str, filters: Filters = NO_FILTERS) -> None:
    """Raise InvalidArgumentError if a bound names a queue that does not exist and that the filters select."""
    for named in (position.queues, position.times):
        for topic, queues in named.items():
            for group, queue_id in queues:
                if filters.has_queue(topic, group, queue_id) and QueueId(topic, group, queue_id) not in bounds:
                    name = f"{group}:{queue_id}" if group else str(queue_id)
                    raise InvalidArgumentError(f"option {option}: queue {name} of topic {topic} does not exist")


def named_offsets(position: ReadBound) -> dict[QueueId, int]:
    """The offsets that a bound sets per queue."""
    return {QueueId(topic, *place): offset for topic, queues in position.queues.items() for place, offset in queues.items()}


def offset_of(queue: QueueId, held: QueueBounds, position: ReadBound, *, fail_on_data_loss: bool) -> int:
    """The offset of a bound in a queue.  Raises OffsetOutOfRangeError if the queue does not hold it."""
    moment = position.time_of(queue.topic, queue.group, queue.queue_id)
    if moment is not None:
        return held.by_time[moment]
    asked = position.queues.get(queue.topic, {}).get((queue.group, queue.queue_id), position.fallback)
    if asked == EARLIEST:
        return held.min_offset
    if asked == LATEST:
        return held.max_offset
    if held.min_offset <= asked <= held.max_offset:
        return asked
    if fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: offset {asked} is outside [{held.min_offset}, {held.max_offset}]; "
            "set failOnDataLoss to false to read the messages that exist",
            min_offset=held.min_offset,
            max_offset=held.max_offset,
        )
    return min(max(asked, held.min_offset), held.max_offset)


def split(ranges: Sequence[OffsetRange], min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Cut ranges at multiples of a fixed step: at most ``max_records`` messages per piece, and at least
    ``min_partitions`` pieces if there are enough messages.
    """
    total = sum(piece.end - piece.start for piece in ranges)
    if total == 0:
        return []
    step = _step(total, min_partitions, max_records)
    pieces = []
    for piece in ranges:
        if piece.start // step == (piece.end - 1) // step:
            pieces.append(piece)
            continue
        cuts = [piece.start, *range((piece.start // step + 1) * step, piece.end, step), piece.end]
        pieces += [OffsetRange(piece.queue, low, high) for low, high in pairwise(cuts)]
    return pieces


def shared(pieces: Sequence[OffsetRange], min_partitions: int, max_records: int) -> list[tuple[OffsetRange, ...]]:
    """Groups small adjacent pieces of ``split`` into tasks."""
    total = sum(piece.end - piece.start for piece in pieces)
    most = min(_step(total, min_partitions, max_records), MAX_SHARED, max(MIN_SHARED, -(-total // SHARED_BY_TASKS)))
    tasks: list[list[OffsetRange]] = []
    size = 0
    for piece in pieces:
        count = piece.end - piece.start
        if tasks and size + count <= most:
            tasks[-1].append(piece)
            size += count
        else:
            tasks.append([piece])
            size = count
    return [tuple(task) for task in tasks]


def _step(total: int, min_partitions: int, max_records: int) -> int:
    """Maximum number of messages of one task."""
    step = max_records or DEFAULT_MAX_RECORDS_PER_PARTITION
    return min(step, max(1, total // min_partitions)) if min_partitions else step
