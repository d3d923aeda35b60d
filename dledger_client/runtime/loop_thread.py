"""The event loop behind the synchronous faces: one thread a process, shared by all clients, made when it is first needed.

Owns the thread, and the check that it is one of the operating system.  Nothing ends it: it serves all clients of the process.
When the process ends in order its loop stands still, after
every exit handler that was registered after the first synchronous client was made: a callback of uvloop that comes due when the
interpreter is gone crashes the process.  After a fork the child gets one of its own: threads do not survive a fork.  The parent's loop is
kept in the child as it was, and cut off from what parent and child share: freed there, it would take the parent's connections out of the
parent's epoll.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from dledger_wire.event_loop import new_event_loop
from dledger_wire.forked import close_in_child, run_in_children

T = TypeVar("T")

IN_CALLBACK = "a synchronous call from a callback would wait for itself; use the asyncio clients there"
PARK_S = 2.0  # at most, until the loop stands still: a callback of the application may hold it up

_logger = logging.getLogger(__name__)


class LoopThread:
    """A running event loop that other threads hand work to."""

    _shared: LoopThread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._is_ending = False
        self._parked = threading.Event()
        made: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(made,), name="dledger-client", daemon=True)
        self._thread.start()
        self.loop = made.result()

    def _run(self, made: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            loop = new_event_loop()  # here no signal interrupts: uvloop reports a loop that was made and not kept on stderr
        except OSError as error:
            made.set_exception(error)
            return
        made.set_result(loop)
        asyncio.set_event_loop(loop)
        while not loop.is_closed():
            try:
                loop.run_forever()
                if self._is_ending:
                    self._parked.set()
                    threading.Event().wait()  # with all that the loop holds, as long as there is a process
                return
            except BaseException:  # asyncio lets SystemExit and KeyboardInterrupt of a task or callback out
                _logger.critical("a callback tried to end the event loop of this process's clients; it goes on", exc_info=True)

    @classmethod
    def shared(cls) -> LoopThread:
        """This process's loop.  RuntimeError when the process has green threads."""
        check_threads()
        with cls._lock:
            if cls._shared is None or cls._shared.is_inherited:
                _hook()
                cls._shared = cls()
            return cls._shared

    @property
    def is_inherited(self) -> bool:
        """Made by the process this one was forked from: its thread is not here."""
        return self.process_id != os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the loop itself: a callback, which must not wait for it."""
        return threading.current_thread() is self._thread

    @classmethod
    def refuse_in_callback(cls) -> None:
        """RuntimeError on the loop of this process, for a caller that is about to wait there for what the loop has to bring."""
        if cls._shared is not None and cls._shared.is_current:
            raise RuntimeError(IN_CALLBACK)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run ``work`` on the loop and wait for it.  TimeoutError after ``timeout_s``; the work is cancelled then."""
        if self.is_inherited:
            work.close()
            raise RuntimeError("this client was made before the process forked; create one in each process")
        if self._is_ending:
            work.close()
            raise RuntimeError("the process is ending: clients can no longer be used")
        if self.is_current:
            work.close()
            raise RuntimeError(IN_CALLBACK)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def park(self) -> None:
        """The process ends: the loop does nothing more."""
        self._is_ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._parked.wait(PARK_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop and wait for it."""

        async def work() -> T:
            return function()

        return self.run(work())


_inherited: list[LoopThread] = []
_hooked: list[int] = []


def _hook() -> None:
    """What this process and its children do at an exit and after a fork, registered with the first loop."""
    if not _hooked:
        _hooked.append(1)
        atexit.register(_at_exit)
        run_in_children(_after_fork)


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist here.
    LoopThread._lock = threading.Lock()
    inherited = LoopThread._shared
    if inherited is not None and inherited.is_inherited:  # not one that a hook of the application has made before
        LoopThread._shared = None
        _inherited.append(inherited)
        handle = getattr(inherited.loop, "_get_backend_id", lambda: -1)()  # uvloop's epoll
        if handle > 2:
            close_in_child(handle)


def _at_exit() -> None:
    shared = LoopThread._shared
    if shared is not None and not shared.is_inherited and not shared.loop.is_closed():
        shared.park()


WHY = "clients of dledger need threads of the operating system"
WORKERS = "run workers with threads (gunicorn -k gthread, celery -P threads)"
NEEDED = ("threading", "queue", "select")  # modules that clients and their event loop work with


def check_threads() -> None:
    """RuntimeError when this process has green threads."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and (replaced := [name for name in NEEDED if gevent.is_module_patched(name)]):
        patch = "monkey.patch_all(thread=False, queue=False, select=False)"
        raise RuntimeError(f"gevent has replaced {', '.join(replaced)} in this process; {WHY}: patch with {patch}, or {WORKERS}")
    if eventlet is not None and any(map(eventlet.is_monkey_patched, ("thread", "select"))):
        raise RuntimeError(f"eventlet has replaced threading in this process; {WHY}: leave out eventlet.monkey_patch(), or {WORKERS}")
