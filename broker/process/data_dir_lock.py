"""The lock of a node's data folder, and who holds it.

Owns ``DATA/ID/lock``: an advisory lock held for the life of the process, with the holder's pid as the file's text.  A stale text
without the lock means nothing, so a pid read here is never that of a stranger.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from dledger_wire.errors import DataDirectoryError

LOCK_TRIES = 25


class DataFolderLock:
    """Held from ``acquire`` to the end of the process."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """Make the folder if needed and lock it.  DataDirectoryError says who holds it already."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirectoryError(f"data folder {self._path.parent} cannot be used: {error.strerror}") from error
        if not _lock(file, str(self._path.parent)):
            os.close(file)
            holder = holder_pid(str(self._path.parent))
            by = f" by pid {holder}" if holder else ""
            raise DataDirectoryError(f"data folder {self._path.parent} is in use{by}")
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int, folder: str) -> bool:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if holder_pid(folder) is not None:
                return False
            time.sleep(0.02)  # somebody merely asks who holds it, for an instant
        else:
            return True
    return False


def holder_pid(folder: str) -> int | None:
    """The process that runs on ``folder`` now, None when nobody does (whatever old text the lock file holds)."""
    try:
        file = os.open(Path(folder) / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(file, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(file)
    return None
