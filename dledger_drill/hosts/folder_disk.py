"""A machine's disk in a plain folder: what can be done to it without root.

Owns the faults that every disk has: delays, errors and a full disk by the preloaded library, and flipped bits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dledger_drill.hosts.preload import Preload, needed
from dledger_wire.errors import InvalidArgumentError


class FolderDisk:
    """``Disk`` in ``path``, which is made."""

    def __init__(self, path: Path, preload: Preload | None) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._preload = preload

    @property
    def path(self) -> Path:
        return self._path

    def power_off(self) -> None:
        raise InvalidArgumentError("a power loss is not possible on a plain folder: it takes a loop disk, which takes root")

    def power_on(self) -> None:
        """It never lost its power."""

    def fill(self, leave_bytes: int) -> None:
        needed(self._preload, "a full disk in a plain folder").fill(leave_bytes)

    def free(self) -> None:
        if self._preload is not None:
            self._preload.free()

    def slow(self, sync_ms: float, write_ms: float = 0.0) -> None:
        needed(self._preload, "a slow disk").slow(sync_ms, write_ms)

    def fail(self, failing: bool) -> None:
        needed(self._preload, "a failing disk").fail(failing)

    @property
    def struck(self) -> int:
        return self._preload.struck if self._preload is not None else 0

    def wipe(self, folder: str) -> None:
        if (self._path / folder).exists():
            shutil.rmtree(self._path / folder)
        with opened(self._path) as fd:
            os.fsync(fd)

    def flip_bit(self, file: str, byte: int, bit: int = 0) -> None:
        """In the page cache and on the disk, so that no process reads the byte as it was."""
        fd = os.open(self._path / file, os.O_RDWR | os.O_CLOEXEC)
        try:
            was = os.pread(fd, 1, byte)
            if not was:
                raise InvalidArgumentError(f"{file}: no byte {byte}")
            os.pwrite(fd, bytes([was[0] ^ 1 << bit]), byte)
            os.fdatasync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
