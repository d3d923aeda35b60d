"""How many instructions of Python a callback of the event loop of a simulated process runs: a count, the same on every machine.

What C does in one call (protobuf, sorting, copying) counts as one instruction; it is bounded by the bytes of a request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from tests.sim import loop
from tests.sim.loop import Handle, Process


@dataclass
class Longest:
    """The longest callback of the process that is watched."""

    watched: Process | None = None
    is_counting: bool = False
    instructions: int = 0
    what: str = ""

    def begin(self, process: Process | None) -> None:
        self.watched, self.is_counting, self.instructions, self.what = process, True, 0, ""

    def end(self) -> None:
        self.is_counting = False

    def run(self, process: Process, context: Context, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.is_counting or process is not self.watched:
            context.run(callback, *args)
            return
        counted = 0

        def trace(frame: FrameType, event: str, _given: object) -> Any:
            nonlocal counted
            if event == "opcode":
                counted += 1
            else:
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            context.run(callback, *args)
        finally:
            sys.settrace(before)
        if counted > self.instructions:
            self.instructions, self.what = counted, _named(callback)


def _named(callback: Callable[..., object]) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return getattr(callback, "__qualname__", repr(callback))


@contextmanager
def measured(monkeypatch: pytest.MonkeyPatch, longest: Longest) -> Iterator[None]:
    """While every loop that is made counts in its callbacks."""

    class Counted:
        __slots__ = ("_context", "_process")

        def __init__(self, context: Context, process: Process) -> None:
            self._context, self._process = context, process

        def run(self, callback: Callable[..., object], *args: Any) -> None:
            longest.run(self._process, self._context, callback, args)

    class CountedHandle(Handle):
        __slots__ = ()

        def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, process: Process, when: float) -> None:
            super().__init__(callback, args, context, process, when)
            self.context = Counted(context, process)  # type: ignore[assignment]

    monkeypatch.setattr(loop, "Handle", CountedHandle)
    yield
