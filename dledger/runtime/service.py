"""Owned tasks: whoever starts a task here is told when it fails, and stops it when he stops.

Owns the only ``create_task`` of the server side.  A task that ends with an error is a crash: it is logged and handed to the owner's
``on_crash`` exactly once; a task that is cancelled or returns is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


class TaskOwner:
    """The tasks of one service, in the order they were started."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_crash = on_crash
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict, since its order is the same in every run
        self._crashed = False

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` as a task of this service."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel every task: none of them does anything more but clean up; the caller's own task is left alone."""
        for task in reversed(self._others()):
            task.cancel()

    def _others(self) -> list[asyncio.Task[None]]:
        current = asyncio.current_task()
        return [task for task in self._tasks if task is not current]

    async def stop(self) -> None:
        """Cancel every task and wait for their ends; the caller's own task is left alone."""
        self.cancel()
        if tasks := self._others():
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _logger.error("%s failed", task.get_name(), exc_info=error)
        if not self._crashed:
            self._crashed = True
            self._on_crash(error)
