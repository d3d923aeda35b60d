"""Which lines of a log are written: each once, and how often it came again.

Owns two limits over ``PERIOD_S``: a line that is the same, but for times, is written once; of lines of one kind, which differ in details,
``LINES_A_KIND``.  What was left out is told with its number when the period is over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

PERIOD_S = 60
LINES_A_KIND = 20
MAX_KINDS = 1_000


@dataclass(slots=True)
class _Kind:
    """Lines of one place in the code.  ``texts``: those written, with how often each came again; ``others``: of more different ones."""

    newest: logging.LogRecord
    since_s: float
    texts: dict[str, int] = field(default_factory=dict)
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
        text = record.getMessage()
        if text in kind.texts:
            kind.texts[text] += 1
        elif len(kind.texts) >= LINES_A_KIND:
            kind.others += 1
            kind.newest = record
        else:
            kind.texts[text] = 0
            yield record

    def overdue(self, now_s: float) -> Iterator[logging.LogRecord]:
        """What to say of the lines whose period is over."""
        # The clock may have been set back.
        over = [key for key, kind in self._kinds.items() if not 0 <= now_s - kind.since_s < PERIOD_S]
        for key in over:
            kind = self._kinds.pop(key)
            for text, times in kind.texts.items():
                if times:
                    yield _told(kind.newest, now_s, f"repeated {times} times in {PERIOD_S} s: {text}", times)
            if kind.others:
                text = f"{kind.others} more lines of this kind in {PERIOD_S} s, the newest: {kind.newest.getMessage()}"
                yield _told(kind.newest, now_s, text, kind.others)


def _told(record: logging.LogRecord, now_s: float, text: str, times: int) -> logging.LogRecord:
    told = logging.makeLogRecord({**vars(record), "msg": text, "args": (), "exc_info": None, "exc_text": None, "repeated": times})
    told.created = min(now_s, record.created + PERIOD_S)
    return told
