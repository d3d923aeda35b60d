"""The leader lease: how long a master may run its services before another master could run its own.

Owns the lease.  It lasts ``lease_ms`` from when a confirmation was *requested* that a majority then gave: "this node leads".  A leader of a
later term has the vote of a node that confirmed before, so it was elected after the request was sent.  A new master therefore waits
``lease_ms``, plus a margin for clock drift, from its own election, and finds every older lease expired.  Clocks of different nodes are
never compared; ``DRIFT`` bounds how much they may differ in speed.

    old master      ask --answered--|======== lease ========|
    new master           elected ----------------------------- wait -----------|  ask --answered--|==== lease ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dledger_wire.clock import Clock
from dledger_wire.errors import DledgerError

DRIFT = 0.01
RENEWALS = 4  # in the time of a lease
RETRY_S = 0.02


class ServiceLease:
    """The lease of one node's term: ``elected``, ``begin``, ``keep`` until it expires (then ``begin`` again), ``end`` at any moment."""

    def __init__(self, clock: Clock, confirm: Callable[[], Awaitable[object]], lease_ms: int) -> None:
        self._clock = clock
        self._confirm = confirm
        self._lease_ms = lease_ms
        self._elected_ms = 0
        self._until_ms = -1

    @property
    def holds(self) -> bool:
        return self._clock.monotonic_ms() < self._until_ms

    def elected(self) -> None:
        """This node was elected just now."""
        self._elected_ms = self._clock.monotonic_ms()

    def end(self) -> None:
        """End the lease now."""
        self._until_ms = -1

    async def begin(self) -> None:
        """Return when every older lease has expired and this one has begun."""
        wait_ms = self._elected_ms + self._lease_ms * (1 + DRIFT) + 1 - self._clock.monotonic_ms()
        await asyncio.sleep(max(0.0, wait_ms / 1000))
        while True:
            if await self._ask(self._lease_ms / 1000) and self.holds:
                return
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> None:
        """Renew the lease in time; return when it has expired."""
        renewed = True
        while self.holds:
            await asyncio.sleep(min(self._lease_ms / RENEWALS / 1000 if renewed else RETRY_S, self._left_s()))
            renewed = await self._ask(self._left_s())

    def _left_s(self) -> float:
        return max(0.0, (self._until_ms - self._clock.monotonic_ms()) / 1000)

    async def _ask(self, timeout_s: float) -> bool:
        """Renew the lease if a majority confirms this leader; whether it did."""
        asked_ms = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(timeout_s):
                await self._confirm()
        except (DledgerError, TimeoutError):
            return False
        self._until_ms = asked_ms + self._lease_ms
        return True
