"""Offsets of many queues at once: an array for each part of a topic, by queue number.

Owns the form of these arrays.  A stream over a thousand topics looks at some hundred thousand queues in every
trigger: an object for each of them would cost seconds.  A queue that is not meant has ``NONE`` as its offset; it is
below every offset, so the greater of two offsets is the one that is known.  An array in an ``Offsets`` does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NONE = -1
MAX_OFFSET = (1 << 63) - 1

Array = npt.NDArray[np.int64]


class TopicPart(NamedTuple):
    """The queues of a topic in one replica group."""

    topic: str
    group: str


class QueueId(NamedTuple):
    """A queue of a topic in a replica group."""

    topic: str
    group: str
    queue_id: int

    @property
    def part(self) -> TopicPart:
        return TopicPart(self.topic, self.group)


Offsets = dict[TopicPart, Array]


@dataclass(frozen=True, slots=True)
class PartBounds:
    """The first offset of each queue of a part, one past its newest, and the first offset for each requested timestamp."""

    min_offsets: Array
    max_offsets: Array
    by_time: dict[int, Array] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """The queues that the bounds are known of."""
        return present(self.max_offsets)


def no_offsets(count: int) -> Array:
    return np.full(count, NONE, dtype=np.int64)


def present(offsets: Array) -> list[int]:
    """The numbers of the queues that have an offset."""
    return np.flatnonzero(offsets >= 0).tolist()


def sized(offsets: Array | None, count: int) -> Array:
    """The same for ``count`` queues, if it is of fewer."""
    if offsets is None:
        return no_offsets(count)
    return offsets if len(offsets) >= count else np.concatenate((offsets, no_offsets(count - len(offsets))))


def of_equal_size(*some: Array | None) -> list[Array]:
    """The arrays, the shorter ones lengthened."""
    count = max(0 if offsets is None else len(offsets) for offsets in some)
    return [sized(offsets, count) for offsets in some]


def same_offsets(one: Offsets, other: Offsets) -> bool:
    """Whether both have the same queues with the same offsets."""
    return not changed(one, other) and not changed(other, one)


def changed(now: Offsets, before: Offsets) -> Offsets:
    """The offsets that are not as they were; parts without any are left out."""
    found: Offsets = {}
    for part, offsets in now.items():
        was = before.get(part)
        if offsets is was or (was is not None and np.array_equal(offsets, was)):
            continue
        offsets, was = of_equal_size(offsets, was)
        differ = (offsets != was) & (offsets >= 0)
        if differ.any():
            found[part] = np.where(differ, offsets, NONE)
    return found


def ends_before(offsets: Offsets, bounds: Mapping[TopicPart, PartBounds]) -> Offsets:
    """The ends of the queues that end before their offset; parts without any are left out."""
    found: Offsets = {}
    for part, some in offsets.items():
        if part in bounds:
            ours, ends = of_equal_size(some, bounds[part].max_offsets)
            is_behind = (ends >= 0) & (ends < ours)
            if is_behind.any():
                found[part] = np.where(is_behind, ends, NONE)
    return found


def by_queue(offsets: Offsets) -> dict[QueueId, int]:
    """An entry for each queue, in order."""
    return {
        QueueId(*part, number): offset
        for part, some in sorted(offsets.items(), key=lambda each: each[0])
        for number, offset in enumerate(some.tolist())
        if offset >= 0
    }


def in_order(offsets: Offsets) -> Iterator[tuple[TopicPart, Array]]:
    for part in sorted(offsets):
        yield part, offsets[part]
