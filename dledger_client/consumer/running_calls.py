"""Calls of a listener that have not returned: which, and for how long.

A listener that hangs holds its queue: a reset of the group's positions has no effect there before it returns.  So the leader is sent how
long the oldest call runs, and the log says it.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger_client.consumer.listener import ConsumeContext

LONG_MS = 60_000

_logger = logging.getLogger(__name__)


class RunningCalls:
    """``begin`` and ``end`` may be called from any thread; ``look`` sees a call from the first look on that finds it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._contexts: dict[int, ConsumeContext] = {}
        self._seen_ms: dict[int, int] = {}
        self._logged_ms: dict[int, int] = {}  # how old a call was when the log said it last

    def begin(self, context: ConsumeContext) -> int:
        number = next(self._numbers)
        self._contexts[number] = context
        return number

    def end(self, number: int) -> None:
        self._contexts.pop(number, None)

    def look(self, now_ms: int, group: str) -> int:
        """How long the oldest call runs, in milliseconds; 0 without one.  Calls of a minute are logged, and again when twice as old."""
        running = dict(self._contexts)
        self._seen_ms = {number: self._seen_ms.get(number, now_ms) for number in running}
        self._logged_ms = {number: logged_ms for number, logged_ms in self._logged_ms.items() if number in running}
        for number, context in running.items():
            age_ms = now_ms - self._seen_ms[number]
            if age_ms >= max(LONG_MS, 2 * self._logged_ms.get(number, 0)):
                self._logged_ms[number] = age_ms
                text = "consumer group %s: a listener call of %s queue %d at %s runs for %d s; its messages are not taken away from it"
                _logger.warning(text, group, context.topic, context.queue_id, context.replica_group, age_ms // 1000)
        return max((now_ms - seen_ms for seen_ms in self._seen_ms.values()), default=0)
