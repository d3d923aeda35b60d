"""Requests that wait for messages of the same queues: only as many look again as there are messages for.

Owns the line that they stand in.  The first in line waits for a change, the others wait for their turn.  The first goes when there are
messages that those who went before it, and are not back yet, do not take: what a message costs does not grow with the line.

Nothing depends on a wake-up that another request got: each looks at the state itself when it becomes the first, and the first looks again
after every change of the queues and whenever one that went is back, since both may change what there is and when more is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from store.state.sequences import QueueKey
from store.store import MessageStore

LOOK_S = 60.0  # the first in line looks at least so often
SLOW_S = 0.1  # it leaves what there is to those that went for no longer than this

Place = tuple[str, str]  # group and topic
Line = tuple[Place, Hashable]  # the requests of one are alike in the second


class Seen(NamedTuple):
    """What a request sees of its queues: how many messages may be leased now, at most, and when another one is due."""

    queues: Collection[QueueKey]
    ready: int
    due_ms: int | None


@dataclass(slots=True)
class _Standing:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # requests that wait, and those that are taking
    taking: int = 0  # messages that those who went ask for, until they are back


class Waits:
    """Of one master."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._lines: dict[Line, _Standing] = {}

    @contextmanager
    def _standing(self, place: Place, kind: Hashable) -> Iterator[_Standing]:
        standing = self._lines.setdefault((place, kind), _Standing())
        standing.users += 1
        try:
            yield standing
        finally:
            standing.users -= 1
            if not standing.users:
                del self._lines[place, kind]

    @contextmanager
    def taking(self, place: Place, kind: Hashable, most: int) -> Iterator[None]:
        """While a request looks for up to so many messages, others of its line do not go for the same ones."""
        with self._standing(place, kind) as standing:
            standing.taking += most
            try:
                yield
            finally:
                standing.taking -= most
                self._store.wake([_back(place)])

    async def turn(self, place: Place, kind: Hashable, look: Callable[[], Seen], left_ms: int) -> None:
        """Wait until there may be messages that no other request is about to take, or the time is over.

        ``look`` raises why there will be none.  The caller begins ``taking`` before it awaits anything else."""
        with self._standing(place, kind) as standing, suppress(TimeoutError):
            async with asyncio.timeout(left_ms / 1000), standing.turn:
                await asyncio.sleep(0)  # one who looks in vain again and again lets other work run
                is_late = False
                while True:
                    seen = look()
                    if seen.ready > standing.taking or (seen.ready and is_late):
                        return
                    is_late = not await self._store.wait_for_changes([*seen.queues, _back(place)], self._until_s(seen))

    def _until_s(self, seen: Seen) -> float:
        if seen.ready:
            return SLOW_S
        return LOOK_S if seen.due_ms is None else max(seen.due_ms - self._store.time.now_ms(), 1) / 1000


def _back(place: Place) -> QueueKey:
    """Stands among the queues that the first of a line waits for; no topic has such a name."""
    return "@".join(place), -1
