"""One command at a time starts or stops what runs in a data folder: another one waits, and says for which.

Owns ``DATA/up.lock``, an advisory lock with the pid of its holder; a stale file means nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dledger_cli.output import note
from dledger_wire.errors import DataDirectoryError

NAME = "up.lock"


@contextmanager
def one_at_a_time(data: Path) -> Iterator[None]:
    """Hold the lock of the folder, which exists.  The processes that are started do not have it."""
    try:
        file = os.open(data / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryError(f"data folder {data} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip()
            note(f"waiting for another command that starts or stops nodes in {data}{f' (pid {holder})' if holder.isdigit() else ''}")
            fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(OSError):  # a full disk does not keep nodes from being stopped
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
