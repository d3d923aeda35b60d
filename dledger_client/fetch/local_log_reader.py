"""Frames read from a replica's log files on this machine: the replica sends their positions, not their bytes.

Owns the open files of one consumer, and the check that a folder is that replica's (its store id): an address on this host may lead
elsewhere.  An open file outlives its deletion, so a log that expires meanwhile does not matter; the caller checks that the bytes are the
requested messages (size, position, offset, CRC).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dledger_wire import strict_json
from dledger_wire._pb.broker_pb2 import LogPiece
from dledger_wire.errors import ClientClosedError

MAX_OPEN_FILES = 8
MAX_RUNS_PER_CALL = 500  # a call takes at most 1024 buffers, and there may be a gap before each run
IDENTITY_FILE = "identity.json"

Positions = npt.NDArray[np.int64]


class LocalLogReader:
    """Reads pieces of log files, from any thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._owners: dict[Path, str] = {}  # store ids of data folders
        self._scratch = bytearray(16 << 10)
        self._reading = threading.Lock()
        self._is_closed = False

    def frames(self, pieces: Sequence[LogPiece], store_id: str, places: Positions, sizes: Positions) -> memoryview:
        """The frames at log positions ``places``, back to back, all of them within ``pieces``.

        OSError when the files are another store's, cannot be read from here, or end too early; ClientClosedError after ``close``.
        """
        ends = places + sizes
        of_frame = np.searchsorted([piece.pos for piece in pieces], places, side="right") - 1
        breaks = np.flatnonzero((places[1:] != ends[:-1]) | (of_frame[1:] != of_frame[:-1])) + 1
        firsts, lasts = places[np.concatenate(([0], breaks))], ends[np.concatenate((breaks - 1, [-1]))]
        of_run = of_frame[np.concatenate(([0], breaks))]
        limits = np.array([piece.pos + piece.size for piece in pieces])
        if bool((of_run < 0).any()) or bool((lasts > limits[of_run]).any()):
            raise OSError(f"frames outside of the {len(pieces)} pieces they are said to be in")
        into = memoryview(np.empty(int(sizes.sum()), np.uint8)).cast("B")  # type: ignore[arg-type]
        runs = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
        borders = np.searchsorted(of_run, np.arange(len(pieces) + 1)).tolist()
        at = 0
        with self._reading:
            if self._is_closed:
                raise ClientClosedError("the client was closed while it read log files")
            for number, piece in enumerate(pieces):
                self._check_owner(Path(piece.file).parent.parent, store_id)
                for low in range(borders[number], borders[number + 1], MAX_RUNS_PER_CALL):
                    at = self._fill(into, at, piece, runs[low : min(low + MAX_RUNS_PER_CALL, borders[number + 1])])
        return into

    def _fill(self, into: memoryview, at: int, piece: LogPiece, runs: Sequence[tuple[int, int]]) -> int:
        """Read ``runs`` of log positions in one go, what lies between them aside; where ``into`` goes on."""
        targets: list[memoryview] = []
        position = runs[0][0]
        for first, last in runs:
            if first > position:
                targets.append(self._aside(first - position))
            targets.append(into[at : at + last - first])
            at, position = at + last - first, last
        expected, begin = runs[-1][1] - runs[0][0], piece.at + runs[0][0] - piece.pos
        count = os.preadv(self._descriptor(piece.file), targets, begin)
        if count != expected:
            raise OSError(f"{piece.file} ends at {begin + count}, expected {begin + expected} bytes")
        return at

    def _aside(self, size: int) -> memoryview:
        if size > len(self._scratch):
            self._scratch = bytearray(size)
        return memoryview(self._scratch)[:size]

    def _check_owner(self, folder: Path, store_id: str) -> None:
        if folder not in self._owners:
            try:
                self._owners[folder] = str(strict_json.parse((folder / IDENTITY_FILE).read_bytes())["store_id"])
            except (ValueError, KeyError, TypeError) as error:
                raise OSError(f"{folder / IDENTITY_FILE} does not name its store") from error
        if self._owners[folder] != store_id:
            raise OSError(f"{folder} belongs to another node")

    def _descriptor(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        if len(self._open) >= MAX_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return descriptor

    def close(self) -> None:
        with self._reading:
            self._is_closed = True
            while self._open:
                os.close(self._open.popitem()[1])
