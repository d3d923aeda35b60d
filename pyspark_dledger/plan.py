"""From queue ranges to partitions: a pure function of ranges and options, so that a restarted query plans the same again.

Owns the split.  It knows nothing of nodes that are up or cores that are free: the task chooses its replica when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from pyspark_dledger.options import EARLIEST, LATEST, Position

# A Python task costs some 50 ms of its own, so a split below this many messages loses more than it wins.
DEFAULT_MAX_RECORDS_PER_PARTITION = 250_000


@dataclass(frozen=True, slots=True, order=True)
class QueueId:
    topic: str
    group: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What a queue holds now, and where the asked-for times fall (None when no time was asked)."""

    min_offset: int
    max_offset: int
    start_by_time: int | None = None
    end_by_time: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """[start, end) of one queue: what one task reads."""

    queue: QueueId
    start: int
    end: int


def resolve(bounds: Mapping[QueueId, QueueBounds], start: Position, end: Position, *, fail_on_data_loss: bool) -> list[OffsetRange]:
    """The range of every queue.  Raises OffsetOutOfRangeError when asked-for offsets are gone or not there yet, InvalidArgumentError
    when the options name a queue that does not exist."""
    _check_named_queues(bounds, start, "startingOffsets")
    _check_named_queues(bounds, end, "endingOffsets")
    ranges = []
    for queue, held in sorted(bounds.items()):
        first = _offset(queue, held, start, held.start_by_time, fail_on_data_loss)
        last = _offset(queue, held, end, held.end_by_time, fail_on_data_loss)
        if first < last:
            ranges.append(OffsetRange(queue, first, last))
    return ranges


def _check_named_queues(bounds: Mapping[QueueId, QueueBounds], position: Position, option: str) -> None:
    for topic, queues in position.queues.items():
        for group, queue_id in queues:
            if QueueId(topic, group, queue_id) not in bounds:
                raise InvalidArgumentError(f"option {option}: queue {group}:{queue_id} of topic {topic} does not exist")


def _offset(queue: QueueId, held: QueueBounds, position: Position, by_time: int | None, fail_on_data_loss: bool) -> int:
    if position.timestamp_ms is not None and by_time is not None:
        return by_time
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
            "set failOnDataLoss to false to read what is there",
            min_offset=held.min_offset,
            max_offset=held.max_offset,
        )
    return min(max(asked, held.min_offset), held.max_offset)


def split(ranges: Sequence[OffsetRange], min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Cut ranges at multiples of a fixed grid: at most ``max_records`` messages each, and at least ``min_partitions`` pieces if there are
    enough messages.  The grid depends on the ranges and options only.
    """
    total = sum(piece.end - piece.start for piece in ranges)
    if total == 0:
        return []
    step = max_records or DEFAULT_MAX_RECORDS_PER_PARTITION
    if min_partitions:
        step = min(step, max(1, total // min_partitions))
    pieces = []
    for piece in ranges:
        cuts = [piece.start, *range((piece.start // step + 1) * step, piece.end, step), piece.end]
        pieces += [OffsetRange(piece.queue, low, high) for low, high in pairwise(cuts)]
    return pieces
