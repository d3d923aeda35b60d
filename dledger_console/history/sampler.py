"""Asks the cluster regularly while a page needs it, once for all pages of a user that show the same.

Owns when it is asked: from the first page that watches to the last one that goes.  What an answer is good for, and how much of it is kept,
is up to the ``take`` given to the sampler; without it only the newest one is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from dledger_wire.errors import DledgerError, PermissionDeniedError

T = TypeVar("T")
LATE_TURNS = 4  # intervals without an answer until what is shown counts as old
LATE_S = 10.0
REFUSED_S = 10.0  # until what a user may not see is asked for again: each refusal is in the audit log and counts for an alert

_logger = logging.getLogger(__name__)


class SamplerError(DledgerError):
    """The console itself failed; its log says why."""


class Sampler(Generic[T]):
    """``poll`` asks, ``take`` is given the time (milliseconds since 1970) and the answer, every ``interval_s``."""

    def __init__(self, poll: Callable[[], Awaitable[T]], take: Callable[[int, T], None] | None = None, interval_s: float = 2.0) -> None:
        self._poll, self._take, self._interval_s = poll, take, interval_s
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Condition()
        self.turns = 0  # answers and errors so far
        self._asked_from = 0  # turns before this one are too old to be shown
        self.newest: T | None = None
        self.at_ms = 0  # of the newest answer
        self.error: DledgerError | None = None  # of the last turn

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Ask as long as this context is open."""
        self.watch()
        try:
            yield
        finally:
            self.unwatch()

    def watch(self) -> None:
        """A page needs answers.  What an earlier page was shown long ago does not count as new."""
        self._watchers += 1
        if self._task is None:
            self._asked_from = self.turns + 1 if self.is_late() else 0
            if self._asked_from:
                self.newest, self.error = None, None
            self._task = asyncio.create_task(self._run(), name="console-sampler")

    def unwatch(self) -> None:
        """A page needs no more answers."""
        self._watchers -= 1
        if not self._watchers:
            self.close()

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def is_late(self) -> bool:
        """Whether the newest answer is older than it should be, also because a question hangs."""
        return time.time() * 1000 - self.at_ms > 1000 * max(LATE_S, LATE_TURNS * self._interval_s)

    async def first(self) -> None:
        """Wait until the cluster was asked at least once, and since ``watch`` if what was known then is old."""
        async with self._turn:
            await self._turn.wait_for(lambda: self.turns >= max(1, self._asked_from))

    async def _run(self) -> None:
        while True:
            started = time.monotonic()
            self.error = await self._ask()
            self.turns += 1
            async with self._turn:
                self._turn.notify_all()
            interval_s = max(REFUSED_S, self._interval_s) if isinstance(self.error, PermissionDeniedError) else self._interval_s
            await asyncio.sleep(max(0.1, interval_s - (time.monotonic() - started)))

    async def _ask(self) -> DledgerError | None:
        try:
            answer = await self._poll()
            now_ms = int(time.time() * 1000)
            if self._take is not None:
                self._take(now_ms, answer)
        except DledgerError as error:
            return error
        except Exception as error:
            if not isinstance(self.error, SamplerError):  # once, not at every turn
                _logger.exception("the cluster could not be asked")
            return SamplerError(f"the console failed to ask the cluster ({type(error).__name__}); its log says more")
        self.newest, self.at_ms = answer, now_ms
        return None
