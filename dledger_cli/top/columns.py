"""Tables that fit a width: columns give way by their rank, and a number that grows does not move the others.

Owns the layout of a line; no colours, no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column.  ``width``: what it has at least; ``rank``: the highest goes first when there is no room; ``elastic``: takes the rest,
    and is cut."""

    title: str
    width: int = 0
    right: bool = True
    rank: int = 0
    elastic: bool = False


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The heading and the rows as lines of at most ``width`` characters."""
    wanted = [
        max(column.width, len(column.title), *(len(row[place]) for row in rows)) if rows else max(column.width, len(column.title))
        for place, column in enumerate(columns)
    ]
    shown = _fitting(columns, wanted, width)
    found = []
    for row in ([column.title for column in columns], *rows):
        parts = [_cell(row[place], columns[place], wanted[place]) for place in shown]
        found.append((" " * GAP).join(parts).rstrip()[:width])
    return found


def _fitting(columns: Sequence[Column], wanted: Sequence[int], width: int) -> list[int]:
    """Which columns have room beside each other."""
    shown = list(range(len(columns)))

    def used() -> int:
        needed = [columns[place].width if columns[place].elastic else wanted[place] for place in shown]
        return sum(needed) + GAP * (len(shown) - 1)

    while used() > width and any(columns[place].rank for place in shown):
        shown.remove(max(shown, key=lambda place: (columns[place].rank, place)))
    return shown


def _cell(text: str, column: Column, width: int) -> str:
    if column.elastic:
        return text
    return text.rjust(width) if column.right else text.ljust(width)
