"""Bounds and offsets of single queues, as tests write them, in the form that planning has them in."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_dledger.planning.queue_offsets import Offsets, PartBounds, QueueId, TopicPart, by_queue, no_offsets

Held = tuple[int, int] | tuple[int, int, Mapping[int, int]]  # first offset, one past the newest, first offsets by time


def bounds_of(queues: Mapping[QueueId, Held]) -> dict[TopicPart, PartBounds]:
    lows = of_queues({queue: held[0] for queue, held in queues.items()})
    highs = of_queues({queue: held[1] for queue, held in queues.items()})
    found = {part: PartBounds(lows[part], highs[part]) for part in lows}
    for queue, held in queues.items():
        for moment, offset in held[2].items() if len(held) == 3 else ():
            count = len(found[queue.part].max_offsets)
            found[queue.part].by_time.setdefault(moment, no_offsets(count))[queue.queue_id] = offset
    return found


def held_of(bounds: Mapping[TopicPart, PartBounds]) -> dict[QueueId, Held]:
    """The reverse; the times only of queues that have some."""
    lows = by_queue({part: held.min_offsets for part, held in bounds.items()})
    highs = by_queue({part: held.max_offsets for part, held in bounds.items()})
    found: dict[QueueId, Held] = {}
    for queue, low in lows.items():
        offsets = bounds[queue.part].by_time.items()
        times = {moment: int(some[queue.queue_id]) for moment, some in offsets if some[queue.queue_id] >= 0}
        found[queue] = (low, highs[queue], times) if times else (low, highs[queue])
    return found


def of_queues(offsets: Mapping[QueueId, int]) -> Offsets:
    """The reverse of ``by_queue``."""
    counts: dict[TopicPart, int] = {}
    for queue in offsets:
        counts[queue.part] = max(counts.get(queue.part, 0), queue.queue_id + 1)
    found = {part: no_offsets(count) for part, count in counts.items()}
    for queue, offset in offsets.items():
        found[queue.part][queue.queue_id] = offset
    return found
