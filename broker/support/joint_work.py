"""Requests that wait for the same lock, served together by the first of them that gets it.

Owns who is served with whom.  While one change of replicated state is on its way through the log, the requests for the next one gather:
what they cost is by change, not by request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from broker.support.keyed_lock import KeyedLock

AskT = TypeVar("AskT")
ResultT = TypeVar("ResultT")


class _Waiting(Generic[AskT, ResultT]):
    __slots__ = ("ask", "results")

    def __init__(self, ask: AskT) -> None:
        self.ask = ask
        self.results: list[ResultT] = []  # one, once it was served


class JointWork(Generic[AskT, ResultT]):
    """``locks``: what is held while requests are served, by key."""

    def __init__(self, locks: KeyedLock) -> None:
        self._locks = locks
        self._waiting: dict[tuple[Hashable, Hashable], list[_Waiting[AskT, ResultT]]] = {}

    async def do(
        self, lock: Hashable, kind: Hashable, ask: AskT, serve: Callable[[Sequence[AskT]], Awaitable[Sequence[ResultT]]]
    ) -> ResultT:
        """The result of ``ask``.

        ``serve`` gets those that wait with the same lock and ``kind``, this one first, and returns the results of the first of them, at
        least one.  What it raises is raised by the call that ran it alone: the others try by themselves."""
        key, own = (lock, kind), _Waiting[AskT, ResultT](ask)
        waiting = self._waiting.setdefault(key, [])
        waiting.append(own)
        try:
            async with self._locks.hold(lock):
                if not own.results:
                    together = [own, *(each for each in waiting if each is not own and not each.results)]
                    for each, result in zip(together, await serve([each.ask for each in together]), strict=False):
                        each.results.append(result)
                return own.results[0]
        finally:
            waiting.remove(own)
            if not waiting:
                self._waiting.pop(key, None)
