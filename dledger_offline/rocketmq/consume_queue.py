"""One ConsumeQueue of RocketMQ: the units of 20 bytes that say where the messages of a queue are in the CommitLog.

Owns where a queue begins and ends, which shows messages of an earlier topic of the same name at its head and a missing tail of the log, and
the due times of delayed messages.  Messages themselves are found by reading the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

UNIT = struct.Struct(">qiq")  # position in the log, size, hash of the tag (of a delayed message: when it is due)
FILLER_SIZE = 0x7FFFFFFF  # units before the first one of a queue that does not begin at 0
_DTYPE = np.dtype([("pos", ">i8"), ("size", ">i4"), ("tag", ">i8")])


class ConsumeQueue:
    """``begin`` and ``end`` are offsets; ``begin_pos``: of its first message in the log; ``end_pos``: behind its last one."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [(int(file.name) // UNIT.size, file) for file in files]
        self.begin = self.end = self.begin_pos = self.end_pos = 0
        for first, file in self._files:
            if self._begins(first, file):
                break
        for first, file in reversed(self._files):
            if self._ends(first, file):
                break

    def _begins(self, first: int, file: Path) -> bool:
        units = _units(file)
        real = np.flatnonzero((units["size"] > 0) & (units["size"] != FILLER_SIZE))
        if len(real):
            self.begin, self.begin_pos = first + int(real[0]), int(units["pos"][real[0]])
        return bool(len(real))

    def _ends(self, first: int, file: Path) -> bool:
        units = _units(file)
        real = np.flatnonzero((units["size"] > 0) & (units["size"] != FILLER_SIZE))
        if len(real):
            last = units[real[-1]]
            self.end, self.end_pos = first + int(real[-1]) + 1, int(last["pos"]) + int(last["size"])
        return bool(len(real))

    def tag(self, offset: int) -> int | None:
        """The third field of a unit; None when the queue does not have it."""
        for first, file in reversed(self._files):
            if first <= offset < self.end:
                with open(file, "rb") as opened:
                    data = os.pread(opened.fileno(), UNIT.size, (offset - first) * UNIT.size)
                return UNIT.unpack(data)[2] if len(data) == UNIT.size else None
        return None


def _units(file: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    return np.fromfile(file, _DTYPE, file.stat().st_size // UNIT.size)
