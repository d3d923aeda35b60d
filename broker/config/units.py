"""Sizes and durations as people write them: ``1GiB``, ``256 KiB``, ``48h``, ``250ms``.

Owns parsing and printing.  A bare number keeps the meaning the setting has in RocketMQ, so the caller names that unit.
"""

from __future__ import annotations

import re

SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_SIZE_BY_LOWER = {unit.lower(): factor for unit, factor in SIZE_UNITS.items()}
MAX_DIGITS = 30
_NUMBER_WITH_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(value: object) -> int:
    """Bytes of ``1GiB`` or of a bare number of bytes.  ValueError says what was expected."""
    number, unit = _split(value, "a size such as 1GiB, 256KiB or a number of bytes")
    factor = _SIZE_BY_LOWER.get(unit.lower() or "b")
    if factor is None:
        raise ValueError(f"expected a size such as 1GiB, 256KiB or a number of bytes, got {value!r}")
    size = number * factor
    if size != int(size):
        raise ValueError(f"expected a whole number of bytes, got {value!r}")
    return int(size)


def parse_duration_ms(value: object, bare_unit: str = "ms") -> int:
    """Milliseconds of ``48h`` or ``250ms``; a bare number counts in ``bare_unit``.  ValueError says what was expected."""
    expected = f"a duration such as 250ms, 5s, 10m, 48h or 3d (a bare number counts in {bare_unit})"
    number, unit = _split(value, expected)
    factor = DURATION_UNITS_MS.get(unit or bare_unit)
    if factor is None or number * factor != int(number * factor):
        raise ValueError(f"expected {expected}, got {value!r}")
    return int(number * factor)


def format_size(size_bytes: float) -> str:
    """``1536`` -> ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def format_duration_ms(duration_ms: float) -> str:
    """``250`` -> ``250 ms``, ``31000`` -> ``31 s``, ``172800000`` -> ``2.0 d``."""
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 120_000:
        return f"{duration_ms / 1_000:.0f} s"
    if duration_ms < 7_200_000:
        return f"{duration_ms / 60_000:.0f} min"
    if duration_ms < 172_800_000:
        return f"{duration_ms / 3_600_000:.1f} h"
    return f"{duration_ms / 86_400_000:.1f} d"


def span(ms: int) -> str:
    """A signed duration: how far a clock is ahead or behind."""
    return f"{'+' if ms >= 0 else '-'}{format_duration_ms(abs(ms))}"


def _split(value: object, expected: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected {expected}, got {value!r}")
    if isinstance(value, (int, float)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"expected {expected}, got {value!r}")
        return value, ""
    match = _NUMBER_WITH_UNIT.fullmatch(value)
    if match is None:
        raise ValueError(f"expected {expected}, got {value!r}")
    text = match.group(1)
    if len(text) > MAX_DIGITS:
        raise ValueError(f"expected {expected}, got a number of {len(text)} digits")
    return (float(text) if "." in text else int(text)), match.group(2)
