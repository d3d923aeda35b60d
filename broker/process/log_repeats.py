"""Which lines of a log are written: each once, and how often it came again.

Owns two limits over ``PERIOD_S``: a line that is the same, with its fields and where its exception came from, is written once; of lines
of one kind, which differ in details, ``LINES_A_KIND``.  The number of lines left out is logged when the period is over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

PERIOD_S = 60
LINES_A_KIND = 20
MAX_KINDS = 1_000
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass(slots=True)
class _Kind:
    """Lines of one place in the code.  ``written``: with how often each came again; ``others``: of more different ones."""

    newest: logging.LogRecord
    since_s: float
    written: dict[str, tuple[logging.LogRecord, int]] = field(default_factory=dict)
    others: int = 0


class RepeatLimit:
    """Of one process.  Not for several threads at once."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def passed(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """What is to be written now: what is overdue, and ``record`` unless it is left out."""
        yield from self.overdue(record.created)
        key = (record.name, record.levelno, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                yield record
                return
            kind = self._kinds[key] = _Kind(record, record.created)
        line = _line(record)
        if line in kind.written:
            first, times = kind.written[line]
            kind.written[line] = first, times + 1
        elif len(kind.written) >= LINES_A_KIND:
            kind.others += 1
            kind.newest = record
        else:
            kind.written[line] = record, 0
            yield record

    def overdue(self, now_s: float, *, at_end: bool = False) -> Iterator[logging.LogRecord]:
        """What to say of the lines whose period is over; ``at_end`` of all."""
        # The clock may have been set back.
        over = [key for key, kind in self._kinds.items() if at_end or not 0 <= now_s - kind.since_s < PERIOD_S]
        for key in over:
            kind = self._kinds.pop(key)
            passed_s = min(max(now_s - kind.since_s, 0), PERIOD_S)
            within = f"in {passed_s:.0f} s" if passed_s >= 1 else "within a second"
            for first, times in kind.written.values():
                if times:
                    yield _summary(first, kind.since_s + passed_s, f"repeated {times} times {within}: {first.getMessage()}", times)
            if kind.others:
                text = f"{kind.others} more lines of this kind {within}, the newest: {kind.newest.getMessage()}"
                yield _summary(kind.newest, kind.since_s + passed_s, text, kind.others)


def _line(record: logging.LogRecord) -> str:
    """What makes two lines of one kind the same: text, fields, and the type and place of an exception."""
    fields = [f"{name}={value}" for name, value in vars(record).items() if name not in _OF_EVERY_RECORD]
    parts = [record.getMessage(), *fields]
    if record.exc_info and record.exc_info[0] is not None:
        kind, _error, trace = record.exc_info
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        parts += [kind.__name__, f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""]
    return "\n".join(parts)


def _summary(record: logging.LogRecord, at_s: float, text: str, times: int) -> logging.LogRecord:
    summary = logging.makeLogRecord({**vars(record), "msg": text, "args": (), "exc_info": None, "exc_text": None, "repeated": times})
    summary.created = at_s
    return summary
