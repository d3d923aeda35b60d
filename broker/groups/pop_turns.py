"""The order in which receives go through the queues of a topic.

Each queue is the first one in turn.  In a topic with priorities the highest queue is, and the others follow down to the lowest; but every
``LOWER_FIRST``-th receive of a consumer group begins at a lower queue, each of these in turn.  So each is the first of one receive in
``LOWER_FIRST * (queues - 1)``, however busy the others are: what is in it, new or to be delivered again, waits for so many at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from store.state.pop import GroupQueue

LOWER_FIRST = 8


class Turns:
    """Of one master."""

    def __init__(self) -> None:
        self._turn = 0
        self._by_priority: Counter[tuple[str, str]] = Counter()  # by consumer group and topic: of one alone no queue is left out

    def order(self, queues: Sequence[GroupQueue], *, priorities: bool) -> list[GroupQueue]:
        """The queues, which come by number, as the next receive goes through them."""
        if not priorities:
            self._turn += 1
            first = self._turn % len(queues)
            return [*queues[first:], *queues[:first]]
        group, topic, _ = queues[0]
        self._by_priority[group, topic] += 1
        turn, found = self._by_priority[group, topic], list(reversed(queues))
        if turn % LOWER_FIRST == 0 and len(found) > 1:
            lower = 1 + turn // LOWER_FIRST % (len(found) - 1)
            found.insert(0, found.pop(lower))
        return found

    def clear(self) -> None:
        """Begin again: another master may lead meanwhile."""
        self._by_priority.clear()
