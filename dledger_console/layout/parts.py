"""Small parts that pages share: figures, lists of facts, what did not answer, and questions with fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from nicegui import ui

from dledger_client.aio import ReadAt
from dledger_console.layout.words import number, span
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.printable import printable


class Figures:
    """Named values in a row; their places are there before their values, so nothing moves."""

    def __init__(self, names: Sequence[str]) -> None:
        self._values: dict[str, ui.label] = {}
        with ui.element("div").classes("figures card"):
            for name in names:
                with ui.element("div"):
                    ui.label(name).classes("figure-name")
                    self._values[name] = ui.label("–").classes("figure-value")

    def show(self, values: Mapping[str, str]) -> None:
        """Show these values, by name."""
        for name, value in values.items():
            self._values[name].set_text(printable(value))


class Missing:
    """One line for what is not shown because a replica group does not answer; empty when all did."""

    def __init__(self) -> None:
        self._line = ui.label("").classes("missing")

    def show(self, unanswered: Mapping[str, DledgerError], *notes: str, read_at: Mapping[str, ReadAt] | None = None) -> None:
        """``unanswered``: replica groups, and why; ``read_at``: replicas that answered for the others; ``notes``: what else is missing."""
        sources = read_at or {}
        said = [
            f"{group}: what only its leader knows is not shown: {error.message}"
            if group in sources
            else f"{group} does not answer, what it has is not shown: {error.message}"
            for group, error in sorted(unanswered.items())
        ]
        said += [_old(group, source) for group, source in sorted(sources.items()) if not source.is_current]
        self._line.set_text(printable(" · ".join([*said, *notes])))


def _old(group: str, source: ReadAt) -> str:
    silent = "since its start" if source.leader_silent_ms is None else f"for {span(source.leader_silent_ms)}"
    if source.is_silent:
        return f"{group}: as its follower {source.node} has it, which has heard from no leader {silent}"
    return f"{group}: as its follower {source.node} has it, which is {number(source.lag_entries)} entries behind"


def facts(rows: Mapping[str, str]) -> None:
    """A list of names and values."""
    with ui.element("dl").classes("facts"):
        for name, value in rows.items():
            ui.element("dt").props["textContent"] = printable(name)
            ui.element("dd").props["textContent"] = printable(value)


def heading(text: str) -> None:
    """The heading of a part of a page."""
    ui.element("h2").props["textContent"] = text


class Question:
    """A dialog with fields: make them inside of its context, then ``await question.answer()``.

    ``dangerous``: an action in front of ``action`` that cannot be undone.
    """

    def __init__(self, title: str, action: str = "", *, dangerous: str = "") -> None:
        self._title, self._action, self._dangerous = title, action, dangerous
        self._dialog = ui.dialog()
        self._open = contextlib.ExitStack()
        self._actions: list[ui.button] = []

    def __enter__(self) -> Self:
        self._open.enter_context(self._dialog)
        self._open.enter_context(ui.card().classes("dialog"))
        ui.label(printable(self._title)).classes("section")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            with ui.element("div").classes("dialog-actions"):
                ui.button("Cancel", on_click=lambda: self._dialog.submit(None)).props("flat no-caps autofocus")
                for action, colour in ((self._dangerous, "negative"), (self._action, "primary")):
                    if action:
                        button = ui.button(action, on_click=partial(self._dialog.submit, action))
                        self._actions.append(button.props(f"no-caps unelevated color={colour}"))
        self._open.close()

    def permit(self, permitted: bool) -> None:
        """Whether the actions may be chosen."""
        for button in self._actions:
            button.set_enabled(permitted)

    async def answer(self) -> str:
        """The action whose button was used; empty for none."""
        found = await self.ask()
        self.close()
        return found

    async def ask(self) -> str:
        """As ``answer``, and it can be asked again with what was typed, until it is closed."""
        return "" if self._dialog.is_deleted else str(await self._dialog or "")

    def close(self) -> None:
        """It is not asked again."""
        if not self._dialog.is_deleted:  # closing the page closes its questions
            self._dialog.delete()


def text_field(label: str, value: str = "", hint: str = "") -> ui.input:
    """A field for a line of text."""
    field = ui.input(label, value=value).props("dense outlined stack-label").classes("field")
    field.props["hint"] = hint
    return field


def number_field(label: str, value: float | None = None, *, least: float = 0, most: float | None = None, hint: str = "") -> ui.number:
    """A field for a number."""
    field = ui.number(label, value=value, min=least, max=most).props("dense outlined stack-label").classes("field")
    field.props["hint"] = hint
    return field


def given(field: ui.number) -> float:
    """The number in a field.  InvalidArgumentError when the field is empty: an empty field does not mean 0."""
    if field.value is None:
        raise InvalidArgumentError(f"{field.props['label']}: expected a number")
    return float(field.value)


def given_whole(field: ui.number) -> int:
    """The whole number in a field.  InvalidArgumentError when the field is empty or has a fraction."""
    value = given(field)
    if not value.is_integer():
        raise InvalidArgumentError(f"{field.props['label']}: expected a whole number, not {value:g}")
    return int(value)


@contextlib.contextmanager
def toolbar() -> Iterator[None]:
    """A line of fields and buttons."""
    with ui.element("div").classes("toolbar"):
        yield
