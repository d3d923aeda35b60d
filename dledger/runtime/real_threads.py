"""The threads of a disk: one that writes, so that writes keep the order of submission, another for folders whose many small writes nothing
else should wait for, and a small pool for reads and for filling files ahead.

The event loop only hands work over, which is a queue and one wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dledger.runtime.real_blocked_time import BlockedTime
from dledger.runtime.sync_pace import SyncPace

_T = TypeVar("_T")

READ_THREADS = 4


class Workers:
    """Threads that take functions from one queue; a single one runs them in order.

    Handing over and back takes some 10 us here against 110 us with a ThreadPoolExecutor, and every flush pays for it.
    """

    def __init__(self, name: str, count: int) -> None:
        self._waiting = 0  # submitted, and not known to the event loop to be done
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether everything submitted is done: until the next one is, the caller may do what these threads do."""
        return self._waiting == 0

    def submit(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self._queue.put((function, future))
        return future

    def stop(self) -> None:
        """Let the threads end after what was submitted, and wait for them."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            function, future = job
            result, error = None, None
            try:
                result = function()
            except Exception as caught:  # noqa: BLE001 - handed to the future
                error = caught
            # The loop may have been closed meanwhile (a node stopped hard): then no caller waits for the result.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(self._resolve, future, result, error)
            del function, future, job, result, error

    def _resolve(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._waiting -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class DiskThreads:
    """Of one disk; ``beside``: it has a second thread that writes, for what nothing waits for; ``alone``: and one for a single file."""

    def __init__(self, *, beside: bool, alone: bool) -> None:
        self.writer = Workers("dledger-disk-write", 1)
        self.beside = Workers("dledger-disk-beside", 1) if beside else self.writer
        self.alone = Workers("dledger-disk-alone", 1) if alone else self.writer
        self._readers = Workers("dledger-disk-read", READ_THREADS)
        self._pace = SyncPace(time.monotonic)

    def stop(self) -> None:
        """End the threads after what was submitted."""
        for workers in {self.writer, self.beside, self.alone}:
            workers.stop()
        self._readers.stop()

    def is_beside(self, writer: Workers) -> bool:
        """Whether a thread is one beside that of the log: its writes are not worth the event loop's time."""
        return writer is not self.writer

    @property
    def writes_now(self) -> bool:
        """Whether the event loop may write and sync a little by itself: nothing waits for the write thread, and the disk is fast."""
        return self.writer.is_idle and self._pace.is_fast

    def timed(self, write_and_sync: Callable[[], None]) -> None:
        """Run a small write with its sync, on either thread, and note what it took."""
        blocked = BlockedTime()
        try:
            write_and_sync()
        finally:
            self._pace.took(blocked.so_far_s())

    async def aside(self, function: Callable[[], _T]) -> _T:
        """Run ``function`` beside the threads that write."""
        return await self._readers.submit(function)
