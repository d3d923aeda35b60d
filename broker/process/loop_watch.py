"""How late the event loop of this process is: what everything else that runs on it waits for.

Owns a timer that looks ten times a second.  A simulated node has none: its loop is never late.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from broker.process.process_reader import read_process_stats
from broker.support.process_stats import ProcessStats

EVERY_S = 0.1
WINDOW_S = 10.0


class LoopWatch:
    """Made on the loop that it watches.  Its properties may be read from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turned_s = time.monotonic()
        self._window_s = self._turned_s
        self._largest_s = self._before_s = 0.0  # of this window and of the one before it
        self._loop.call_later(EVERY_S, self._turn)

    def _turn(self) -> None:
        now_s = time.monotonic()
        late_s = max(0.0, now_s - self._turned_s - EVERY_S)
        if now_s - self._window_s >= WINDOW_S:
            self._window_s, self._before_s, self._largest_s = now_s, self._largest_s, 0.0
        self._largest_s = max(self._largest_s, late_s)
        self._turned_s = now_s
        self._loop.call_later(EVERY_S, self._turn)

    @property
    def silent_s(self) -> float:
        """How long ago the loop turned last."""
        return time.monotonic() - self._turned_s

    @property
    def lag_s(self) -> float:
        """How late it was at most in the last ten to twenty seconds; how late it is now when that is more."""
        return max(self._largest_s, self._before_s, self.silent_s - EVERY_S)

    def stats(self) -> ProcessStats:
        """This process, now."""
        return replace(read_process_stats(), loop_lag_ms=self.lag_s * 1000)
