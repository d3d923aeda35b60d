"""Worlds in which the disk contract runs: each gives a fresh disk and something that runs a coroutine to its end.

The simulator adds its own world to ``WORLDS``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from dledger.runtime.env import Disk
from dledger.runtime.real_disk import RealDisk
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.waiting import LIMIT_S


class DiskWorld(Protocol):
    name: str

    def run(self, scenario: Callable[[Disk], Awaitable[None]], folder: Path) -> None:
        """Run the scenario on a fresh disk and this world's event loop; raises what it raises.  ``folder`` is an empty real folder."""
        ...


class RealDiskWorld:
    name = "real"

    def run(self, scenario: Callable[[Disk], Awaitable[None]], folder: Path) -> None:
        async def bounded() -> None:
            disk = RealDisk(str(folder / "data"))
            try:
                await asyncio.wait_for(scenario(disk), LIMIT_S)
            finally:
                disk.close()

        asyncio.run(bounded())


class SimDiskWorld:
    name = "sim"

    def run(self, scenario: Callable[[Disk], Awaitable[None]], folder: Path) -> None:
        loop = SimLoop()
        disk = SimDisk(loop, "host", random.Random(1), Trace(loop))
        loop.run_until_complete(asyncio.wait_for(scenario(disk.mount(loop.world)), 600))
        loop.close()


WORLDS: list[Callable[[], DiskWorld]] = [RealDiskWorld, SimDiskWorld]
