"""Real time against the order of a log: an operation that had ended before another one began stands before it.

For operations with known places in one log this is all of linearizability: a total order by place is a linearization exactly if no
operation ended before one with a lower place began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Placed(Generic[Item]):
    """An operation and its place in the log.  ``returned``: infinity when nobody was told that it ended."""

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
