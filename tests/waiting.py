"""Waiting for an event in tests with real processes, or with real time on a loop.

Owns the one bound such tests have: long enough for a machine three times slower with other work on every core, because it only costs time
when the event never comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 240.0
LIMIT_MS = int(LIMIT_S * 1000)

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], what: str | Callable[[], str], *, limit_s: float = LIMIT_S, pause_s: float = 0.05) -> Found:
    """Look until ``condition`` is true and return what it found; fails with ``what`` did not happen."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(pause_s)
    return found


async def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait for what another task or thread does; fails after ``limit_s``."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain for {limit_s:g} s"
        await asyncio.sleep(0.001)
