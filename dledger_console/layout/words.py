"""Numbers, sizes and times as pages show them, and times as people type them."""

from __future__ import annotations

import time
from datetime import datetime

from dledger_client.admin.status_text import span as span
from dledger_wire.errors import InvalidArgumentError

TIME_HINT = "2026-01-31 12:00, or milliseconds since 1970"
NOT_KNOWN = "–"
SPACE = "\u202f"  # between the thousands


def number(value: float | None) -> str:
    """``12 345``; of small numbers one decimal place; ``–`` for None."""
    if value is None:
        return NOT_KNOWN
    text = f"{value:,.1f}" if isinstance(value, float) and abs(value) < 10 and value != int(value) else f"{value:,.0f}"
    return text.replace(",", SPACE)


def counted(count: int, what: str) -> str:
    """``1 message``, ``12 messages``."""
    return f"{number(count)} {what}" if count == 1 else f"{number(count)} {what}s"


def size(size_bytes: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def clock(at_ms: int) -> str:
    """Date and time of the console's machine, with its zone; ``–`` for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at_ms / 1000)) if at_ms else NOT_KNOWN


def ago(at_ms: int, now_ms: float) -> str:
    """``3 min ago``."""
    return f"{span(now_ms - at_ms)} ago" if now_ms - at_ms >= 1_000 else "now"


def stored_at(at_ms: int) -> str:
    """A time to the millisecond; ``–`` for 0."""
    if not at_ms:
        return NOT_KNOWN
    day, hour, where = clock(at_ms).split(" ", 2)
    return f"{day} {hour}.{at_ms % 1000:03d} {where}"


def zone() -> str:
    """The time zone of the console's machine."""
    return time.strftime("%Z")


def time_of_day(at_ms: int) -> str:
    """A time to the millisecond, with its date unless that is today; of the zone that ``zone`` names."""
    at = time.localtime(at_ms / 1000)
    form = "%H:%M:%S" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S"
    return f"{time.strftime(form, at)}.{at_ms % 1000:03d}"


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of a number or of a date and time, of the console's time zone unless it has one."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise InvalidArgumentError(f"time {text!r}: expected a date and time such as {TIME_HINT}") from None
