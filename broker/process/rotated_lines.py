"""Files of JSON lines that are rotated by size and number.

Owns the files of one base name in one folder: ``audit.jsonl`` is the newest, ``audit.1.jsonl`` the one before.  Used by one thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from typing import Any

MAX_LOOKED_AT = 64 << 20  # bytes, for one question
BLOCK = 64 << 10


class RotatedLines:
    """At most ``files`` files of ``max_bytes`` each; ``path`` ends with ``.jsonl``."""

    def __init__(self, path: str, *, max_bytes: int, files: int) -> None:
        self.path = path
        self._max_bytes, self._files = max_bytes, files
        self._file: int | None = None
        self._size = 0

    def append(self, record: dict[str, Any]) -> None:
        """Write one line.  OSError when the disk is full or broken; the next call opens the file again."""
        line = json.dumps(record).encode() + b"\n"
        try:
            file = self._opened()
            if self._size and self._size + len(line) > self._max_bytes:
                file = self._rotated()
            written = os.write(file, line)
            self._size += written
            if written < len(line):
                raise OSError(errno.ENOSPC, "the disk is full")
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """What was appended is on the disk when this returns, if the disk works."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        if self._file is None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(self.path), 0o700)  # in the data folder, which is not made again when it is gone
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._file).st_size
            if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
                self._size += os.write(self._file, b"\n")  # a line that a full disk or a lost machine left half written
        return self._file

    def _rotated(self) -> int:
        self.close()
        names = self._names()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1])
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        return self._opened()

    def _names(self) -> list[str]:
        """Of all files, newest first."""
        base = self.path.removesuffix(".jsonl")
        return [self.path, *(f"{base}.{at}.jsonl" for at in range(1, self._files))]

    def backwards(self) -> Iterator[dict[str, Any]]:
        """Records with a number ``seq``, newest first, of ``MAX_LOOKED_AT`` bytes at most; other lines are left out."""
        left = MAX_LOOKED_AT
        for name in self._names():
            try:
                with open(name, "rb") as file:
                    for line in _lines_backwards(file.fileno()):
                        left -= len(line) + 1
                        if left < 0:
                            return
                        try:
                            record = json.loads(line)
                        except (ValueError, RecursionError):
                            continue
                        if isinstance(record, dict) and isinstance(record.get("seq"), int):
                            yield record
            except FileNotFoundError:
                continue


def _lines_backwards(file: int) -> Iterator[bytes]:
    end, rest = os.fstat(file).st_size, b""
    while end > 0:
        begin = max(0, end - BLOCK)
        data = os.pread(file, end - begin, begin) + rest
        first, *lines = data.split(b"\n")
        yield from (line for line in reversed(lines) if line)
        rest, end = first, begin
    if rest:
        yield rest
