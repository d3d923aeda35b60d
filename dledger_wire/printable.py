"""Text from outside, as it may be shown: names, keys, tags, properties, bodies, texts of errors, addresses.

Owns what is escaped: whatever ``str.isprintable`` does not hold for (escape sequences of terminals, C1 controls, line ends, characters that
turn the direction of writing around or cannot be seen, halves of surrogate pairs), but for spaces of other widths.  Everything that prints
to a terminal or a log uses these functions, so no text can move the cursor, colour, hide or fake a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Candidates only: a character that is printable after all, or a space, stays.
_CANDIDATE = re.compile(r"[^\x20-\x7e\u00a1-\u00ac\u00ae-\u024f\u0370-\u03ff\u3041-\u30ff\u4e00-\u9fff]")
_SPACES = frozenset("\u00a0\u2002\u2003\u2009\u202f\u3000")
_KEPT_IN_BODIES = frozenset("\n\t")


def printable(text: str) -> str:
    """``text`` on one line, with ``\\x1b`` and the like in place of what may not be shown."""
    return text if text.isprintable() else _CANDIDATE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """As ``printable``, for a text of several lines: line ends and tabs stay."""
    return _CANDIDATE.sub(lambda found: found[0] if found[0] in _KEPT_IN_BODIES else _escaped(found), text)


def printable_body(body: bytes) -> str:
    """A message body for a terminal: lines and tabs stay, bytes that are no UTF-8 become ``\\x..``."""
    return printable_lines(body.decode("utf-8", "backslashreplace"))


def printable_json(value: object, *, default: Callable[[Any], Any] | None = None) -> str:
    """``value`` as JSON on one line that can be shown, and means the same.  ``default``: as of ``json.dumps``."""
    text = json.dumps(value, ensure_ascii=False, default=default)
    return text if text.isprintable() else _CANDIDATE.sub(_json_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() or character in _SPACES:
        return character
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _json_escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() or character in _SPACES:
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
