"""Waiters for new messages of a queue: the long polls of fetches and consumers.

Owns the futures.  The store reports which queues changed after each applied batch; nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from store.state.sequences import QueueKey


class QueueWaiters:
    """Futures by queue; each is resolved by the first change of its queue."""

    def __init__(self) -> None:
        self.waiting: dict[QueueKey, list[asyncio.Future[None]]] = {}

    async def changed(self, key: QueueKey, timeout_s: float) -> bool:
        """Wait for new messages of the queue, or for its end; False when the time was up."""
        return await self.any_changed([key], timeout_s)

    async def any_changed(self, keys: Collection[QueueKey], timeout_s: float) -> bool:
        """The same for the first of some queues."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for key in keys:
            self.waiting.setdefault(key, []).append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            for key in keys:
                self._forget(key, future)
        return True

    def _forget(self, key: QueueKey, future: asyncio.Future[None]) -> None:
        waiting = self.waiting.get(key)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self.waiting[key]

    def wake(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            for future in self.waiting.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        """The store closes."""
        self.wake(list(self.waiting))
