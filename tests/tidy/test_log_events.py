"""Every warning and error of a server names an event that the documentation explains, and every event is logged somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/events.md"
ROWS = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
EVENTS = {name: (meaning, action) for name, meaning, action in ROWS}
SERVERS = ("broker", "store", "dledger", "dledger_wire")
MUST = ("warning", "error", "exception", "critical", "log")


def calls() -> Iterator[tuple[str, str, str | None]]:
    """Place, method and event of every call of a logger."""
    for file in (file for folder in SERVERS for file in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "logger" in ast.unparse(node.func.value):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.func.attr, _event(node)


def _event(call: ast.Call) -> str | None:
    found = ast.unparse(call)
    return found.partition("'event': '")[2].partition("'")[0] or None


def test_every_warning_and_error_names_an_event_of_the_page() -> None:
    found = [(place, event) for place, method, event in calls() if method in MUST]
    assert len(found) > 70
    unnamed = [place for place, event in found if event not in EVENTS]
    assert not unnamed, f"name an event of docs/reference/events.md, as extra={{'event': ...}}: {unnamed}"


def test_every_event_of_the_page_is_logged() -> None:
    logged = {event for _place, _method, event in calls()} | _assigned()
    assert sorted(set(EVENTS) - logged) == []


def _assigned() -> set[str]:
    """Events that stand in a dictionary beside the call."""
    text = "".join(file.read_text(encoding="utf-8") for folder in SERVERS for file in (ROOT / folder).rglob("*.py"))
    return {name for name in EVENTS if f'"event": "{name}"' in text}


def test_names_are_words_and_stand_once() -> None:
    assert len(ROWS) == len(EVENTS)
    assert all(name.replace("_", "").isalpha() and name == name.lower() for name in EVENTS)
    assert all(meaning.endswith(".") and action.endswith((".", ").")) for meaning, action in EVENTS.values())
