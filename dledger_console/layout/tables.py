"""Tables of a bounded size: a page of rows at a time goes to the browser, however many there are.

Texts are shown as texts whatever is in them; a cell is a text, a number, an amount or a link to a page of the console.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from nicegui import ui

from dledger_console.layout.words import number
from dledger_wire.printable import printable

ROWS, MAX_ROWS = 50, 500
NOT_YET = "not known yet"  # true however long there is no answer
Cell: TypeAlias = "str | int | float | Link | Mark | Amount | None"

# The cell decides what it is; the text is bound and never taken as markup.
CELL = Path(__file__).with_name("cell.html").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to another page."""

    text: str
    target: str

    @classmethod
    def to(cls, text: str, path: str, **query: str) -> Link:
        """A link to a page of the console."""
        return cls(text, link(path, **query))


@dataclass(frozen=True, slots=True)
class Mark:
    """A cell with a colour: ``kind`` is good, warn or bad."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Amount:
    """A cell that is shown as a text and ordered by a number."""

    text: str
    order: float


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in the rows, its heading; numbers stand right, notes wrap."""

    name: str
    label: str
    number: bool = False
    note: bool = False


def link(path: str, **query: str) -> str:
    """The address of a page of the console, whatever its names have in them."""
    return f"{path}?{urlencode(query)}" if query else path


class BoundedTable:
    """A table whose rows stay here; ``set_rows`` replaces them and keeps page, order and what is searched for."""

    def __init__(
        self, columns: Sequence[Column], *, key: str, rows: int = ROWS, search: bool = False, empty: str = "nothing here", label: str = ""
    ) -> None:
        self._columns = columns
        self._key = key
        self._all: Sequence[Mapping[str, Cell]] = ()
        self._sought = ""
        self._page, self._per_page = 1, rows
        self._by, self._descending = "", False
        self._sent: object = None  # what the browser shows: the same is not sent again
        if search:
            field = ui.input(placeholder="Search  ( / )", on_change=lambda event: self._search(str(event.value or "")))
            field.props('dense outlined clearable debounce=250 aria-label="Search"').classes("search")
        shown = [
            {
                "name": column.name,
                "label": column.label,
                "field": column.name,
                "align": "right" if column.number else "left",
                "sortable": True,
                "classes": "note" if column.note else "",
            }
            for column in columns
        ]
        self.table = ui.table(columns=shown, rows=[], row_key=key, pagination=self._pagination(0))
        self.table.classes("bounded").props["no-data-label"] = NOT_YET
        self._empty = empty
        self.table.props("flat dense binary-state-sort")
        if label:
            self.table.props["aria-label"] = label
        self.table.add_slot("body-cell", CELL)
        # A table says at its start what it was made with; rows that came in between count.
        self.table.on_pagination_change(lambda _: self._show(again=True))
        self.table.on("request", lambda event: self._turn(event.args.get("pagination") if isinstance(event.args, dict) else None))

    def set_rows(self, rows: Sequence[Mapping[str, Cell]], *, unknown: str = "") -> None:
        """Show these rows; each has a value for ``key`` that no other one has.  ``unknown``: why there may be others."""
        self._all = rows
        self.table.props["no-data-label"] = unknown or self._empty
        self._show()

    def not_answered(self) -> None:
        """There was no answer: rows that are there stay, and without any it does not say that it is still asking."""
        self.table.props["no-data-label"] = self._empty

    def on_row(self, act: Callable[[str], object]) -> None:
        """Call ``act`` with the key of a row that was clicked."""
        self.table.on("rowClick", lambda event: act(str(event.args[1][self._key])), [[], [self._key], None])

    def _search(self, text: str) -> None:
        self._sought = text.casefold()
        self._page = 1
        self._show()

    def _turn(self, asked: object) -> None:
        """The browser asks for another page or order; what it sends is checked, for it may be anything."""
        if not isinstance(asked, dict):
            return
        page, per_page, by = asked.get("page"), asked.get("rowsPerPage"), asked.get("sortBy")
        self._page = page if isinstance(page, int) and page > 0 else 1
        if isinstance(per_page, int):  # 0: all
            self._per_page = min(per_page, MAX_ROWS) if per_page > 0 else MAX_ROWS
        self._by = by if isinstance(by, str) and any(by == column.name for column in self._columns) else ""
        self._descending = asked.get("descending") is True
        self._show(again=True)

    def _pagination(self, count: int) -> dict[str, Any]:
        order = {"sortBy": self._by or None, "descending": self._descending}
        return {"page": self._page, "rowsPerPage": self._per_page, "rowsNumber": count, **order}

    def _show(self, *, again: bool = False) -> None:
        """``again``: the browser has asked, and waits for an answer."""
        found = [row for row in self._all if not self._sought or any(self._sought in _text(cell).casefold() for cell in row.values())]
        if self._by:
            found.sort(key=lambda row: _order(row.get(self._by)), reverse=self._descending)
        self._page = min(self._page, max(1, -(-len(found) // self._per_page)))
        start = (self._page - 1) * self._per_page
        rows = [{name: _shown(cell) for name, cell in row.items()} for row in found[start : start + self._per_page]]
        shown = (rows, self._pagination(len(found)), self.table.props["no-data-label"])
        if shown == self._sent and not again:
            return
        self._sent = shown
        self.table.props["hide-pagination"] = len(found) <= self._per_page
        self.table.pagination = shown[1]
        self.table.rows = rows
        self.table.update()


def _shown(cell: Cell) -> Any:
    if isinstance(cell, Link):
        return {"text": printable(cell.text), "target": cell.target}
    if isinstance(cell, Mark):
        return {"text": printable(cell.text), "mark": cell.kind}
    if isinstance(cell, Amount):
        return printable(cell.text)
    return printable(cell) if isinstance(cell, str) else number(cell) if isinstance(cell, int) else cell


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Link | Mark | Amount) else "" if cell is None else str(cell)


def _order(cell: Cell) -> tuple[int, float, str]:
    if isinstance(cell, int | float | Amount):
        return (1, cell.order if isinstance(cell, Amount) else cell, "")
    text = _text(cell)
    return (0, 0.0, "") if not text else (2, 0.0, text.casefold())
