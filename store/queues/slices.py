"""Work that a request makes the event loop do: in slices, of which one runs in a turn of the loop however many requests there are.

Owns whose slice is next: owners, users or hosts, take turns, so that one of them with many requests gets no more than another with one.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slices:
    """Of one process."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by owner; the next one stands first

    async def turn(self, owner: str) -> None:
        """Return when the next slice of ``owner`` may run, on this loop: a millisecond or two of work, up to the next ``turn``."""
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        is_first = not self._waiting
        self._waiting.setdefault(owner, deque()).append(granted)
        if is_first:
            loop.call_soon(self._grant)
        await granted

    def _grant(self) -> None:
        owner, queue = next(iter(self._waiting.items()))
        del self._waiting[owner]
        granted = queue.popleft()
        if queue:
            self._waiting[owner] = queue  # behind all others
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._grant)
        if granted.done():  # cancelled meanwhile
            return
        granted.set_result(None)
