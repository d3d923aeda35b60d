"""For how long a master may run its services: until somebody else could.

Owns the lease.  It lasts ``lease_ms`` from when a question was *asked* that a majority then answered: "this node leads".  Whoever is
elected in a later term has a vote of somebody who had answered before, so it was elected later than the question was asked; a new master
therefore waits for ``lease_ms``, and a little for clocks of different speed, from its own election, and finds every older lease over.
Nobody's clock is compared with anybody else's; how far clocks may differ in speed is ``DRIFT``.

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
    """The lease of one node's term: ``elected``, ``begin``, ``keep`` until it lapses (then ``begin`` again), ``end`` at any moment."""

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
        """This node was elected just now, or a moment ago."""
        self._elected_ms = self._clock.monotonic_ms()

    def end(self) -> None:
        """It is over, whatever time is left."""
        self._until_ms = -1

    async def begin(self) -> None:
        """Return when every older lease is over and the own one has begun."""
        wait_ms = self._elected_ms + self._lease_ms * (1 + DRIFT) + 1 - self._clock.monotonic_ms()
        await asyncio.sleep(max(0.0, wait_ms / 1000))
        while True:
            if await self._ask(self._lease_ms / 1000) and self.holds:
                return
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> None:
        """Renew the lease in time; returns when it has lapsed."""
        renewed = True
        while self.holds:
            await asyncio.sleep(min(self._lease_ms / RENEWALS / 1000 if renewed else RETRY_S, self._left_s()))
            renewed = await self._ask(self._left_s())

    def _left_s(self) -> float:
        return max(0.0, (self._until_ms - self._clock.monotonic_ms()) / 1000)

    async def _ask(self, timeout_s: float) -> bool:
        """Whether a majority confirmed this leader; then the lease is renewed."""
        asked_ms = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(timeout_s):
                await self._confirm()
        except (DledgerError, TimeoutError):
            return False
        self._until_ms = asked_ms + self._lease_ms
        return True
