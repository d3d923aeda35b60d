"""Clients that wait for a change of what they asked for.

Owns which callers watch which topic and which group.  A caller watches a name before it looks at the name's route, so that no change is
missed however long it takes to look at all of them.  A change wakes only the callers that watch it, some hundred at a time, so that other
requests are answered in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

WOKEN_AT_ONCE = 200
FORGOTTEN_AT_ONCE = 2_000

Key = tuple[str, str]  # "topic" or "group", and its name


class RouteWaiters:
    """Watches by what they watch; its length is how many callers wait now."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[RouteWatch, None]] = {}
        self.waiting = 0

    def __len__(self) -> int:
        return self.waiting

    def watch(self) -> RouteWatch:
        """A watch of nothing yet, to be closed."""
        return RouteWatch(self, self._by_key)

    def wake(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """These changed."""
        woken: dict[RouteWatch, None] = {}
        for key in [*(("topic", name) for name in topics), *(("group", name) for name in groups)]:
            woken.update(self._by_key.get(key, {}))
        self._wake_some(list(woken))

    def wake_all(self) -> None:
        for watching in list(self._by_key.values()):
            _wake(list(watching))

    def _wake_some(self, watching: Sequence[RouteWatch]) -> None:
        _wake(watching[:WOKEN_AT_ONCE])
        if rest := watching[WOKEN_AT_ONCE:]:
            asyncio.get_running_loop().call_soon(self._wake_some, rest)


class RouteWatch:
    """What one caller watches."""

    def __init__(self, waiters: RouteWaiters, by_key: dict[Key, dict[RouteWatch, None]]) -> None:
        self._waiters, self._by_key = waiters, by_key
        self._keys: dict[Key, None] = {}
        self.changed = asyncio.Event()

    def add(self, kind: str, name: str) -> None:
        """Watch one more topic or group."""
        key = (kind, name)
        self._keys[key] = None
        self._by_key.setdefault(key, {})[self] = None

    async def wait(self, timeout_s: float) -> bool:
        """Return when something that is watched has changed since ``changed`` was cleared; False after ``timeout_s``."""
        self._waiters.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        except TimeoutError:
            return False
        finally:
            self._waiters.waiting -= 1
        return True

    def close(self) -> None:
        """Watch nothing any more."""
        self._forget(list(self._keys))

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys[:FORGOTTEN_AT_ONCE]:
            watching = self._by_key[key]
            del watching[self]
            if not watching:
                del self._by_key[key]
        if rest := keys[FORGOTTEN_AT_ONCE:]:
            asyncio.get_running_loop().call_soon(self._forget, rest)


def _wake(watching: Sequence[RouteWatch]) -> None:
    for watch in watching:
        watch.changed.set()
