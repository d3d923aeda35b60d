"""An asyncio event loop in virtual time, on which every handle belongs to a simulated process.

Owns scheduling and nothing else: ready handles, a heap of timers, the current virtual time.  A handle belongs to the process found in
its context (a context variable, so tasks and callbacks inherit it).  Killing a process drops all its handles at once and keeps its tasks
buried until the end of the run, so that no ``finally`` of a dead process ever runs; pausing one holds its handles and lets them go in
a burst.  Threads, executors, sockets and subprocesses are refused: what needs them cannot be simulated.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tests.sim.result import LivenessError

_T = TypeVar("_T")

GARBAGE = (50_000, 20, 50)  # thresholds of the collector while a loop runs: what a run makes is mostly freed by itself
START_S = 1000.0  # virtual time at the start; not zero, so that nobody takes 0 for "never"


class DeadlockError(LivenessError):
    """Somebody waits, and nothing is left to happen."""


class SimulationLimitError(LivenessError):
    """More handles ran than a run may take: something spins."""


class Process:
    """One run of a simulated program; a restart is another Process."""

    __slots__ = ("alive", "context", "held", "host", "name", "paused", "prune_at", "resumed_s", "tasks")

    def __init__(self, host: str, run: int) -> None:
        self.host = host
        self.name = f"{host}#{run}" if run else host
        self.alive = True
        self.paused = False
        self.resumed_s = 0.0  # when it went on after a pause
        self.held: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.prune_at = 64
        self.context = Context()
        self.context.run(_process.set, self)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Remember a task, so that it outlives its process unfinished; done ones are forgotten now and then."""
        tasks = self.tasks
        tasks.append(task)
        if len(tasks) > self.prune_at:
            self.tasks = [task for task in tasks if not task.done()]
            self.prune_at = 64 + 2 * len(self.tasks)

    def __repr__(self) -> str:
        return f"Process({self.name})"


_process: ContextVar[Process] = ContextVar("simulated process")


class Handle:
    """A scheduled callback; stands for ``asyncio.Handle`` and ``asyncio.TimerHandle``."""

    __slots__ = ("_args", "_callback", "_cancelled", "_when", "context", "process")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, process: Process, when: float) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args: tuple[Any, ...] = args
        self.context = context
        self.process = process
        self._cancelled = False
        self._when = when

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


if TYPE_CHECKING:
    _Loop = asyncio.BaseEventLoop  # whose methods are not abstract: most of them are refused by AbstractEventLoop itself
else:
    _Loop = asyncio.AbstractEventLoop


