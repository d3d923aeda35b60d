"""What happened in a run: a hash of everything always, readable lines on demand.

Owns the promise that a run can be compared with another byte for byte: every delivery, disk fault, crash and fault decision passes
here, with its virtual time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from tests.sim.loop import START_S, SimLoop


class Trace:
    """``events`` counts, ``hash`` tells runs apart, ``lines`` is filled only when ``readable``."""

    def __init__(self, loop: SimLoop, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> None:
        self.loop = loop
        self.readable = readable
        self.hash = 0
        self.events = 0
        self.lines: list[str] = []
        self._sink = sink

    def note(self, kind: str, subject: str, text: str = "") -> None:
        """Something rare, in words."""
        self.events += 1
        line = f"{self.loop.now_s - START_S:10.6f} {kind:<9} {subject} {text}"
        self.hash = zlib.crc32(line.encode(), self.hash)
        if self.readable:
            self._write(line)

    def carry(self, source: str, target: str, payload: bytes) -> None:
        """A message arrives: the hot one, so bytes only."""
        self.events += 1
        self.hash = zlib.crc32(payload, zlib.crc32(b"%s>%s@%d" % (source.encode(), target.encode(), self.loop.now_s * 1e6), self.hash))

    def line(self, kind: str, subject: str, text: str) -> None:
        """Words for something already counted; ask ``readable`` before making them."""
        self._write(f"{self.loop.now_s - START_S:10.6f} {kind:<9} {subject} {text}")

    def _write(self, line: str) -> None:
        self.lines.append(line)
        if self._sink is not None:
            self._sink(line)

    def give(self, sink: Callable[[str], None] | None) -> None:
        """Hand over the readable lines."""
        if sink is not None:
            for line in self.lines:
                sink(line)
