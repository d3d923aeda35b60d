"""How far one trigger of a stream goes: ends taken back so that no more than a limit lies behind the starts.

Owns the arithmetic.  Each queue gives in proportion to what it has, so that none is left behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_dledger.planning.partitions import QueueId

Offsets = dict[QueueId, int]


def waiting(start: Mapping[QueueId, int], end: Mapping[QueueId, int]) -> dict[QueueId, int]:
    """Messages each queue has between the two."""
    return {queue: max(0, offset - start.get(queue, 0)) for queue, offset in sorted(end.items())}


def cut_to_messages(start: Mapping[QueueId, int], end: Mapping[QueueId, int], most: int) -> Offsets:
    """``end``, taken back so that at most ``most`` messages lie behind ``start``."""
    counts = waiting(start, end)
    total = sum(counts.values())
    if total <= most:
        return dict(end)
    taken = {queue: count * most // total for queue, count in counts.items()}
    spare = most - sum(taken.values())
    for queue, count in counts.items():
        extra = min(spare, count - taken[queue])
        taken[queue] += extra
        spare -= extra
    return {queue: start.get(queue, 0) + taken[queue] for queue in counts}


def cut_to_bytes(start: Mapping[QueueId, int], end: Mapping[QueueId, int], sizes: Mapping[QueueId, float], most: int) -> Offsets:
    """``end``, taken back so that about ``most`` bytes lie behind ``start``, by each queue's mean size of a message; at least one message
    a queue that has some, so that a message above the limit does not stop the stream."""
    counts = waiting(start, end)
    total = sum(count * sizes.get(queue, 0.0) for queue, count in counts.items())
    if total <= most:
        return dict(end)
    share = most / total
    return {queue: start.get(queue, 0) + min(count, max(1, int(count * share))) for queue, count in counts.items()}
