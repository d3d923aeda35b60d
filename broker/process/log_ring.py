"""The newest lines of this process's log, kept in memory for requests over the network.

Owns their numbers, which rise by one a line and over restarts, so that a reader that follows a log sees each line once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

LEVELS = ("debug", "info", "warning", "error", "critical")
KEPT_LINES = 2_000
MAX_TEXT = 4_000  # characters of an event or a field
_NUMBERS_A_MS = 1_000  # a process writes fewer lines in a ms, in the long run


@dataclass(frozen=True, slots=True)
class LogLine:
    """``fields``: what is bound to the line, and its traceback."""

    number: int
    at_ms: int
    level: str
    event: str
    text: str
    logger: str
    fields: Mapping[str, str]


class LogRing:
    """Of one process.  Lines may come from any thread; ``wall_ms`` is the clock that the first number comes from."""

    def __init__(self, wall_ms: Callable[[], int], kept: int = KEPT_LINES) -> None:
        self._lines: deque[LogLine] = deque(maxlen=kept)
        self.newest = wall_ms() * _NUMBERS_A_MS

    def add(self, at_ms: int, level: str, event: str, text: str, logger: str, fields: Mapping[str, object]) -> None:
        self.newest += 1
        kept = {name: _cut(str(value)) for name, value in fields.items()}
        self._lines.append(LogLine(self.newest, at_ms, level, event, _cut(text), logger, kept))

    def tail(self, count: int, level: str = "", after: int = 0) -> list[LogLine]:
        """The newest lines, newest last: at most ``count``, of this level or worse, with a number greater than ``after``."""
        worse = LEVELS[LEVELS.index(level) :] if level else LEVELS
        newest_first = reversed(list(self._lines))
        found = (line for line in newest_first if line.number > after and line.level in worse)
        return list(islice(found, count))[::-1]


def _cut(text: str) -> str:
    """What can go over the wire: a file's name need not be UTF-8."""
    text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    return text.encode("utf-8", "backslashreplace").decode()
