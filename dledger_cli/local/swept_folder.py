"""A temporary folder with nodes that ends with its command, however that ends.

Owns a process that waits for the end of its input, which the command holds open.  Then, also after ``kill -9``, it kills the nodes that run
in the folder, and removes the folder.  It is this file, run as ``python -I -S swept_folder.py FOLDER``: nothing but the standard library is
used here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_KEEP = b"keep"
_PAUSE_S = 0.05
_LIMIT_S = 10.0


class SweptFolder:
    """The folder, at ``path``; nodes belong into its folder ``data``."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        command = [sys.executable, "-I", "-S", __file__, str(self.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - this file
        self._kept = False

    def keep(self) -> None:
        """Leave the files where they are, for a look at logs."""
        self._kept = True

    def close(self) -> None:
        """End the nodes and remove the folder; returns when that is done."""
        self._process.communicate(_KEEP if self._kept else b"")


@contextlib.contextmanager
def swept_folder(prefix: str) -> Iterator[SweptFolder]:
    folder = SweptFolder(prefix)
    try:
        yield folder
    finally:
        folder.close()


def _kill_nodes(folder: Path) -> None:
    for file in folder.glob("data/*.pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(file.read_text())
            if os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes():  # else the number is another process's by now
                os.kill(pid, signal.SIGKILL)


def _main() -> None:
    folder = Path(sys.argv[1])
    kept = sys.stdin.buffer.read() == _KEEP
    deadline = time.monotonic() + _LIMIT_S
    while True:
        _kill_nodes(folder)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        if kept or not folder.exists() or time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)  # a node that dies still writes


if __name__ == "__main__":
    _main()
