"""A steady load of numbered messages, and how long it waits for an acknowledgement when the leader is killed."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable

BEFORE_S = 3.0  # of load before the kill
AFTER_S = 2.0  # of load behind the first acknowledgement
LIMIT_S = 60.0


class Load:
    """When each message was sent and acknowledged, by its number.

    Args:
        send: Sends the message of a number without waiting, and calls ``acknowledged`` once it is stored.
        rate: Messages a second.
    """

    def __init__(self, rate: float, limit_s: float = LIMIT_S) -> None:
        self.rate, self._limit_s = rate, limit_s
        room = int(rate * (BEFORE_S + limit_s + 2 * AFTER_S + 60))
        self.sent_at, self.acknowledged_at = array("d", [0.0]) * room, array("d", [0.0]) * room
        self.sent = self.failed = 0
        self.killed_at = self.gone_at = self.resumed_at = 0.0

    def acknowledged(self, number: int) -> None:
        now = time.monotonic()
        self.acknowledged_at[number] = now
        # A message sent before the leader was gone may have been acknowledged by it.
        if self.gone_at and not self.resumed_at and self.sent_at[number] > self.gone_at:
            self.resumed_at = now

    def run(self, send: Callable[[int], None], kill: Callable[[], tuple[float, float]]) -> None:
        """Send at the rate; ``kill`` kills the leader, beside the load, and returns when it did and when the leader was gone."""
        began = time.monotonic()
        killer = threading.Thread(target=self._kill, args=(began, kill), daemon=True)
        killer.start()
        while not self._over(began) and self.sent < len(self.sent_at):
            wait_s = began + self.sent / self.rate - time.monotonic()
            if wait_s > 0.001:
                time.sleep(wait_s)
            self.sent_at[self.sent] = time.monotonic()
            self.sent += 1
            send(self.sent - 1)
        killer.join()

    def _kill(self, began: float, kill: Callable[[], tuple[float, float]]) -> None:
        time.sleep(max(0.0, began + BEFORE_S - time.monotonic()))
        self.killed_at, self.gone_at = kill()

    def _over(self, began: float) -> bool:
        now = time.monotonic()
        if self.resumed_at:
            return now > self.resumed_at + AFTER_S
        return now > began + BEFORE_S + self._limit_s

    @property
    def pause_s(self) -> float | None:
        return self.resumed_at - self.killed_at if self.resumed_at else None

    @property
    def stored(self) -> int:
        return sum(at > 0 for at in self.acknowledged_at)
