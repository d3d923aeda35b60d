"""Modes of a data folder where the cluster file has a block ``security``: what checks passwords is in the log and in snapshots of it.

Owns both halves: nothing is made that others can read, and what was made before gets the same modes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dledger_wire.errors import DataDirectoryError

FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077


def make_private(folder: str, log_file: str = "") -> None:
    """Let only this process's user read ``folder`` and its log, now and later.  DataDirectoryError when it belongs to another user."""
    os.umask(UMASK)
    os.makedirs(folder, FOLDER_MODE, exist_ok=True)
    own = os.stat(folder)
    if own.st_uid != os.geteuid() and os.geteuid() != 0:
        raise DataDirectoryError(f"data folder {folder} belongs to user id {own.st_uid}; expected {os.geteuid()}, the user of the process")
    _restrict(folder, FOLDER_MODE)
    for place, folders, files in os.walk(folder):
        for name in folders:
            _restrict(os.path.join(place, name), FOLDER_MODE)
        for name in files:
            _restrict(os.path.join(place, name), FILE_MODE)
    if log_file and Path(log_file).is_file():
        _restrict(log_file, FILE_MODE)


def _restrict(path: str, mode: int) -> None:
    found = os.lstat(path)
    if not stat.S_ISLNK(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, mode)
