"""Typed, case-insensitive access to the options that Spark passes to a source, and the units of their values.

Every mistake raises one line: option, value, what was expected.  Sizes, durations and timestamps are written ``64m``, ``1GiB``, ``15m``,
``2026-11-21``, or as a plain number; one-letter suffixes mean what they mean in Spark's own settings.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from dledger_client.runtime.argument_ranges import FIRST_TIME_MS, MAX_OFFSET
from dledger_wire.errors import InvalidArgumentError

SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
DURATIONS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER_WITH_UNIT = re.compile(r"(-?\d+)\s*([A-Za-z]*)")


def size(text: str) -> int:
    """Bytes."""
    return _whole(text, SIZES)


def duration_ms(text: str) -> int:
    """Milliseconds."""
    return _whole(text, DURATIONS_MS)


def moment_ms(text: str) -> int:
    """Milliseconds since 1970: a number of them, or an ISO date or time (UTC if it has no zone)."""
    if text.isdecimal():
        if not is_moment_ms(int(text)):
            raise ValueError(text)
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def is_moment_ms(value: int) -> bool:
    """Whether it can be a time, or 0: a number of seconds would be one in January 1970."""
    return value == 0 or FIRST_TIME_MS <= value <= MAX_OFFSET


def _whole(text: str, units: dict[str, int]) -> int:
    found = _NUMBER_WITH_UNIT.fullmatch(text)
    if found is None or found[2].lower() not in units:
        raise ValueError(text)
    return int(found[1]) * units[found[2].lower()]


# Options that Spark itself adds; it passes those of asynchronous progress tracking to the sink as well.
SPARK_OWN = (
    "path",
    "paths",
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)


class OptionParser:
    """The options of one read or write.

    ``known``: their names.  ``aliases``: other accepted names.  ``hints``: for names that are not supported, what to
    use instead.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        known: tuple[str, ...],
        aliases: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
    ) -> None:
        names = {name.lower() for name in (*known, *SPARK_OWN)}
        renamed = {alias.lower(): name.lower() for alias, name in (aliases or {}).items()}
        self._values: dict[str, str] = {}
        for key, value in sorted(options.items()):
            name = renamed.get(key.lower(), key.lower())
            if name not in names:
                raise InvalidArgumentError(f"option {key}: unknown; {_instead(key, (*known, *(aliases or ())), hints or {})}")
            if name in self._values:
                raise InvalidArgumentError(f"option {key}: set twice, under two names")
            self._values[name] = value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name.lower(), default)
        if value is None or not value.strip():
            raise InvalidArgumentError(f"option {name}: missing; expected a value")
        return value.strip()

    def optional(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return value.strip() if value is not None and value.strip() else None

    def words(self, name: str) -> tuple[str, ...]:
        """The items of a comma-separated list without duplicates; empty if the option is not set."""
        text = self.optional(name)
        return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))

    def number(self, name: str, default: int, *, least: int) -> int:
        return self._parsed(name, default, least, int, "a whole number")

    def size(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        """In bytes."""
        return self._parsed(name, default, least, size, "a size (64m, 1GiB, a number of bytes)", most)

    def duration_ms(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        return self._parsed(name, default, least, duration_ms, "a duration (500ms, 15m, a number of milliseconds)", most)

    def moment_ms(self, name: str) -> int:
        """A timestamp; the option must be set."""
        expected = "a time (milliseconds since 1970 of 13 digits, 2026-01-31, 2026-01-31T12:30:00+01:00)"
        return self._parsed(name, 0, 0, moment_ms, expected)

    def _parsed(self, name: str, default: int, least: int, parse: Callable[[str], int], expected: str, most: int | None = None) -> int:
        value = self.optional(name)
        if value is None:
            return default
        try:
            found = parse(value)
        except ValueError:
            found = least - 1
        if found < least or (most is not None and found > most):
            limit = "" if most is None else f" and at most {most}"
            raise InvalidArgumentError(f"option {name}: {value!r}; expected {expected} of at least {least}{limit}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        value = self.optional(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"option {name}: {value!r}; expected true or false")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, choices[0])
        if value.lower() not in choices:
            raise InvalidArgumentError(f"option {name}: {value!r}; expected one of {', '.join(choices)}")
        return value.lower()


def _instead(key: str, known: tuple[str, ...], hints: Mapping[str, str]) -> str:
    """Advice for an unknown option."""
    hint = next((text for name, text in hints.items() if key.lower() == name.lower()), None)
    if hint is None and key.lower().startswith("kafka."):
        hint = "Kafka client settings are not supported, remove it"
    if hint is not None:
        return hint
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), list(by_lower), n=1, cutoff=0.7)
    return f"did you mean {by_lower[near[0]]}?" if near else f"expected one of {', '.join(name for name in known if '.' not in name)}"
