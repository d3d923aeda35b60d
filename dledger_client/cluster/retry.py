"""Retry policies of every client, as tenacity states them: which errors are tried again, how long to pause, when to give up.

Owns nothing that runs.  Pauses are drawn from the injected random source, deadlines read from the injected clock, and sleeping is
asyncio's, so that a client in the simulator is deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
from tenacity.wait import wait_base

from dledger_wire.clock import Clock, Random
from dledger_wire.errors import BusyError, DledgerError, NotYetError

FIRST_PAUSE_MS = 10
LONGEST_PAUSE_MS = 50
LONGEST_BUSY_PAUSE_MS = 200
LONG_SEARCH = 16  # attempts, about half a second: an election takes less


class JitteredBackoff(wait_base):
    """Exponential backoff from 10 ms with jitter: capped low during a leader search, higher for a server that is busy.

    A search that goes on for longer than an election takes is capped as high: while a replica group has no majority, its nodes are not to
    be asked by every client thirty times a second.  A leader that a name server names ends the pause.
    """

    def __init__(self, random: Random) -> None:
        self._random = random

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        return self.pause_ms(retry_state.attempt_number, busy=isinstance(error, BusyError | NotYetError)) / 1000

    def pause_ms(self, attempt: int, *, busy: bool) -> int:
        most = LONGEST_BUSY_PAUSE_MS if busy or attempt > LONG_SEARCH else LONGEST_PAUSE_MS
        span = min(most, FIRST_PAUSE_MS << min(attempt - 1, 6))
        return span // 2 + self._random.randrange(0, span // 2 + 1)


def is_retriable(error: BaseException) -> bool:
    """Whether another attempt, or another node, may succeed."""
    return isinstance(error, DledgerError) and (error.retriable or error.refresh_route)


def until(
    deadline_ms: int,
    clock: Clock,
    random: Random,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncRetrying:
    """Try until the clock shows ``deadline_ms``; the last error is raised as it is.  ``sleep`` is how it waits between two attempts."""
    return AsyncRetrying(
        stop=lambda state: clock.monotonic_ms() + int((state.upcoming_sleep or 0) * 1000) >= deadline_ms,
        wait=JitteredBackoff(random),
        retry=retry_if_exception(is_retriable),
        sleep=sleep,
        reraise=True,
    )
