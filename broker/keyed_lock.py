"""Turns: what must be decided by the log before the same thing is asked again.

Owns a lock and the undecided proposal of each key that somebody uses.  Whoever reads replicated state, proposes a change of it, and relies
on nobody else having done so meanwhile, takes its turn; the turn ends when the log has decided, however early the caller left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dledger.core.types import EntryId


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # who has the turn, waits for it, or left a proposal behind
    undecided: asyncio.Future[EntryId] | None = None


class Turns:
    """Turns by key."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def take(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for the turn of ``key`` and keep it for the length of the context."""
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                if turn.undecided is not None:
                    await asyncio.wait([turn.undecided])
                yield
        finally:
            self._leave(key, turn)

    async def decide(self, key: Hashable, proposal: asyncio.Future[EntryId]) -> None:
        """Wait for the log, in a turn of ``key``; when the caller is cancelled, whoever has the next turn waits in its place."""
        turn = self._turns[key]
        turn.undecided = proposal
        turn.users += 1

        def done(_: asyncio.Future[EntryId]) -> None:
            if turn.undecided is proposal:
                turn.undecided = None
            self._leave(key, turn)
            if not proposal.cancelled():
                proposal.exception()

        proposal.add_done_callback(done)
        await asyncio.shield(proposal)

    def _leave(self, key: Hashable, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[key]
