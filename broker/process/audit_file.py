"""The files of an audit log, written by a thread of their own.

Owns the folder ``DATA/ID/audit``.  Records of administrators and nodes are in ``audit.jsonl`` and its rotated files, all others in
``audit-users.jsonl``: whatever other users and strangers do, it cannot push out the first.  Each record gets a number, one more than the
last; they go on after a restart.  A disk that is full or broken loses records, which are counted, and stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator

from broker.config.security import AuditConfig
from broker.process.rotated_lines import RotatedLines
from broker.security.audit import Record

FOLDER = "audit"
FILE, USERS_FILE = "audit.jsonl", "audit-users.jsonl"
MAX_WAITING = 10_000  # records that are not written yet; more are lost
CLOSE_S = 10.0

_logger = logging.getLogger(__name__)

Work = Callable[[], None]


def file_audit(folder: str) -> Callable[[AuditConfig], FileAudit]:
    """Makes the audit log in a data folder."""
    return lambda config: FileAudit(os.path.join(folder, FOLDER), max_bytes=config.maxBytes, files=config.files)


class FileAudit:
    """Implements ``broker.security.audit.AuditSink``."""

    def __init__(self, folder: str, *, max_bytes: int, files: int) -> None:
        self._trusted, self._others = (
            RotatedLines(os.path.join(folder, name), max_bytes=max_bytes, files=files) for name in (FILE, USERS_FILE)
        )
        self._queue: queue.Queue[tuple[RotatedLines, Record] | Work | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lost = 0  # since they could be written last
        self._number = -1  # of the last record; -1: not looked yet
        self._broken = ""

    def write(self, record: Record, *, trusted: bool = False) -> None:
        if self._queue.qsize() >= MAX_WAITING:
            with self._lock:
                self._lost += 1
            return
        self._put((self._trusted if trusted else self._others, record))

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

    def _put(self, work: tuple[RotatedLines, Record] | Work) -> None:
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
                self._append(*work)
        self._trusted.close()
        self._others.close()
        with self._lock:
            self._thread = None

    def _append(self, lines: RotatedLines, record: Record) -> None:
        with self._lock:
            lost, self._lost = self._lost, 0
        try:
            if self._number < 0:
                self._number = next((int(each["seq"]) for each in self._backwards()), 0)
            if lost:
                keep: Record = {key: record[key] for key in ("at", "cluster", "group", "node") if key in record}
                self._write(lines, {**keep, "action": "records lost", "allowed": True, "outcome": "LOST", "count": lost})
                lost = 0
            self._write(lines, record)
        except OSError as error:
            with self._lock:
                self._lost += lost + 1
            self._fails(lines, error)
        else:
            if self._broken:
                _logger.warning("the audit log is written again", extra={"event": "audit_log_recovered"})
                self._broken = ""

    def _write(self, lines: RotatedLines, record: Record) -> None:
        lines.append({"seq": self._number + 1, **record})
        self._number += 1

    def _fails(self, lines: RotatedLines, error: OSError) -> None:
        if not self._broken:
            self._broken = error.strerror or str(error)
            _logger.error(
                "the audit log cannot be written, its records are lost: %s: %s",
                lines.path,
                self._broken,
                extra={"event": "audit_log_failed"},
            )

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
        """The records of all files, newest first."""
        return heapq.merge(self._trusted.backwards(), self._others.backwards(), key=lambda record: int(record["seq"]), reverse=True)
