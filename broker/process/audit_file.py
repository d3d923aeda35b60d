"""The file of an audit log: JSON lines, rotated by size and number, written by a thread of its own.

Owns the folder ``DATA/ID/audit``: ``audit.jsonl`` is the newest file, ``audit.1.jsonl`` the one before.  Each record gets a number, one
more than the last; they go on after a restart.  A disk that is full or broken loses records, which are counted, and stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator

from broker.config.security import AuditConfig
from broker.security.audit import Record

FOLDER = "audit"
FILE = "audit.jsonl"
MAX_WAITING = 10_000  # records that are not written yet; more are lost
MAX_LOOKED_AT = 64 << 20  # bytes, for one question
BLOCK = 64 << 10
CLOSE_S = 10.0

_logger = logging.getLogger(__name__)

Work = Callable[[], None]


def file_audit(folder: str) -> Callable[[AuditConfig], FileAudit]:
    """Makes the audit log in a data folder."""
    return lambda config: FileAudit(os.path.join(folder, FOLDER), max_bytes=config.maxBytes, files=config.files)


class FileAudit:
    """Implements ``broker.security.audit.AuditSink``."""

    def __init__(self, folder: str, *, max_bytes: int, files: int) -> None:
        self._folder, self._max_bytes, self._files = folder, max_bytes, files
        self._path = os.path.join(folder, FILE)
        self._queue: queue.Queue[Record | Work | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lost = 0  # since they could be written last
        self._file: int | None = None
        self._size = 0
        self._number = -1  # of the last record; -1: not looked yet
        self._broken = ""

    def write(self, record: Record) -> None:
        if self._queue.qsize() >= MAX_WAITING:
            with self._lock:
                self._lost += 1
            return
        self._put(record)

    async def newest(self, count: int, after: int, wanted: Callable[[Record], bool]) -> list[Record]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Record]] = loop.create_future()

        def answered(found: list[Record], error: OSError | None) -> None:
            if not answer.done():
                answer.set_exception(error) if error is not None else answer.set_result(found)

        def look() -> None:
            found, error = list[Record](), None
            try:
                found = self._look(count, after, wanted)
            except OSError as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answered, found, error)

        self._put(look)
        return await answer

    async def close(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(thread.join, CLOSE_S)

    def _put(self, work: Record | Work) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                self._thread.start()
        self._queue.put(work)

    # In the thread

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            if callable(work):
                work()
            else:
                self._append(work)
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None
        with self._lock:
            self._thread = None

    def _append(self, record: Record) -> None:
        try:
            if self._file is None:
                self._open()
            with self._lock:
                lost, self._lost = self._lost, 0
            try:
                if lost:
                    keep: Record = {key: record[key] for key in ("at", "cluster", "group", "node") if key in record}
                    self._write_line({**keep, "action": "records lost", "allowed": True, "outcome": "LOST", "count": lost})
                    lost = 0
                self._write_line(record)
            except OSError:
                with self._lock:
                    self._lost += lost
                raise
        except OSError as error:
            with self._lock:
                self._lost += 1
            self._fails(error)
        else:
            if self._broken:
                _logger.warning("the audit log is written again", extra={"event": "audit_log_recovered"})
                self._broken = ""

    def _fails(self, error: OSError) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if not self._broken:
            self._broken = error.strerror or str(error)
            _logger.error(
                "the audit log cannot be written, its records are lost: %s: %s",
                self._path,
                self._broken,
                extra={"event": "audit_log_failed"},
            )

    def _open(self) -> None:
        os.makedirs(self._folder, 0o700, exist_ok=True)
        if self._number < 0:
            self._number = next((int(record.get("seq", 0)) for record in self._backwards()), 0)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            self._size += os.write(self._file, b"\n")  # a line that a full disk or a lost machine left half written

    def _write_line(self, record: Record) -> None:
        line = json.dumps({"seq": self._number + 1, **record}).encode() + b"\n"
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        written = os.write(self._file or 0, line)
        self._size += written
        if written < len(line):
            raise OSError(28, "the disk is full")
        self._number += 1

    def _rotate(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None
        names = self._names()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1])
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with contextlib.suppress(FileNotFoundError):
                os.rename(newer, older)
        self._open()

    def _names(self) -> list[str]:
        """Of all files, newest first."""
        base = self._path.removesuffix(".jsonl")
        return [self._path, *(f"{base}.{at}.jsonl" for at in range(1, self._files))]

    # Reading

    def _look(self, count: int, after: int, wanted: Callable[[Record], bool]) -> list[Record]:
        found: list[Record] = []
        for record in self._backwards():
            if int(record.get("seq", 0)) <= after or len(found) >= count:
                break
            if wanted(record):
                found.append(record)
        return found[::-1]

    def _backwards(self) -> Iterator[Record]:
        """Records, newest first, of ``MAX_LOOKED_AT`` bytes at most; what is no record is left out."""
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
