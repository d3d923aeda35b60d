"""The background tasks of one owner: none of them fails silently; waits for an event with a limit; the end of a task that is let go.

``BackgroundTasks`` is for tasks whose result no code awaits.  An error that ends one is a crash: it is logged with its stack and passed to
the owner's ``on_crash``.  A task that returns or is cancelled is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


async def let_go(task: asyncio.Future[Any]) -> None:
    """End a task that the caller waits for no more.  How it ended is no news then: it may have failed just before."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


async def wait_up_to(seconds: float, event: Awaitable[object]) -> None:
    """Wait for ``event``, at most so long; what it was is lost.  ``asyncio.wait_for`` may lose a cancellation that comes with the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event


class BackgroundTasks:
    """The tasks of one service or client, in start order.  ``on_crash`` runs on the event loop, once for every crash."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], object] | None = None) -> None:
        self._name = name
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict: its order is the same in every run

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel every task except the caller's own, newest first."""
        for task in reversed(self._others()):
            task.cancel()

    async def stop(self, waiting: Collection[asyncio.Task[Any]] = ()) -> None:
        """Cancel every task except the caller's own and those ``waiting`` for this, and wait until all of them have ended."""
        tasks = [task for task in self._others() if task not in waiting]
        for task in reversed(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def drain(self, timeout_s: float) -> None:
        """Wait until the tasks have ended by themselves; after ``timeout_s`` cancel what is left."""
        if tasks := self._others():
            await asyncio.wait(tasks, timeout=timeout_s)
            await self.stop()

    def _others(self) -> list[asyncio.Task[None]]:
        current = asyncio.current_task()
        return [task for task in self._tasks if task is not current]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _logger.critical("%s failed", task.get_name(), exc_info=error, extra={"event": "task_failed"})
        if self._on_crash is not None:
            self._on_crash(error)
