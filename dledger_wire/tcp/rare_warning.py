"""A log line of what may happen any number of times: refused connections, broken openings, connections without TLS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

REPEAT_WARNING_S = 10.0

_logger = logging.getLogger(__name__)


def _refused(text: str) -> None:
    _logger.warning("%s", text, extra={"event": "connection_refused"})


class RareWarning:
    """A log line that comes at most every ``REPEAT_WARNING_S`` however often its cause does; ``write`` writes it."""

    def __init__(self, write: Callable[[str], None] = _refused) -> None:
        self._write = write
        self._next_s = 0.0
        self._suppressed = 0

    def log(self, text: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_s:
            self._suppressed += 1
            return
        more = f" ({self._suppressed} more like it before)" if self._suppressed else ""
        self._write(text + more)
        self._next_s, self._suppressed = now_s + REPEAT_WARNING_S, 0
