"""Frames read from a replica's log files on this machine: the replica says where they are, the bytes never pass through it.

Owns the open files of one consumer, and the check that a folder here is that replica's (its store id): an address on this host may lead
elsewhere.  An open file outlives its deletion, so a log that expires meanwhile changes nothing for what is being read; whether the bytes
are the messages asked for is checked by whoever decodes them (size, place, offset, CRC).
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

MOST_OPEN = 8
IDENTITY_FILE = "identity.json"

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes of a log file; ``pos``: the log position of the first."""

    file: str
    at: int
    size: int
    pos: int


class LogFiles:
    """Reads pieces of log files, from any thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._owners: dict[Path, str] = {}  # store ids of data folders
        self._reading = threading.Lock()

    def frames(self, pieces: Sequence[FilePiece], store_id: str, places: Positions, sizes: Positions) -> memoryview:
        """The frames at log positions ``places``, back to back, all of them within ``pieces``.

        OSError when the files are another store's, cannot be read from here, or end too early.
        """
        with self._reading:
            for folder in {Path(piece.file).parent.parent for piece in pieces}:
                self._check_owner(folder, store_id)
            whole = self.read(pieces)
        begins = np.cumsum([0, *(piece.size for piece in pieces)])
        firsts = np.array([piece.pos for piece in pieces])
        of_piece = np.searchsorted(firsts, places, side="right") - 1
        starts = places - firsts[of_piece] + begins[of_piece]
        ends = starts + sizes
        if bool((of_piece < 0).any()) or bool((ends > begins[of_piece + 1]).any()):
            raise OSError(f"frames outside of the {len(pieces)} pieces they are said to be in")
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        if not len(breaks):
            return whole[int(starts[0]) : int(ends[-1])]
        runs = zip(starts[np.concatenate(([0], breaks))].tolist(), ends[np.concatenate((breaks - 1, [-1]))].tolist(), strict=True)
        return memoryview(b"".join([whole[start:end] for start, end in runs]))

    def _check_owner(self, folder: Path, store_id: str) -> None:
        if folder not in self._owners:
            try:
                self._owners[folder] = str(json.loads((folder / IDENTITY_FILE).read_bytes())["store_id"])
            except (ValueError, KeyError, TypeError) as error:
                raise OSError(f"{folder / IDENTITY_FILE} does not tell whose folder it is") from error
        if self._owners[folder] != store_id:
            raise OSError(f"{folder} is the folder of another node than the one that was asked")

    def read(self, pieces: Sequence[FilePiece]) -> memoryview:
        """All pieces, back to back."""
        whole = memoryview(bytearray(sum(piece.size for piece in pieces)))
        at = 0
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
