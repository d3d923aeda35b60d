"""JSON from outside: what a file, a peer or a user gives.

Owns that everything that is no JSON, or none that can be passed on, is a ValueError: nesting too deep for the interpreter, numbers that are
not finite, and halves of surrogate pairs, which no UTF-8 text has.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


class NamedTwiceError(ValueError):
    """A name stands twice in one object; the text names it."""


def parse(data: str | bytes | bytearray, *, unique: bool = False) -> Any:
    """The value of a JSON text.  ValueError for anything else; with ``unique``, NamedTwiceError for an object with a name twice."""
    try:
        value = (_unique_decoder if unique else _decoder).decode(data if isinstance(data, str) else bytes(data).decode("utf-8-sig"))
        if ("\\u" if isinstance(data, str) else b"\\u") in data:  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise NamedTwiceError(name)
        found[name] = value
    return found


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
_unique_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number, object_pairs_hook=_once)
