"""A node's log: JSON, one object a line, for programs; columns where stderr is a terminal.

Owns how records are rendered and what is bound to each: group and node, and the Raft term where there is one.  Callers use the standard
``logging`` module, so that code under the simulator needs nothing of this.  The keys of a line: ``at`` (UTC), ``level``, what is bound,
``event`` (a stable name, see docs/reference/events.md), ``text``, ``logger``, and the fields of the event.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler

import structlog
from structlog.typing import EventDict, Processor

from broker.process.log_repeats import RepeatLimit
from broker.process.log_ring import LogRing
from dledger_wire.printable import printable, printable_json

LOG_EVERY_S = 10.0
_OWN_KEYS = ("at", "level", "event", "text", "logger")
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31;1m"}
_RESET = "\x1b[0m"


class _LogFile(WatchedFileHandler):
    """Says once on stderr that it cannot be written, and again after it could be; never with a traceback for each line."""

    _written = _is_reported = False

    def emit(self, record: logging.LogRecord) -> None:
        self._written = True
        try:
            super().emit(record)
        except OSError:  # it was moved away, and cannot be reopened
            self.handleError(record)
        self._is_reported = not self._written

    def handleError(self, record: logging.LogRecord) -> None:
        self._written, error = False, sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_reported:
            with suppress(OSError):
                print(f"dledger: {self.baseFilename}: log lines are lost: {error.strerror}", file=sys.stderr, flush=True)


class ProcessLog(logging.Handler):
    """The one handler of a process.  ``term`` is replaced by what gives the Raft term, None for none."""

    def __init__(self, output: logging.Handler, ring: LogRing, place: Mapping[str, str]) -> None:
        super().__init__()
        self.ring = ring
        self.term: Callable[[], int | None] = lambda: None
        self._place, self._output, self._limit = dict(place), output, RepeatLimit()

    def place(self, **names: str) -> None:
        """What stands on every line from now on."""
        self._place = {**self._place, **names}

    def bound(self) -> Mapping[str, object]:
        """What stands on every line now."""
        term = self.term()
        return self._place if term is None else {**self._place, "term": term}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for each in self._limit.passed(record):
                self._output.handle(each)
        except Exception:  # noqa: BLE001 - arguments that do not fit their text are no fault of what goes on after the line
            self.handleError(record)

    def write_repeats(self, *, at_end: bool = True) -> None:
        """Say of the lines that were left out how often they came: of those whose period is over; of all when the process ends."""
        self.acquire()
        try:
            for each in self._limit.overdue(time.time(), at_end=at_end):
                self._output.handle(each)
        finally:
            self.release()

    @asynccontextmanager
    async def writing_repeats(self, every_s: float = LOG_EVERY_S) -> AsyncIterator[None]:
        """Meanwhile, what was left out is logged soon after its period is over, though nothing else is."""

        async def log_left_out() -> None:
            while True:
                await asyncio.sleep(every_s)
                self.write_repeats(at_end=False)

        logging_task = asyncio.create_task(log_left_out(), name="tell repeats")
        try:
            yield
        finally:
            logging_task.cancel()

    def close(self) -> None:
        self._output.close()
        super().close()


def configure_logging(*, group: str, node: str, ring: LogRing, log_file: str = "", level: int = logging.INFO) -> ProcessLog:
    """Send every record of this process to ``log_file`` or stderr, and keep the newest in ``ring``."""
    output: logging.Handler = _LogFile(log_file, encoding="utf-8") if log_file else logging.StreamHandler(sys.stderr)
    log = ProcessLog(output, ring, {name: value for name, value in (("group", group), ("node", node)) if value})
    output.setFormatter(_formatter(log, _for_person if not log_file and sys.stderr.isatty() else _for_program))
    root = logging.getLogger()
    root.handlers[:] = [log]
    root.setLevel(level)
    return log


def _formatter(log: ProcessLog, render: Processor) -> logging.Formatter:
    def bind(_logger: object, _name: str, event: EventDict) -> EventDict:
        record: logging.LogRecord = event["_record"]
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = event.pop("event")
        return {"at": at, "level": record.levelname.lower(), **log.bound(), "event": "", "text": text, "logger": record.name, **event}

    def keep(_logger: object, _name: str, event: EventDict) -> EventDict:
        record: logging.LogRecord = event["_record"]
        fields = {name: value for name, value in event.items() if name not in _OWN_KEYS and not name.startswith("_")}
        log.ring.add(int(record.created * 1000), event["level"], event["event"], event["text"], event["logger"], fields)
        return event

    chain: list[Processor] = [bind, structlog.stdlib.ExtraAdder(), structlog.processors.format_exc_info, keep]
    final: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=chain, processors=final)


def _for_program(_logger: object, _name: str, event: EventDict) -> str:
    """Nothing in a log line can move a reader's cursor, or look like another line."""
    return printable_json({name: value for name, value in event.items() if value or name != "event"}, default=str)


def _for_person(_logger: object, _name: str, event: EventDict) -> str:
    """Time, level, text, and behind it the event and its fields; a traceback goes on its own lines."""
    level, trace = str(event["level"]), event.pop("exception", None)
    place = " ".join(str(event.pop(name)) for name in ("group", "node") if name in event)
    behind = [
        f"{name}={printable(str(event[name]))}" for name in event if name not in ("at", "level", "text", "logger") and event[name] != ""
    ]
    line = f"{event['at'][11:]}  {level.upper():8}  {place}  {printable(str(event['text']))}"
    if behind:
        line += f"  ({' '.join(behind)})"
    if level in _COLOURS and not os.environ.get("NO_COLOR"):
        line = f"{_COLOURS[level]}{line}{_RESET}"
    return line if trace is None else "\n".join([line, *(f"    {printable(each)}" for each in str(trace).splitlines())])
