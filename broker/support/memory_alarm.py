"""The memory alarm of a node: set above ``memoryHighWatermark``, cleared below ``CLEAR_SHARE`` of it.

Owns when it is set, its log lines, and what producers are refused with meanwhile; all else goes on.  Memory that the kernel can take
back, such as mapped files, does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import Callable

from broker.config.units import format_size
from dledger_wire.errors import ReadOnlyError

CLEAR_SHARE = 0.9
LOOK_S = 1.0

_logger = logging.getLogger(__name__)


class MemoryAlarm:
    """Of one node; ``mark_bytes`` 0: never set.  It may be changed; the next look counts by it."""

    def __init__(self, mark_bytes: int = 0) -> None:
        self.mark_bytes = mark_bytes
        self._used_bytes = 0
        self.is_set = False

    @property
    def text(self) -> str:
        """What it says while it is set; else empty."""
        return self._text if self.is_set else ""

    @property
    def _text(self) -> str:
        return f"memory alarm: {format_size(self._used_bytes)} in use, memoryHighWatermark is {format_size(self.mark_bytes)}"

    def look(self, used_bytes: int) -> None:
        """The process uses so much now."""
        self._used_bytes = used_bytes
        limit_bytes = self.mark_bytes * CLEAR_SHARE if self.is_set else self.mark_bytes
        is_set = bool(self.mark_bytes) and used_bytes > limit_bytes
        if is_set == self.is_set:
            return
        self.is_set = is_set
        if is_set:
            _logger.warning("%s: this node takes no new messages", self._text, extra={"event": "memory_alarm"})
        else:
            _logger.warning("%s: cleared, this node takes new messages again", self._text, extra={"event": "memory_alarm"})

    async def watch(self, used_bytes: Callable[[], int], mark_bytes: Callable[[], int]) -> None:
        """Look once a second, by the watermark of that moment.

        While it is set, what was freed goes back to the kernel: the allocator would keep it for later.
        """
        while True:
            self.mark_bytes = mark_bytes()
            self.look(used_bytes())
            if self.is_set:
                await asyncio.to_thread(_trim)
            await asyncio.sleep(LOOK_S)


def _trim() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not this C library
        ctypes.CDLL(None).malloc_trim(0)


def blocked(reason: str, alarm: str, node: str) -> ReadOnlyError:
    """What producers are refused with while an alarm is set: their clients hold the messages and say so."""
    return ReadOnlyError(f"{node}: {reason}; nothing was stored", alarm=alarm, node=node)
