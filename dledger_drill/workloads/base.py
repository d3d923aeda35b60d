"""What all workloads have in common: their surroundings, and the pace of their operations."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dledger_drill.workloads.recorder import Recorder
from dledger_drill.workloads.spec import LoadSpec


@dataclass(slots=True)
class Surroundings:
    """``running`` is set when every workload is ready to begin."""

    spec: LoadSpec
    recorder: Recorder
    running: asyncio.Event = field(default_factory=asyncio.Event)


class Workload(ABC):
    """One client, or a few that belong together, with a loop of operations."""

    stays = False  # True: runs until ``close``, because it has something to do while consumers are drained

    def __init__(self, around: Surroundings) -> None:
        self.around, self.spec, self.recorder = around, around.spec, around.recorder
        self.ready = asyncio.Event()
        self.load_ended = asyncio.Event()
        self._stopped = asyncio.Event()
        self._closing = asyncio.Event()

    @abstractmethod
    async def run(self) -> None:
        """Set ``ready``, work until ``stop``, and close what was opened.  An error that is not an operation's outcome ends the process."""

    def stop(self) -> None:
        """Begin no more operations; ``load_ended`` is set when the last one has ended."""
        self._stopped.set()

    def close(self) -> None:
        self._stopped.set()
        self._closing.set()

    async def new_round(self) -> None:  # noqa: B027 - most have nothing to do
        """A round of the drill began."""

    async def paced(self, rate: float, do: Callable[[], Awaitable[None]]) -> None:
        """Call ``do`` so many times a second, one call after the other, until ``stop``; what a long call missed is not made up for."""
        due_s = time.monotonic()
        self.ready.set()
        while await self._wait_until(due_s):
            await self.around.running.wait()
            if not self._stopped.is_set():
                await do()
            due_s = max(due_s + 1 / rate, time.monotonic())
        self.load_ended.set()

    async def _wait_until(self, due_s: float) -> bool:
        """False when it was stopped."""
        try:
            async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False
