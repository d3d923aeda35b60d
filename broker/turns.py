"""Turns: what must be decided by the log before the same thing is asked again.

Owns one lock and one undecided proposal a key.  Whoever reads replicated state, proposes a change of it, and relies on nobody else having
done so meanwhile, takes its turn; the turn ends when the log has decided, however early the caller left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from dledger.core.types import EntryId

KEPT_LOCKS = 4096


class Turns:
    """Turns by key."""

    def __init__(self) -> None:
        self._undecided: dict[Hashable, asyncio.Future[EntryId]] = {}
        self._locks: dict[Hashable, asyncio.Lock] = {}

    @asynccontextmanager
    async def take(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for the turn of ``key`` and keep it for the length of the context."""
        if len(self._locks) > KEPT_LOCKS:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.locked()}
        async with self._locks.setdefault(key, asyncio.Lock()):
            undecided = self._undecided.get(key)
            if undecided is not None:
                await asyncio.wait([undecided])
            yield

    async def decide(self, key: Hashable, proposal: asyncio.Future[EntryId]) -> None:
        """Wait for the log; when the caller is cancelled, whoever has the next turn waits in its place."""
        self._undecided[key] = proposal

        def done(_: asyncio.Future[EntryId]) -> None:
            if self._undecided.get(key) is proposal:
                del self._undecided[key]
            if not proposal.cancelled():
                proposal.exception()

        proposal.add_done_callback(done)
        await asyncio.shield(proposal)
