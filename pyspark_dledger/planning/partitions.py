"""Splits queue ranges into partitions: a pure function of ranges and options, so that a restarted query gets the same
plan.

The plan does not depend on live nodes or free cores; a task chooses its replica when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from pyspark_dledger.options.model import NO_FILTERS, Filters
from pyspark_dledger.options.read_bounds import EARLIEST, LATEST, ReadBound, check_order
from pyspark_dledger.planning.queue_offsets import MAX_OFFSET, Array, PartBounds, QueueId, TopicPart

# A Python task has an overhead of about 50 ms, so smaller partitions cost more than they gain.
DEFAULT_MAX_RECORDS_PER_PARTITION = 250_000
# Small ranges share a task: always up to MIN_SHARED messages, up to MAX_SHARED if there are many ranges.
MIN_SHARED, MAX_SHARED = 1_000, 25_000
MAX_KNOWN = 8  # parts of topics that an error lists
SHARED_BY_TASKS = 4  # target number of tasks when ranges are shared: two for each core of the smallest machine


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """[start, end) of one queue."""

    queue: QueueId
    start: int
    end: int


def resolve(
    bounds: Mapping[TopicPart, PartBounds], start: ReadBound, end: ReadBound, filters: Filters = NO_FILTERS, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """The range of every queue.

    Raises OffsetOutOfRangeError if requested offsets are expired or beyond the end, InvalidArgumentError if the options
    name a queue that does not exist, or that ends before it starts.
    """
    check_order(start, end)
    check_named_queues(bounds, start, "startingOffsets", filters)
    check_named_queues(bounds, end, "endingOffsets", filters)
    ranges: list[OffsetRange] = []
    for part in sorted(bounds):
        held = bounds[part]
        first = offsets_of(part, held, start, fail_on_data_loss=fail_on_data_loss)
        last = offsets_of(part, held, end, fail_on_data_loss=fail_on_data_loss)
        first, last = np.maximum(first, min(filters.least_offset, MAX_OFFSET)), np.minimum(last, min(filters.end_offset, MAX_OFFSET))
        if filters.since_ms is not None:
            first = np.maximum(first, held.by_time[filters.since_ms])
        if filters.until_ms is not None:
            last = np.minimum(last, held.by_time[filters.until_ms])
        ranges += ranges_between(part, first, last)
    return ranges


def ranges_between(part: TopicPart, first: Array, last: Array) -> list[OffsetRange]:
    """The ranges that are not empty."""
    return [OffsetRange(QueueId(*part, number), int(first[number]), int(last[number])) for number in np.flatnonzero(first < last).tolist()]


def check_named_queues(bounds: Mapping[TopicPart, PartBounds], position: ReadBound, option: str, filters: Filters = NO_FILTERS) -> None:
    """Raise InvalidArgumentError if a bound names a queue that does not exist and that the filters select."""
    for named, kind in ((position.queues, ""), (position.times, "ByTimestamp")):
        for topic, queues in named.items():
            for group, queue_id in queues:
                if filters.has_queue(topic, group, queue_id) and not has_queue(bounds, QueueId(topic, group, queue_id)):
                    name = f"{group}:{queue_id}" if group else str(queue_id)
                    raise InvalidArgumentError(f"option {option}{kind}: queue {name} of topic {topic} does not exist")


def unknown_queue(filters: Filters, counts: Mapping[TopicPart, int]) -> InvalidArgumentError | None:
    """The mistake in the options ``queues`` or ``assign``, if they name a queue that no topic has.  ``counts``: how many each part has."""
    for topic, group, queue_id in sorted(filters.queues or ()) if not filters.fewer_topics else ():
        own = {part: count for part, count in sorted(counts.items()) if topic in (part.topic, "") and count}
        if not any(group in (part.group, "") and queue_id < count for part, count in own.items()):
            known = [f"topic {part.topic} has {part.group}:0 to {part.group}:{count - 1}" for part, count in own.items()]
            named = (f"{group}:{queue_id}" if group else str(queue_id)) + (f" of topic {topic}" if topic else "")
            more = ", ..." if len(known) > MAX_KNOWN else ""
            return InvalidArgumentError(
                f"option {'assign' if topic else 'queues'}: queue {named} does not exist; {', '.join(known[:MAX_KNOWN])}{more}"
            )
    return None


def has_queue(bounds: Mapping[TopicPart, PartBounds], queue: QueueId) -> bool:
    held = bounds.get(queue.part)
    return held is not None and 0 <= queue.queue_id < len(held.max_offsets) and bool(held.max_offsets[queue.queue_id] >= 0)


def named_offsets(position: ReadBound) -> dict[QueueId, int]:
    """The offsets that a bound sets per queue."""
    return {QueueId(topic, *place): offset for topic, queues in position.queues.items() for place, offset in queues.items()}


def offsets_of(part: TopicPart, held: PartBounds, position: ReadBound, *, fail_on_data_loss: bool) -> Array:
    """The offset of a bound in each queue of a part.  Raises OffsetOutOfRangeError if a queue does not hold it."""
    if position.timestamp_ms is not None:
        return held.by_time[position.timestamp_ms]
    found = held.min_offsets if position.fallback == EARLIEST else held.max_offsets
    named = position.queues.get(part.topic, {})
    if not named and part.topic not in position.times:
        return found
    found = found.copy()
    for number in held.numbers():
        moment = position.time_of(*part, number)
        if moment is not None:
            found[number] = held.by_time[moment][number]
        elif (part.group, number) in named:
            asked, low, high = named[part.group, number], int(held.min_offsets[number]), int(held.max_offsets[number])
            found[number] = _held_offset(QueueId(*part, number), asked, low, high, fail_on_data_loss=fail_on_data_loss)
    return found


def _held_offset(queue: QueueId, asked: int, low: int, high: int, *, fail_on_data_loss: bool) -> int:
    if asked in (EARLIEST, LATEST):
        return low if asked == EARLIEST else high
    if low <= asked <= high or not fail_on_data_loss:
        return min(max(asked, low), high)
    raise OffsetOutOfRangeError(
        f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: offset {asked} is outside [{low}, {high}]; "
        "set failOnDataLoss to false to read the messages that exist",
        min_offset=low,
        max_offset=high,
    )


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
