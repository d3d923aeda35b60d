"""Per-key serialization of read-propose-commit.

Owns one lock and the undecided proposal of each key in use.  A caller that reads replicated state and proposes a change of it holds the
lock of its key.  The lock is passed on only when the log has committed or rejected the proposal, even if the caller was cancelled earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dledger.core.types import EntryId


@dataclass(slots=True)
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # the holder, the tasks that wait for the lock, and an undecided proposal
    undecided: asyncio.Future[EntryId] | None = None


class KeyedLock:
    """One lock a key; an unused key takes no memory."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Acquire the lock of ``key``, wait for the proposal that its last holder left undecided, and hold it for the context."""
        entry = self._entries.setdefault(key, _Entry())
        entry.users += 1
        try:
            async with entry.lock:
                if entry.undecided is not None:
                    await asyncio.wait([entry.undecided])
                yield
        finally:
            self._release(key, entry)

    async def commit(self, key: Hashable, proposal: asyncio.Future[EntryId]) -> None:
        """Wait until ``proposal`` is committed, holding ``key``.  If the caller is cancelled, the next holder waits for it instead."""
        entry = self._entries[key]
        entry.undecided = proposal
        entry.users += 1

        def decided(_: asyncio.Future[EntryId]) -> None:
            if entry.undecided is proposal:
                entry.undecided = None
            self._release(key, entry)
            if not proposal.cancelled():
                proposal.exception()

        proposal.add_done_callback(decided)
        await asyncio.shield(proposal)

    def _release(self, key: Hashable, entry: _Entry) -> None:
        entry.users -= 1
        if not entry.users:
            del self._entries[key]
