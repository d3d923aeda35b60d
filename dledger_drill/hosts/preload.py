"""The library that is preloaded into a machine's processes: faults of its disk, and a wall clock that jumps.

Owns compiling ``preload.c`` (once for each content, with the machine's C compiler) and the control file, whose layout the C source
describes.  Changes reach running processes at once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from dledger_wire.errors import InvalidArgumentError

SOURCE = Path(__file__).with_name("preload.c")
CONTROL_BYTES = 8192
PATH_BYTES = 4096
COMPILE_LIMIT_S = 60.0
_FLAGS = ("-O2", "-fPIC", "-shared")
_LIBRARIES = ("-ldl", "-pthread")
_DISK, _ERROR, _FULL = 0, 4, 8
_SYNC_US, _WRITE_US, _SPACE_LEFT, _CLOCK_NS, _STRUCK, _FOLDER = 16, 24, 32, 40, 48, 56


def compiled() -> Path:
    """The library, compiled now if it is not in the user's cache folder.  InvalidArgumentError where that is not possible."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    source = SOURCE.read_bytes()
    digest = hashlib.sha256(source + repr((compiler, _FLAGS, os.uname().machine)).encode()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger-drill"
    library = folder / f"preload-{digest[:16]}.so"
    if library.exists():
        return library
    if compiler is None:
        raise InvalidArgumentError("no C compiler (cc, gcc or clang) to compile the preloaded library with")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / library.name
        command = [compiler, *_FLAGS, "-o", str(made), str(SOURCE), *_LIBRARIES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)  # noqa: S603 - our own source
        if done.returncode:
            first = next(iter(done.stderr.splitlines()), f"exit status {done.returncode}")
            raise InvalidArgumentError(f"{compiler} cannot compile the preloaded library: {first}")
        made.rename(library)  # whole or not at all, also when two drills begin at once
    return library


class Preload:
    """The preloaded library of one machine; ``environment`` is for each of its processes."""

    def __init__(self, control: Path, folder: Path) -> None:
        """Files below ``folder`` are the machine's disk; ``control`` is made again."""
        library = compiled()
        path = os.fsencode(folder.resolve())
        if len(path) >= PATH_BYTES:
            raise InvalidArgumentError(f"{folder}: a path of {len(path)} bytes is too long")
        control.write_bytes(bytes(CONTROL_BYTES))
        with open(control, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), CONTROL_BYTES)
        self._memory[_FOLDER : _FOLDER + len(path)] = path
        before = os.environ.get("LD_PRELOAD")
        self.environment = {
            "LD_PRELOAD": f"{library}:{before}" if before else str(library),
            "DRILL_CONTROL": str(control.resolve()),
        }

    def close(self) -> None:
        self._memory.close()

    def slow(self, sync_ms: float, write_ms: float) -> None:
        self._put("q", _SYNC_US, int(sync_ms * 1000))
        self._put("q", _WRITE_US, int(write_ms * 1000))
        self._switch()

    def fail(self, failing: bool) -> None:
        self._put("i", _ERROR, errno.EIO if failing else 0)
        self._switch()

    def fill(self, leave_bytes: int) -> None:
        """Files grow by ``leave_bytes`` together, and then no more."""
        self._put("q", _SPACE_LEFT, leave_bytes)
        self._put("i", _FULL, 1)
        self._switch()

    def free(self) -> None:
        self._put("i", _FULL, 0)
        self._switch()

    def shift_clock(self, seconds: float) -> None:
        """How much the wall clock is ahead of the machine's; 0: right."""
        self._put("q", _CLOCK_NS, int(seconds * 1_000_000_000))

    @property
    def struck(self) -> int:
        """How many writes and syncs were delayed or failed so far."""
        return int(struct.unpack_from("q", self._memory, _STRUCK)[0])

    def _put(self, kind: str, at: int, value: int) -> None:
        struct.pack_into(kind, self._memory, at, value)

    def _switch(self) -> None:
        """Without any fault a call looks at nothing but this field."""
        error, full = struct.unpack_from("ii", self._memory, _ERROR)
        delays = struct.unpack_from("qq", self._memory, _SYNC_US)
        self._put("i", _DISK, any((error, full, *delays)))


class ShiftedClock:
    """``Clock`` of a machine whose processes have the preloaded library, or of one that has none."""

    def __init__(self, preload: Preload | None) -> None:
        self._preload = preload

    def shift(self, seconds: float) -> None:
        needed(self._preload, "a clock that jumps").shift_clock(seconds)


def needed(preload: Preload | None, what: str) -> Preload:
    if preload is None:
        raise InvalidArgumentError(f"{what}: not possible without the preloaded library")
    return preload


@cache
def missing() -> str:
    """Why the library cannot be used on this machine; empty when it can.  Tried with a real process."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        try:
            preload = Preload(Path(scratch) / "control", Path(scratch))
        except (InvalidArgumentError, OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        stack.callback(preload.close)
        preload.shift_clock(1_000_000.0)
        command = [sys.executable, "-I", "-S", "-c", "import time; print(time.time())"]
        done = subprocess.run(  # noqa: S603 - our own interpreter
            command, env=os.environ | preload.environment, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False
        )
        if done.returncode or float(done.stdout) < time.time() + 900_000.0:
            return "this Python does not load a preloaded library"
    return ""
