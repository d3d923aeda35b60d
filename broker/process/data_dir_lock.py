"""The lock of a node's data folder, and its holder.

Owns ``DATA/ID/lock``: an advisory lock held for the life of the process, with the holder's pid as the file's text.  A stale text
without the lock means nothing, so a pid read here is never that of a stranger.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path

from dledger_wire.errors import DataDirectoryError

LOCK_TRIES = 25
LOOK_S = 1.0


class DataFolderLock:
    """Held from ``acquire`` to the end of the process."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """Make the folder if needed and lock it.  DataDirectoryError names its holder."""
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

    def check(self) -> None:
        """DataDirectoryError when the folder is not there any more, or another one is in its place."""
        if self._file is not None and (error := _lost(self._path, os.fstat(self._file))) is not None:
            raise error

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


async def lost_folder(folder: str) -> DataDirectoryError:
    """Return, with what to say, when a folder that is locked now is not there any more."""
    path = Path(folder) / "lock"
    known = path.stat()
    while True:
        if (error := await asyncio.to_thread(_lost, path, known)) is not None:
            return error
        await asyncio.sleep(LOOK_S)


def _lost(path: Path, known: os.stat_result) -> DataDirectoryError | None:
    try:
        there = os.path.samestat(path.stat(), known)
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError:
        return None  # a disk that fails is reported by reads and writes
    node = path.parent.name
    text = f"data folder {path.parent} is gone: it was deleted or moved while {node} ran; {instead_of_lost(node)}"
    return None if there else DataDirectoryError(text)


def instead_of_lost(node: str) -> str:
    """What to do for a node that has lost its data folder: commands, in order."""
    steps = f"dledger member remove --id {node} --yes; dledger member add --id {node}; start it with an empty folder"
    return f"a member of a group is replaced, it is not enough to start it again: {steps}; dledger member promote --id {node} --wait 600"


def _lock(file: int, folder: str) -> bool:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if holder_pid(folder) is not None:
                return False
            time.sleep(0.02)  # another process merely reads the holder, for an instant
        else:
            return True
    return False


def holder_pid(folder: str) -> int | None:
    """The process that runs on ``folder`` now, None when there is none (whatever old text the lock file holds)."""
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
