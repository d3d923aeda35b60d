"""Parses sizes, durations and timestamps of options: ``64m``, ``1GiB``, ``15m``, ``2026-11-21``, or a plain number.

Raises ValueError for other text.  One-letter suffixes mean what they mean in Spark's own settings.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from dledger_client.runtime.argument_ranges import FIRST_TIME_MS, MAX_OFFSET

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