class SimLoop(_Loop):
    """The loop.  ``shuffle`` interleaves processes at random (order within one process stays as asyncio promises it)."""

    made = 0  # loops in this process so far

    def __init__(self, *, shuffle: random.Random | None = None, max_handles: int = 50_000_000) -> None:
        self.now_s = START_S
        self.world = Process("world", 0)
        self.handles_run = 0
        self.unhandled: list[dict[str, Any]] = []
        self._shuffle = shuffle
        self._max_handles = max_handles
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._buried: list[object] = []
        if not SimLoop.made:
            gc.freeze()  # modules are not looked through again and again
        SimLoop.made += 1
        self._world_context = self.world.context

    # Time and scheduling

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        if context is None:
            context = copy_context()
        handle = Handle(callback, args, context, context.get(_process) or self.world, self.now_s)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        if context is None:
            context = copy_context()
        handle = Handle(callback, args, context, context.get(_process) or self.world, when)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_for(self, process: Process, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run ``callback`` in ``process`` at ``when``: how anything outside (network, disk, faults) reaches a process."""
        handle = Handle(callback, args, process.context, process, when)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> NoReturn:  # type: ignore[override]
        raise self._refusal("threads")

    # Running

    def run_until_complete(self, future: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:  # type: ignore[override]
        """Run until ``future`` is done; a coroutine runs in the world, the process of the harness itself."""
        awaited = future if isinstance(future, asyncio.Future) else self.create_task(future, context=self._world_context.copy())
        awaited.add_done_callback(self._stop_at, context=self._world_context)
        try:
            self.run_forever()
        finally:
            awaited.remove_done_callback(self._stop_at)
        return awaited.result()

    def _stop_at(self, _future: asyncio.Future[Any]) -> None:
        self._stopping = True

    def run_forever(self) -> None:
        if self._running or self._closed:
            raise RuntimeError("the loop is running or closed")
        self._running, self._stopping = True, False
        before, thresholds = events._get_running_loop(), gc.get_threshold()
        events._set_running_loop(self)
        gc.set_threshold(*GARBAGE)
        try:
            self._run()
        finally:
            gc.set_threshold(*thresholds)
            events._set_running_loop(before)
            self._running = False

    def _run(self) -> None:
        ready, timers, limit = self._ready, self._timers, self._max_handles
        pop_timer, pop_ready = heapq.heappop, ready.popleft if self._shuffle is None else self._pop_shuffled
        ran = self.handles_run
        while not self._stopping:
            while not ready:
                if not timers:
                    raise DeadlockError("nothing is left to happen, but somebody waits")
                when, _number, handle = pop_timer(timers)
                if handle._cancelled or not handle.process.alive:
                    continue
                if when > self.now_s:
                    self.now_s = when
                ready.append(handle)
                while timers and timers[0][0] <= self.now_s:
                    handle = pop_timer(timers)[2]
                    if not handle._cancelled:
                        ready.append(handle)
            handle = pop_ready()
            process = handle.process
            if handle._cancelled or not process.alive:
                continue
            if process.paused:
                process.held.append(handle)
                continue
            ran += 1
            if ran > limit:
                raise SimulationLimitError(f"{limit} handles ran until {self.now_s - START_S:.3f} s")
            self.handles_run = ran
            handle.context.run(handle._callback, *handle._args)  # type: ignore[arg-type]

    def _pop_shuffled(self) -> Handle:
        """The first ready handle of a process drawn at random: processes run beside each other in any interleaving."""
        ready, shuffle = self._ready, self._shuffle
        count = len(ready)
        if count == 1 or shuffle is None:
            return ready.popleft()
        process = ready[int(shuffle.random() * count)].process
        for position, handle in enumerate(ready):
            if handle.process is process:
                del ready[position]
                return handle
        raise RuntimeError("unreachable")

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Forget what is scheduled.  Tasks that never ended stay with this loop."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        return None

    async def shutdown_default_executor(self) -> None:
        return None

    # Processes

    def spawn(self, process: Process, work: Coroutine[Any, Any, _T], name: str = "main") -> asyncio.Task[_T]:
        """Run ``work`` as a task of ``process``."""
        return self.create_task(work, name=f"{process.name}.{name}", context=process.context.copy())

    def current(self) -> Process:
        """The process whose handle is running."""
        return _process.get(self.world)

    def kill(self, process: Process, *keep: object) -> None:
        """End ``process`` between two instructions.  ``keep``: objects that would take its coroutines with them when freed."""
        process.alive = False
        process.held.clear()
        self._buried.append((process, keep))

    def pause(self, process: Process) -> None:
        process.paused = True

    def resume(self, process: Process) -> None:
        """Everything that fell due while it was paused runs now, in the order it fell due."""
        if process.paused:
            process.paused = False
            process.resumed_s = self.now_s
            self._ready.extend(process.held)
            process.held.clear()

    # What asyncio asks of a loop

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[_T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = _process.get(self.world) if context is None else context.get(_process) or self.world
        process.own(task)
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.unhandled.append(context)

    def run_in_executor(self, executor: object, func: Callable[..., object], *args: object) -> NoReturn:
        raise self._refusal("executors")

    def add_reader(self, fd: object, callback: Callable[..., object], *args: object) -> NoReturn:
        raise self._refusal("sockets")

    def add_writer(self, fd: object, callback: Callable[..., object], *args: object) -> NoReturn:
        raise self._refusal("sockets")

    @staticmethod
    def _refusal(what: str) -> RuntimeError:
        return RuntimeError(f"{what} cannot be simulated: use the injected environment")
