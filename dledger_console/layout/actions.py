"""Actions that ask first and say what they did."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec

from nicegui import ui

from dledger_console.layout.parts import Question
from dledger_console.layout.view import View
from dledger_wire.errors import DledgerError
from dledger_wire.printable import printable

Given = ParamSpec("Given")

_logger = logging.getLogger(__name__)


def say(text: str, *, bad: bool = False) -> None:
    """Say what was done, or why it was not; of an error it stays until it is closed."""
    if ui.context.client.is_deleted:
        return
    options = {"type": "negative", "timeout": 0, "close_button": "Close"} if bad else {"type": "positive", "timeout": 8_000}
    ui.notify(printable(text), position="top", multi_line=True, **options)  # type: ignore[arg-type]


async def confirm(title: str, text: str, action: str, *, dangerous: bool = False, type_to_confirm: str = "") -> bool:
    """Ask before an action: what will happen, and a button with its name.  ``type_to_confirm``: this has to be typed first."""
    with Question(title, "" if dangerous else action, dangerous=action if dangerous else "") as question:
        ui.label(text).classes("dialog-text")
        if type_to_confirm:
            ui.label(f"Type {printable(type_to_confirm)} to confirm:").classes("small muted")
            field = ui.input().props('dense outlined aria-label="Confirm" autofocus')
            field.on_value_change(lambda event: question.permit(event.value == type_to_confirm))
    question.permit(not type_to_confirm)
    return bool(await question.answer())


def saying_errors(handler: Callable[Given, object]) -> Callable[Given, Awaitable[None]]:
    """``handler`` of a click, which says why when the cluster refuses or cannot be asked."""

    @functools.wraps(handler)
    async def handle(*given: Given.args, **named: Given.kwargs) -> None:
        try:
            answer = handler(*given, **named)
            if isinstance(answer, Awaitable):
                await answer
        except DledgerError as error:
            say(error.message, bad=True)

    return handle


async def act(view: View, work: Callable[[], Awaitable[str]]) -> bool:
    """Do ``work`` and say what it did, which it returns; whether it succeeded.  Does nothing in read-only mode.

    It is done to its end though the session may end before; then the log alone says what it did."""
    if view.read_only:
        say("this console is read-only", bad=True)
        return False
    view.session.use()
    try:
        async with view.session.held():
            text = await work()
    except DledgerError as error:
        _logger.info("%s: refused or failed: %s", view.session.user or "anonymous", error.message)
        say(error.message, bad=True)
        return False
    except Exception as error:
        _logger.exception("an action failed")
        say(f"the action failed: {type(error).__name__}; the console's log says why", bad=True)
        return False
    _logger.info("%s: %s", view.session.user or "anonymous", text)
    say(text)
    return True


async def act_when_answered(view: View, question: Question, work: Callable[[], Awaitable[str]]) -> bool:
    """``act`` when the question's action is chosen; whether it succeeded.  When it fails it is asked again: what was typed stays."""
    done = False
    while not done and await question.ask():
        done = await act(view, work)
    question.close()
    return done


def action_button(view: View, name: str, on_click: Callable[[], object], *, dangerous: bool = False) -> ui.button | None:
    """A button for an action, which says why when it cannot begin; none in read-only mode."""
    if view.read_only:
        return None
    button = ui.button(name, on_click=saying_errors(on_click)).props("no-caps outline dense")
    return button.props("color=negative") if dangerous else button
