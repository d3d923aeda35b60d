"""Frames read from a replica's log files on this machine: the replica says where they are, the bytes never pass through it.

Owns the open files of one consumer.  An open file outlives its deletion, so a log that expires meanwhile changes nothing for what is being
read; whether the bytes are the messages asked for is checked by whoever decodes them (size, offset, CRC).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

MOST_OPEN = 8


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a file."""

    file: str
    at: int
    size: int


class LogFiles:
    """Reads pieces of log files, from any thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._reading = threading.Lock()

    def read(self, pieces: Sequence[FilePiece]) -> memoryview:
        """All pieces, back to back.  OSError when they cannot be read from here, or end too early."""
        whole = memoryview(bytearray(sum(piece.size for piece in pieces)))
        at = 0
        with self._reading:
            for piece in pieces:
                self._fill(whole[at : at + piece.size], piece)
                at += piece.size
        return whole

    def _fill(self, into: memoryview, piece: FilePiece) -> None:
        descriptor, done = self._descriptor(piece.file), 0
        while done < piece.size:
            count = os.preadv(descriptor, [into[done:]], piece.at + done)
            if not count:
                raise OSError(f"{piece.file} ends at {piece.at + done}, expected {piece.at + piece.size} bytes")
            done += count

    def _descriptor(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        if len(self._open) >= MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return descriptor

    def close(self) -> None:
        with self._reading:
            while self._open:
                os.close(self._open.popitem()[1])
