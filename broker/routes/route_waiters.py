"""Clients that wait for a change of what they asked for.

Owns which callers wait for which topic and which group.  A change wakes only the callers that use it, some hundred at a time, so that other
requests are answered in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

WOKEN_AT_ONCE = 200

Key = tuple[str, str]  # "topic" or "group", and its name


class RouteWaiters:
    """Futures by what they wait for."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[asyncio.Future[None], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    async def wait(self, topics: Iterable[str], groups: Iterable[str], timeout_s: float) -> bool:
        """Return when one of them changed; False after ``timeout_s``."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        keys = [*(("topic", name) for name in topics), *(("group", name) for name in groups)]
        for key in keys:
            self._by_key.setdefault(key, {})[woken] = None
        self._count += 1
        timer = loop.call_later(timeout_s, woken.cancel)
        try:
            await woken
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return False
        finally:
            timer.cancel()
            self._count -= 1
            for key in keys:
                waiting = self._by_key[key]
                del waiting[woken]
                if not waiting:
                    del self._by_key[key]
        return True

    def wake(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Wake the callers that wait for one of these."""
        found: dict[asyncio.Future[None], None] = {}
        for key in [*(("topic", name) for name in topics), *(("group", name) for name in groups)]:
            found.update(self._by_key.get(key, ()))
        self._wake_some(list(found))

    def wake_all(self) -> None:
        for waiting in list(self._by_key.values()):
            _resolve(list(waiting))

    def _wake_some(self, waiting: Sequence[asyncio.Future[None]]) -> None:
        _resolve(waiting[:WOKEN_AT_ONCE])
        if rest := waiting[WOKEN_AT_ONCE:]:
            asyncio.get_running_loop().call_soon(self._wake_some, rest)


def _resolve(waiting: Sequence[asyncio.Future[None]]) -> None:
    for woken in waiting:
        if not woken.done():
            woken.set_result(None)
