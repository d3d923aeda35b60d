"""Rate limits of a stream: how many messages or bytes one micro-batch reads.

Every queue gets a share in proportion to its backlog, so that no queue starves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pyspark_dledger.planning.queue_offsets import MAX_OFFSET, NONE, Offsets, QueueId, in_order, of_equal_size


def waiting(start: Offsets, end: Offsets) -> Offsets:
    """Number of messages of each queue between ``start`` and ``end``; parts without any are left out."""
    found: Offsets = {}
    for part, upto in in_order(end):
        begin, upto = of_equal_size(start.get(part), upto)
        counts = np.maximum(upto - np.maximum(begin, 0), 0)
        if counts.any():
            found[part] = counts
    return found


def total_of(counts: Offsets) -> int:
    return sum(int(each.sum()) for each in counts.values())


def cut_to_messages(start: Offsets, end: Offsets, most: int) -> Offsets:
    """``end`` reduced so that the range holds at most ``most`` messages."""
    counts = waiting(start, end)
    total = total_of(counts)
    if total <= most:
        return dict(end)
    flat = np.concatenate(list(counts.values()))
    wide = flat if int(flat.max()) * most <= MAX_OFFSET else flat.astype(object)
    taken = (wide * most // total).astype(np.int64)
    # What rounding left over goes to the first queues that have more.
    room = flat - taken
    taken += np.clip(most - int(taken.sum()) - (np.cumsum(room) - room), 0, room)
    ends = np.cumsum([len(each) for each in counts.values()])
    return _advanced(start, end, dict(zip(counts, np.split(taken, ends[:-1]), strict=True)))


def cut_to_bytes(start: Offsets, end: Offsets, sizes: Mapping[QueueId, float], most: int) -> Offsets:
    """``end`` reduced so that the range holds about ``most`` bytes, by the mean message size of each queue.

    Every queue with a backlog contributes at least one message, so that a message above the limit cannot stop the
    stream.
    """
    counts = waiting(start, end)
    total = 0.0
    for part, each in counts.items():
        total += sum(int(each[number]) * sizes.get(QueueId(*part, number), 0.0) for number in np.flatnonzero(each).tolist())
    if total <= most:
        return dict(end)
    share = most / total
    return _advanced(start, end, {part: np.minimum(each, np.maximum((each * share).astype(np.int64), 1)) for part, each in counts.items()})


def spans(start: Offsets, end: Offsets) -> dict[QueueId, tuple[int, int]]:
    """[start, end) of every queue that has messages waiting."""
    found = {}
    for part, counts in waiting(start, end).items():
        for number in np.flatnonzero(counts).tolist():
            last = int(end[part][number])
            found[QueueId(*part, number)] = (last - int(counts[number]), last)
    return found


def _advanced(start: Offsets, end: Offsets, taken: Offsets) -> Offsets:
    """The queues of ``end``, each as far from its start as is ``taken`` of it."""
    found: Offsets = {}
    for part, upto in end.items():
        begin, upto = of_equal_size(start.get(part), upto)
        at = np.maximum(begin, 0)
        found[part] = np.where(upto < 0, NONE, at + taken[part] if part in taken else at)
    return found
