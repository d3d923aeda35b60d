"""Message bodies as they may be shown: text, JSON or a hex dump, cut to a size that a page can hold.

Owns the limits.  Text passes ``dledger_wire.printable``: no control character of a body reaches a page.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dledger_wire.printable import printable, printable_lines

PREVIEW_CHARS = 120
TEXT_BYTES = 64 << 10
JSON_BYTES = 256 << 10  # larger bodies are not parsed
HEX_BYTES = 4 << 10
HEX_ROW = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPEN, _CLOSE = ("{", "["), ("}", "]")

Form: TypeAlias = Literal["text", "json", "hex"]


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body in one form.

    Attributes:
        form: ``text``, ``json`` or ``hex``.
        text: What to show; lines and tabs stay, other control characters are escaped.
        shown_bytes: How many bytes of the body ``text`` stands for.
        size_bytes: How many bytes the body has.
    """

    form: Form
    text: str
    shown_bytes: int
    size_bytes: int

    @property
    def cut(self) -> bool:
        """Whether the body is longer than what is shown."""
        return self.shown_bytes < self.size_bytes


def preview(body: bytes, chars: int = PREVIEW_CHARS) -> str:
    """The start of a body on one line."""
    text = printable(_decoded(body[: 4 * chars], len(body)))
    return text if len(text) <= chars else text[: chars - 1] + "…"


def best_form(body: bytes) -> Form:
    """JSON for an object or an array, hex for what is not UTF-8, text for the rest."""
    try:
        body[:TEXT_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.start < len(body[:TEXT_BYTES]) - 3:  # not a character cut in half
            return "hex"
    return "json" if parsed(body) is not None else "text"


def parsed(body: bytes) -> dict[str, Any] | list[Any] | None:
    """The object or array that a body is in JSON; None for anything else, and for bodies that are too large to look."""
    if len(body) > JSON_BYTES or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def view(body: bytes, form: Form) -> BodyView:
    """A body in one form; JSON that is none is shown as text."""
    if form == "hex":
        return BodyView("hex", hex_dump(body[:HEX_BYTES]), min(len(body), HEX_BYTES), len(body))
    if form == "json" and parsed(body) is not None and (whole := _indented(_json_text(body))) is not None:
        return BodyView("json", printable_lines(whole), len(body), len(body))
    part = body[:TEXT_BYTES]
    return BodyView("text", printable_lines(_decoded(part, len(body))), len(part), len(body))


def _json_text(body: bytes) -> str:
    """As ``json.loads`` decodes it: halves of surrogate pairs, which some writers encode one by one, are no error."""
    return body.decode(json.detect_encoding(body), "surrogatepass")


def _indented(text: str) -> str | None:
    """JSON with a line for each value: numbers and repeated names as they were sent, which values of Python do not keep; escaped characters
    of strings as themselves.  None when it is too long: a short body of deep nesting has lines that are mostly indentation."""
    parts: list[str] = []
    depth, before, left = 0, "", 2 * JSON_BYTES
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth -= token in _CLOSE
        is_empty = token in _CLOSE and before in _OPEN
        gap = ""
        if not is_empty and (before in (*_OPEN, ",") or token in _CLOSE):
            gap = "\n" + depth * "  "
        elif before == ":":
            gap = " "
        shown = json.dumps(json.loads(token), ensure_ascii=False) if "\\" in token else token
        parts += (gap, shown)
        depth += token in _OPEN
        before = token
        left -= len(gap) + len(shown)
        if left < 0:
            return None
    return "".join(parts)


def hex_dump(data: bytes) -> str:
    """Rows of an offset, sixteen bytes in hex, and their ASCII characters."""
    rows = []
    for at in range(0, len(data), HEX_ROW):
        row = data[at : at + HEX_ROW]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * HEX_ROW - 1}}  {shown}")
    return "\n".join(rows)


def _decoded(part: bytes, whole_bytes: int) -> str:
    """UTF-8, with other bytes as ``\\x..``; a character that the cut went through is left out."""
    if len(part) < whole_bytes:
        for back in range(1, 4):
            lead = part[-back] if len(part) >= back else 0
            if lead & 0xC0 == 0xC0:
                length = 2 if lead & 0xE0 == 0xC0 else 3 if lead & 0xF0 == 0xE0 else 4
                part = part[:-back] if length > back else part
                break
            if lead & 0x80 == 0:
                break
    return part.decode("utf-8", "backslashreplace")
