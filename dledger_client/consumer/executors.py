"""Executors of listeners: tasks of the event loop, or a pool of threads.

Owns the workers.  A job is a generator of listener calls: it yields messages and their context, receives how many were consumed, and
ends when nothing is left to do.  The executor then calls ``ended`` on the loop; threads do so in bulk, one wake-up for many jobs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection, Generator
from queue import SimpleQueue
from typing import Any, Protocol

from dledger_client.consumer.call_notes import CallNotes
from dledger_client.consumer.listener import NO_NOTES, ConsumeContext, Listener, ListenerCalls, RunningCalls
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.tasks import BackgroundTasks

Calls = Generator[tuple[list[ReceivedMessage], ConsumeContext], int, None]


class Job(Protocol):
    """Work for a listener.  ``calls`` runs in a worker, ``ended`` on the loop."""

    def calls(self) -> Calls: ...
    def ended(self) -> None: ...


class ListenerExecutor(Protocol):
    """Runs jobs with a number of workers, in the order they were submitted."""

    @property
    def running(self) -> RunningCalls: ...
    def submit(self, job: Job) -> None: ...
    async def stop(self, waiting: Collection[asyncio.Task[Any]] = ()) -> None: ...


class TaskExecutor:
    """Listeners as plain functions or coroutines on the event loop."""

    def __init__(self, listener: Listener, workers: int, notes: CallNotes = NO_NOTES) -> None:
        self._listener = ListenerCalls(listener, notes)
        self._jobs: deque[Job] = deque()
        self._free = workers
        self._tasks = BackgroundTasks("consumer", self._start_worker)

    @property
    def running(self) -> RunningCalls:
        return self._listener.running

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        self._start_worker()

    def _start_worker(self, _bug: BaseException | None = None) -> None:
        if self._free and self._jobs:
            self._free -= 1
            self._tasks.spawn(self._work(), "listener")

    async def _work(self) -> None:
        try:
            while self._jobs:
                job = self._jobs.popleft()
                calls = job.calls()
                batch = next(calls, None)
                while batch is not None:
                    consumed = await self._listener.call_async(*batch)
                    try:
                        batch = calls.send(consumed)
                    except StopIteration:
                        batch = None
                job.ended()
                await asyncio.sleep(0)
        finally:
            self._free += 1

    async def stop(self, waiting: Collection[asyncio.Task[Any]] = ()) -> None:
        """Cancel running listeners, except those that are ``waiting`` for this themselves."""
        self._jobs.clear()
        await self._tasks.stop(waiting)


class ThreadExecutor:
    """Listeners as plain functions in a pool of threads; made on the event loop that ``ended`` runs on."""

    def __init__(self, listener: Listener, workers: int, notes: CallNotes = NO_NOTES) -> None:
        self._listener = ListenerCalls(listener, notes)
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[Job] = deque()
        self._notified = False
        self._threads = [threading.Thread(target=self._work, name=f"listener-{number}", daemon=True) for number in range(workers)]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> RunningCalls:
        return self._listener.running

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        listener, jobs = self._listener, self._jobs
        while (job := jobs.get()) is not None:
            calls = job.calls()
            batch = next(calls, None)
            while batch is not None:
                consumed = listener.call(*batch)
                try:
                    batch = calls.send(consumed)
                except StopIteration:
                    batch = None
            self._done.append(job)
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: the process ends
                    return

    def _collect(self) -> None:
        self._notified = False  # before reading ``_done``: a job that ends later notifies again
        done = self._done
        while done:
            done.popleft().ended()

    async def stop(self, waiting: Collection[asyncio.Task[Any]] = ()) -> None:
        """Stop idle threads; a running listener finishes by itself."""
        for _ in self._threads:
            self._jobs.put(None)
