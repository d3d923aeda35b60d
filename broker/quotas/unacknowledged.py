"""What a user has sent to this node and got no answer for, over all its Produce streams.

Owns the wake of streams that wait for less of it.  The streams count, in the callbacks that take and answer requests.
"""

from __future__ import annotations

import asyncio
import math


class Unacknowledged:
    """Of one user, while it has ``streams``; ``most`` is what the quota that counts now allows."""

    __slots__ = ("most", "size_bytes", "streams", "waiting")

    def __init__(self) -> None:
        self.size_bytes, self.streams = 0, 0
        self.most = math.inf
        self.waiting: dict[asyncio.Event, None] = {}

    def wake(self) -> None:
        """Let the stream that waits longest go on, if there is less than may be.  It calls this again once it has taken what it has."""
        if self.waiting and self.size_bytes < self.most:
            event = next(iter(self.waiting))
            del self.waiting[event]
            event.set()
