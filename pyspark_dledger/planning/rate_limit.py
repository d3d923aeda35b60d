"""Rate limits of a stream: how many messages or bytes one micro-batch reads.

Every queue gets a share in proportion to its backlog, so that no queue starves.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_dledger.planning.partitions import QueueId

Offsets = dict[QueueId, int]


def waiting(start: Mapping[QueueId, int], end: Mapping[QueueId, int]) -> dict[QueueId, int]:
    """Number of messages of each queue between ``start`` and ``end``."""
    return {queue: max(0, offset - start.get(queue, 0)) for queue, offset in sorted(end.items())}


def cut_to_messages(start: Mapping[QueueId, int], end: Mapping[QueueId, int], most: int) -> Offsets:
    """``end`` reduced so that the range holds at most ``most`` messages."""
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
    """``end`` reduced so that the range holds about ``most`` bytes, by the mean message size of each queue.

    Every queue with a backlog contributes at least one message, so that a message above the limit cannot stop the
    stream.
    """
    counts = waiting(start, end)
    total = sum(count * sizes.get(queue, 0.0) for queue, count in counts.items())
    if total <= most:
        return dict(end)
    share = most / total
    return {queue: start.get(queue, 0) + min(count, max(1, int(count * share))) for queue, count in counts.items()}
