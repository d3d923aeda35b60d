"""Writes operations to a file of JSON lines; a name that ends in ``.gz`` makes it gzip."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from dledger_drill.history.records import Operation, encode

FLUSH_SECONDS = 1.0
COMPRESSION = 3  # a third of the time of the default level, for a tenth more bytes


class HistoryWriter:
    """A new history file.  ``write`` may be called by any thread; lines reach the file within a second, or with ``flush``.

    What was flushed can be read even if the process is killed after it: also a gzip file is flushed at a block's end.
    """

    def __init__(self, path: Path) -> None:
        self._raw = path.open("wb")
        self._file: IO[bytes] = self._raw
        if path.name.endswith(".gz"):  # GzipFile is no IO by its type; write, flush and close are what is used here
            self._file = cast("IO[bytes]", gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=COMPRESSION))
        self._lines: list[bytes] = []
        self._lines_lock = threading.Lock()
        self._file_lock = threading.Lock()
        self._closed = threading.Event()
        self._flusher = threading.Thread(target=self._flush_each_second, name="history-flusher", daemon=True)
        self._flusher.start()

    def write(self, operation: Operation) -> None:
        line = encode(operation)
        with self._lines_lock:
            self._lines.append(line)

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        with self._file_lock:  # taken first: lines stay in the order in which they were written
            with self._lines_lock:
                lines, self._lines = self._lines, []
            if lines:
                self._file.write(b"".join(lines))
                self._file.flush()
                self._raw.flush()

    def close(self) -> None:
        self._closed.set()
        self._flusher.join()
        self.flush()
        if self._file is not self._raw:
            self._file.close()
        self._raw.close()

    def _flush_each_second(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
