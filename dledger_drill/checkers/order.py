"""Real time against the order of a log, or of a number that only rises.

For operations with known places in one log this is all of linearizability: a total order by place is a linearization exactly if no
operation ended before one with a lower place began.  Of a rising number, such as a committed offset, it is that no read is older than what
was known before it (an acknowledged write, another read's answer), and none gives what was not written or tried by then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Placed(Generic[Item]):
    """An operation and its place in the log.  ``returned``: infinity when no client was answered."""

    place: int
    invoked: float
    returned: float
    item: Item


def contradictions(lower: Iterable[Placed[Item]], higher: Iterable[Placed[Item]]) -> Iterator[tuple[Item, Item]]:
    """Every one of ``lower`` that began after one of ``higher`` with a greater place had ended, with the first of those to end."""
    waiting = sorted(higher, key=lambda placed: placed.place)
    first_end, first = inf, None
    for placed in sorted(lower, key=lambda placed: -placed.place):
        while waiting and waiting[-1].place > placed.place:
            candidate = waiting.pop()
            if candidate.returned < first_end:
                first_end, first = candidate.returned, candidate
        if first is not None and first_end < placed.invoked:
            yield placed.item, first.item


class Fault(Enum):
    STALE = "stale"
    INVENTED = "invented"


@dataclass(frozen=True, slots=True)
class Call(Generic[Item]):
    """A write, or a read that was answered.  ``returned``: infinity when no client was answered."""

    is_write: bool
    value: int
    invoked: float
    returned: float
    item: Item


def check_rising(calls: Sequence[Call[Item]], initial: int = 0) -> Iterator[tuple[Fault, Call[Item], Call[Item] | None]]:
    """Every read that cannot be, with the call that shows it to be stale."""
    known = sorted(calls, key=lambda call: call.returned)
    ends = [call.returned for call in known]
    highest = list(_running_maximum(known))
    first_tried: dict[int, float] = {}
    for call in calls:
        if call.is_write:
            first_tried[call.value] = min(call.invoked, first_tried.get(call.value, call.invoked))
    for read in calls:
        if read.is_write:
            continue
        before = bisect_left(ends, read.invoked)
        newest = highest[before - 1] if before else None
        if read.value < (initial if newest is None else max(initial, newest.value)):
            yield Fault.STALE, read, newest
        elif read.value != initial and first_tried.get(read.value, read.returned) >= read.returned:
            yield Fault.INVENTED, read, None


def _running_maximum(calls: Iterable[Call[Item]]) -> Iterator[Call[Item]]:
    highest: Call[Item] | None = None
    for call in calls:
        if highest is None or call.value > highest.value:
            highest = call
        yield highest
