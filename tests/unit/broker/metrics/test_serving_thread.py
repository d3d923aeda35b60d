"""A thread that serves: its start ends whatever goes wrong."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest

from broker.process.serving_thread import ServingThread
from tests.waiting import LIMIT_S


class Slow:
    """Starts once it may."""

    def __init__(self) -> None:
        self.begun, self.may_start = threading.Event(), threading.Event()
        self.stopped = False

    async def start(self) -> None:
        self.begun.set()
        await asyncio.to_thread(self.may_start.wait, LIMIT_S)

    async def stop(self) -> None:
        self.stopped = True


def test_a_thread_that_gets_no_loop_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        def no_loop() -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        thread = ServingThread(Slow(), "test")
        monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
        monkeypatch.setattr(asyncio.events, "new_event_loop", no_loop)
        with pytest.raises(OSError, match="Too many open files"):
            await asyncio.wait_for(thread.start(), LIMIT_S)
        monkeypatch.undo()
        await thread.stop()

    asyncio.run(scenario())


def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        slow = Slow()
        start = asyncio.create_task(ServingThread(slow, "test").start())
        await asyncio.to_thread(slow.begun.wait, LIMIT_S)
        start.cancel()
        slow.may_start.set()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert slow.stopped
        assert problems == []

    asyncio.run(scenario())
