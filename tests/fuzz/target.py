"""What a fuzz target is, and the bounds that every input is held to.

A target is one function that takes bytes.  It may return, or raise one of its ``refusals``; whatever else it raises is a finding, and so is
an input that takes longer or more memory than ``Bounds`` allow for its size.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dledger_wire.errors import DledgerError

# Pieces of JSON that its readers have to refuse or to bear.
JSON_WORDS = (
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b"NaN",
    b'"x"',
    b"true",
    b"9" * 30,
    b"[" * 3000,
    b'{"a":' * 3000,
    b'"\\ud800"',
    b"1.5",
)


class BoundExceededError(AssertionError):
    """An input took more time or memory than one of its size may."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """CPU seconds, and bytes held at once: ``memory`` and ``memory_factor`` for each byte of the input.

    They are generous, since a busy machine and the tracing itself cost time: they are there for what grows without end.
    """

    seconds: float = 2.0
    memory: int = 24 << 20
    memory_factor: int = 100


@dataclass(frozen=True, slots=True)
class Target:
    """``seeds`` are good inputs to begin with, ``words`` are pieces that inputs are made of."""

    name: str
    run: Callable[[bytes], None]
    seeds: Sequence[bytes] = ()
    words: Sequence[bytes] = ()
    refusals: tuple[type[Exception], ...] = (DledgerError,)
    bounds: Bounds = field(default_factory=Bounds)

    def take(self, data: bytes) -> bool:
        """Run one input; whether it was taken, not refused."""
        try:
            self.run(data)
        except self.refusals:
            return False
        return True

    def take_bounded(self, data: bytes) -> bool:
        """As ``take``; BoundExceededError when it took too long, or too much memory."""
        was_tracing = tracemalloc.is_tracing()
        if not was_tracing:
            tracemalloc.start()
        tracemalloc.reset_peak()
        before, begun_s = tracemalloc.get_traced_memory()[0], time.thread_time()
        try:
            return self.take(data)
        finally:
            seconds, peak = time.thread_time() - begun_s, tracemalloc.get_traced_memory()[1] - before
            if not was_tracing:
                tracemalloc.stop()
            self._check(len(data), seconds, peak)

    def _check(self, size: int, seconds: float, peak: int) -> None:
        room = self.bounds.memory + self.bounds.memory_factor * size
        if seconds > self.bounds.seconds:
            raise BoundExceededError(f"{self.name}: {size} bytes took {seconds:.1f} s; expected at most {self.bounds.seconds} s")
        if peak > room:
            raise BoundExceededError(f"{self.name}: {size} bytes took {peak >> 20} MiB; expected at most {room >> 20} MiB")
