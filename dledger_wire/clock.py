"""Time and randomness as injected values, shared by servers and clients.

Owns the two protocols and their real implementations; the simulator has its own.  Timers are asyncio's (``loop.call_later``).
"""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; the zero point means nothing."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""
        ...


class Random(Protocol):
    """The draws a node or client needs (``random.Random`` satisfies it)."""

    def randrange(self, start: int, stop: int) -> int: ...
    def getrandbits(self, k: int) -> int: ...


# A machine that was suspended must know that its leases ran out meanwhile; CLOCK_MONOTONIC stands still in that time.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """This machine's clocks."""

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def system_random() -> Random:
    """A generator seeded by the operating system; a follower draws from it at every message, so it is not asked each time."""
    return random.Random()
