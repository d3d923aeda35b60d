"""The picture of ``dledger top``: its sections under each other, each with its share of the terminal.

Owns colours and shares; the words are those of ``text.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text

from dledger_cli.top.model import View
from dledger_cli.top.text import ORDERS, Order, Section, State, clock_text, sections
from dledger_wire.printable import printable

COLOURS: Mapping[State, str] = {"good": "", "warning": "yellow", "bad": "red"}
LEAST_ROWS = {"groups": 1, "nodes": 3, "consumers": 2, "changes": 1}  # of each section, before any gets more
FOOTER = "q quit   n name   r rate   l lag   d disk   p pause   up/down nodes"


@dataclass(slots=True)
class Choice:
    """What the keys have chosen.  ``first_node``: how many rows of nodes are scrolled away."""

    order: Order = "name"
    paused: bool = False
    first_node: int = 0
    quit: bool = False

    def press(self, key: str) -> None:
        """A key was pressed; unknown ones do nothing."""
        by_letter = {order[0]: order for order in ORDERS}
        if key in by_letter:
            self.order, self.first_node = by_letter[key], 0
        elif key in ("q", "Q", "escape"):
            self.quit = True
        elif key in ("p", " "):
            self.paused = not self.paused
        elif key in ("up", "k"):
            self.first_node = max(0, self.first_node - 1)
        elif key in ("down", "j"):
            self.first_node += 1


def picture(view: View, choice: Choice, width: int, height: int, trouble: str = "") -> Text:
    """``view`` as it fits ``width`` x ``height``; ``trouble`` is why the newest look failed."""
    tables = sections(view, width, choice.order)
    head = _head(view, choice, width, trouble)
    footer = Text(f"{FOOTER}   (by {choice.order})"[:width], style="dim")
    remarks = {"consumers": view.consumers_trouble}
    rooms = shares({name: len(table.rows) for name, table in tables.items()}, height - len(head) - 1 - 2 * len(tables))
    lines = [*head]
    for name, table in tables.items():
        if name == "nodes":
            choice.first_node = min(choice.first_node, max(0, len(table.rows) - rooms[name]))
        first = choice.first_node if name == "nodes" else 0
        lines += [Text(""), *_table(table, rooms[name], first, width, remarks.get(name, ""))]
    lines = lines[: max(1, height - 1)]
    lines += [Text("")] * (height - 1 - len(lines))
    return Text("\n").join([*lines, footer])


def _head(view: View, choice: Choice, width: int, trouble: str) -> list[Text]:
    state: State = "good" if view.healthy else "warning" if view.takes_messages else "bad"
    paused = "   paused: p goes on" if choice.paused else ""
    first = Text(printable(f"{view.cluster}   {clock_text(view.at_ms)}{paused}")[:width], style="bold")
    words = Text(printable(view.sentence)[:width], style=COLOURS[state] or "green")
    return [first, words, *([Text(printable(f"not of now: {trouble}")[:width], style="red")] if trouble else [])]


def _table(table: Section, room: int, first: int, width: int, remark: str) -> list[Text]:
    """The heading and ``room`` rows from ``first`` on; when some are missing, the heading says how many there are."""
    count, shown = len(table.rows), table.rows[first : first + room]
    heading = table.heading
    missing = f"rows {first + 1}-{first + len(shown)} of {count}" if len(shown) < count else ""
    if text := "   ".join(part for part in (missing, remark) if part):
        heading = f"{heading[: max(0, width - len(text) - 3)]}   {text}"[:width]
    return [Text(heading, style="bold"), *(Text(line, style=COLOURS[state]) for line, state in shown)]


def shares(counts: Mapping[str, int], room: int) -> dict[str, int]:
    """How many rows each section shows, of ``room`` in all: its least first, then as each has more rows, in turn."""
    given = {name: min(count, LEAST_ROWS[name]) for name, count in counts.items()}
    left = room - sum(given.values())
    while left > 0 and any(given[name] < count for name, count in counts.items()):
        for name, count in counts.items():
            if given[name] < count and left > 0:
                given[name] += 1
                left -= 1
    return given
