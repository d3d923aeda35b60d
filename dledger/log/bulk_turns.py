"""Reading what is old gives way to writing: readers, copies and backups get what writes leave of a node.

Owns the turns.  Work on old data comes in pieces.  Each takes its turn, in the order of asking: beside writes one turn a commit, and none
while a write waits, but one every ``MOST_S`` at least.  Readers need no turn for ``FOLLOWING`` times what is written meanwhile: they must
be able to catch up with it, and where so much is written no single write is kept from being short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

TURN_BYTES = 2 << 20  # for one commit; pieces that make up less than half of it share a turn
FOLLOWING = 4
LOOK_S = 0.002  # how often it is looked whether writes wait
MOST_S = 0.02
QUEUE_S = 0.5  # a reader takes a node for silent that lets it wait for seconds

TakeTurn = Callable[[int], Awaitable[None]]  # returns when a piece of that size may go on


async def at_once(_size_bytes: int) -> None:
    """The turn of what runs beside no writes."""


class WritesOwner(Protocol):
    """Knows the writes of a node."""

    @property
    def writes_wait(self) -> bool:
        """Whether some wait now that go faster when nothing old is read."""
        ...

    @property
    def commit_s(self) -> float:
        """How long a commit takes; 0 while nothing is written."""
        ...

    @property
    def end_pos(self) -> int:
        """Where the log ends."""
        ...


class BulkTurns:
    """The turns of one node: all that reads old data there shares them.  ``taken`` counts them."""

    def __init__(self, owner: WritesOwner) -> None:
        self._owner = owner
        self._in_order = asyncio.Lock()
        self._owed_bytes = 0  # of pieces since the last turn, without those for what was written
        self._seen_pos = owner.end_pos
        self._taken_s = 0.0
        self.taken = 0

    async def take(self, size_bytes: int, most_s: float = QUEUE_S) -> None:
        """Return when a piece of that size may go on, after ``most_s`` at the latest."""
        written, self._seen_pos = self._owner.end_pos - self._seen_pos, self._owner.end_pos
        self._owed_bytes = owed = max(0, self._owed_bytes + size_bytes - FOLLOWING * max(0, written))
        if owed < TURN_BYTES // 2:
            return
        self._owed_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s), self._in_order:
                await self._turn(owed)

    async def _turn(self, owed_bytes: int) -> None:
        loop, owner = asyncio.get_running_loop(), self._owner
        pause_s = self._taken_s + min(MOST_S, owner.commit_s * owed_bytes / TURN_BYTES) - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        while owner.writes_wait and loop.time() < self._taken_s + MOST_S:  # noqa: ASYNC110 - the next write may come at once
            await asyncio.sleep(LOOK_S)
        self._taken_s = loop.time()
        self.taken += 1
