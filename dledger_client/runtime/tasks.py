"""Owned tasks of clients: none of them dies silently.

Owns what a bug in a task means: it is logged with its stack, and the owner is told, so that whoever waits for the task is told too.  A
task that is cancelled or returns is forgotten.  (Servers have their own, ``dledger/runtime/service.py``; clients never import servers.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_logger = logging.getLogger(__name__)


class OwnedTasks:
    """The tasks of one client, or of one part of it.  ``on_bug`` is called on the loop with what a task ended with."""

    def __init__(self, name: str, on_bug: Callable[[BaseException], object] | None = None) -> None:
        self._name, self._on_bug = name, on_bug
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict, since its order is the same in every run

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run ``work`` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}: {what}")
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel every task."""
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Cancel every task and wait for their ends."""
        tasks = list(self._tasks)
        self.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (bug := task.exception()) is None:
            return
        _logger.critical("%s ended by a bug", task.get_name(), exc_info=bug)
        if self._on_bug is not None:
            self._on_bug(bug)
