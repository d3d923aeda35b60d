"""An open page: whose it is, what it asks regularly, and what it says when the cluster does not answer.

Owns the frame around every page (name of the cluster, navigation, line of state) and ``console_page``, which makes a page of a function.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui
from starlette.requests import Request

from dledger_client.aio import Admin
from dledger_console.history.sampler import REFUSED_S, Sampler
from dledger_console.layout import frame
from dledger_console.settings import ConsoleSettings
from dledger_console.web.sessions import Session, SessionEndedError, session_of
from dledger_wire.errors import DledgerError, PermissionDeniedError
from dledger_wire.printable import printable

FIRST_S = 1.0  # so long a page waits for its first data before it is shown without
BUILD_S = 10.0
FOLLOW_S = 0.5  # how soon a page shows what its sampler was answered

_logger = logging.getLogger(__name__)


class View:
    """What the function of a page is given.

    Attributes:
        session: Of the user; ``session.keep(name, make)`` holds what pages share.
        settings: Of the console.
        request: The request for the page.
    """

    def __init__(self, session: Session, settings: ConsoleSettings, request: Request) -> None:
        self.session = session
        self.settings = settings
        self.request = request
        self.client = ui.context.client
        self._trouble: dict[object, str] = {}
        self._followed: list[Sampler[Any]] = []
        self._worked_at = 0.0
        self._repeats = False  # whether anything on the page is brought up to date

    @property
    def admin(self) -> Admin:
        """The client of this user."""
        return self.session.admin

    @property
    def read_only(self) -> bool:
        """Whether pages offer no action."""
        return self.settings.read_only

    async def every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` now and every so often while the page is open and seen.  An error of it stands in the line of state until it works
        again, and what is shown stays."""
        busy, refused_until = False, 0.0
        self._repeats = True

        async def turn() -> None:
            nonlocal busy, refused_until
            if busy or not self.visible or time.monotonic() < refused_until:
                return
            busy = True
            try:
                await work()
            except SessionEndedError:
                self._leave()
            except DledgerError as error:
                self.trouble(work, printable(error.message))
                if isinstance(error, PermissionDeniedError):
                    refused_until = time.monotonic() + REFUSED_S
            except Exception:
                _logger.exception("a page could not be refreshed: %s", self.request.url.path)
                self.trouble(work, "the page could not be refreshed; the console's log says why")
            else:
                self.trouble(work, "")
            finally:
                busy = False

        slot = ui.context.slot

        async def first() -> None:
            with slot:
                await turn()

        started = asyncio.create_task(first(), name="first-data")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(started), FIRST_S)
        ui.timer(seconds, turn, immediate=False)

    async def follow(self, sampler: Sampler[Any], show: Callable[[], None]) -> None:
        """Call ``show`` with each new answer of ``sampler``, which asks as long as this page is open and seen."""
        watching = contextlib.ExitStack()

        def watch() -> None:
            watching.close()
            if self.visible:
                watching.enter_context(sampler.watched())

        watch()
        self.state.on_visible.append(watch)
        self.client.on_delete(watching.close)
        self._followed.append(sampler)
        shown = -1

        async def turn() -> None:
            nonlocal shown
            await sampler.first()
            if sampler.error is not None:
                raise sampler.error
            if sampler.turns != shown:
                shown = sampler.turns
                show()

        await self.every(FOLLOW_S, turn)

    @property
    def visible(self) -> bool:
        """Whether the browser shows the page, as far as it has said."""
        return self.state.visible

    def trouble(self, source: object, text: str) -> None:
        """Say what is wrong in the line of state; empty: ``source`` works again."""
        if text:
            self._trouble[source] = text
        else:
            self._trouble.pop(source, None)
            self._worked_at = time.time()
        late = "no new answer" if any(sampler.at_ms and sampler.is_late() for sampler in self._followed) else ""
        self.state.say(next(iter(self._trouble.values()), late), self._as_of())

    def _as_of(self) -> float:
        """When the oldest part of what is shown was read, seconds since 1970; 0: it was not yet."""
        return min((sampler.at_ms / 1000 for sampler in self._followed), default=self._worked_at)

    async def run(self, build: Callable[..., Awaitable[None]], title: str, query: dict[str, Any]) -> None:
        """Build the page inside of its frame."""
        self.state = frame.build(self.session.user, title, self.request, read_only=self.read_only)
        self.session.at_end.append(self._leave)
        self.client.on_delete(self._forget)
        with self.state.content:
            try:
                await build(self, **query)
                if not self._repeats:
                    self.trouble(build, "")
            except DledgerError as error:
                self.trouble(build, printable(error.message))
                ui.label(printable(error.message)).classes("empty")

    def _forget(self) -> None:
        with contextlib.suppress(ValueError):
            self.session.at_end.remove(self._leave)

    def _leave(self) -> None:
        """The session has ended."""
        self.client.run_javascript("location.assign('/login')")


_pages: list[tuple[str, str, Callable[..., Awaitable[None]]]] = []


def console_page(path: str, title: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Make a page at ``path`` of ``async def build(view: View, name: str = "", ...)``; the other parameters come from the query."""

    def decorate(build: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        _pages.append((path, title, build))
        return build

    return decorate


def register_pages(settings: ConsoleSettings) -> None:
    """Serve all pages that were made so far."""
    for path, title, build in _pages:
        ui.page(path, title=f"{title} · dledger", response_timeout=BUILD_S)(_served(settings, title, build))


def _served(settings: ConsoleSettings, title: str, build: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(build)
    async def serve(request: Request, **query: Any) -> None:
        await View(session_of(request.scope), settings, request).run(build, title, query)

    signature = inspect.signature(build, eval_str=True)
    query = [parameter for name, parameter in signature.parameters.items() if name != "view"]
    own = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    serve.__signature__ = signature.replace(parameters=[own, *query], return_annotation=None)  # type: ignore[attr-defined]
    return serve
