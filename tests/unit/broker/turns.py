"""How long a callback of the event loop of a simulated process runs, in processor time, compared with a plain Python loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import pytest

from tests.sim import loop
from tests.sim.loop import Handle, Process

LOOP_ROUNDS = 60_000  # of the plain loop: some 2 ms of a core of 2020


def plain_loop_s() -> float:
    """Processor time of a plain loop now, the shortest of a few: what a slow machine is compared with."""
    found = []
    for _ in range(5):
        began_s, total = time.thread_time(), 0
        for number in range(LOOP_ROUNDS):
            total += number & 3
        found.append(time.thread_time() - began_s)
    return min(found)


@dataclass
class Longest:
    """The longest callback of the process that is watched."""

    watched: Process | None = None
    took_s: float = 0.0
    what: str = ""

    def ran(self, process: Process, callback: Callable[..., object], took_s: float) -> None:
        if took_s > self.took_s and process is self.watched:
            self.took_s, self.what = took_s, _named(callback)

    def begin(self) -> None:
        self.took_s, self.what = 0.0, ""


def _named(callback: Callable[..., object]) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return getattr(callback, "__qualname__", repr(callback))


@contextmanager
def measured(monkeypatch: pytest.MonkeyPatch, longest: Longest) -> Iterator[None]:
    """While every loop that is made measures its callbacks."""

    class Timed:
        __slots__ = ("_context", "_process")

        def __init__(self, context: Context, process: Process) -> None:
            self._context, self._process = context, process

        def run(self, callback: Callable[..., object], *args: Any) -> None:
            began_s = time.thread_time()
            try:
                self._context.run(callback, *args)
            finally:
                longest.ran(self._process, callback, time.thread_time() - began_s)

    class TimedHandle(Handle):
        __slots__ = ()

        def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, process: Process, when: float) -> None:
            super().__init__(callback, args, context, process, when)
            self.context = Timed(context, process)  # type: ignore[assignment]

    monkeypatch.setattr(loop, "Handle", TimedHandle)
    yield
