"""``--watch [SECONDS]``: a command that reads shows the same again and again, until Ctrl-C.

Owns how often that is, and what becomes of the last page: on a terminal each one takes its place, and the newest stays when the command
ends; elsewhere they follow one another, with an empty line between.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from typing import IO, Annotated, Any

import typer

from dledger_cli.help_page import AskingCommand, FileCommand, JsonCommand, ReadingCommand, declared_options
from dledger_cli.output import ClosedPipeExit, error_line, json_wanted

DEFAULT_S = 2.0
MAX_S = 86_400.0
WatchOption = Annotated[
    float,
    typer.Option(
        "--watch", "-w", metavar="[SECONDS]", min=0.0, max=MAX_S, help=f"Repeat at this interval; without a number every {DEFAULT_S:g} s."
    ),
]
_FLAGS = ("--watch", "-w")
_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class IntervalCommand(FileCommand):
    """Takes ``--watch``, which it declares, with and without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_interval(args))


class WatchedCommand(IntervalCommand, ReadingCommand):
    """Runs again and again with ``--watch``."""

    given_by_connection: tuple[str, ...] = AskingCommand.given_by_connection

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params += declared_options(_watch)

    def run(self, ctx: Any) -> Any:
        every_s: float = ctx.params.pop("watch")
        if not every_s:
            return super().run(ctx)
        with contextlib.closing(pages(every_s, as_json=json_wanted())) as shown:
            for page in shown:
                with page:
                    super().run(ctx)


class WatchedJsonCommand(WatchedCommand):
    """The same for a command that asks no cluster."""

    given_by_connection: tuple[str, ...] = JsonCommand.given_by_connection


def _watch(watch: WatchOption = 0.0) -> None:
    """The option of commands that only read."""


def with_interval(args: Sequence[str]) -> list[str]:
    """``args`` with the number that a ``--watch`` without one means."""
    found: list[str] = []
    for place, argument in enumerate(args):
        found.append(argument)
        if argument in _FLAGS and not _is_number(args[place + 1 : place + 2]):
            found.append(f"{DEFAULT_S:g}")
    return found


def _is_number(following: Sequence[str]) -> bool:
    try:
        return bool(following) and float(following[0]) > -1e9  # below zero it is refused by name
    except ValueError:
        return False


def reading_command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command that only reads to ``app``, with the option ``--watch``."""
    return app.command(name, cls=WatchedCommand)


def pages(
    every_s: float, *, as_json: bool = False, deadline: float = math.inf
) -> Generator[contextlib.AbstractContextManager[None], None, None]:
    """A context for each page: what is printed in it is shown.  Without end; closing it shows the newest page once more.

    A page that ends with an exit code or, but for the first, with an error is not the last one.  ``deadline`` (``time.monotonic``) is
    not slept through.
    """
    screen = _Screen() if sys.stdout.isatty() and not as_json else None
    number = 0
    with screen or contextlib.nullcontext():
        while True:
            began = time.monotonic()
            if number and screen is None and not as_json:
                print(flush=True)
            yield _page(screen, f"every {every_s:g} s", goes_on=number > 0)
            number += 1
            time.sleep(max(0.0, min(began + every_s, deadline) - time.monotonic()))


@contextlib.contextmanager
def _page(screen: _Screen | None, title: str, *, goes_on: bool) -> Iterator[None]:
    with screen.page(title) if screen else contextlib.nullcontext():
        try:
            yield
        except ClosedPipeExit:
            raise
        except (typer.Exit, SystemExit):
            pass  # what it would have said at the end stands on the page
        except Exception as error:
            if not goes_on:
                raise
            error_line(str(error), error)


class _Screen:
    """The terminal while pages are shown in place of each other."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._newest = ""

    def __enter__(self) -> None:
        self._write(_OTHER_SCREEN + _HOME + _REST_OF_SCREEN)

    def __exit__(self, *_error: object) -> None:
        self._write(_FIRST_SCREEN + self._newest)

    @contextlib.contextmanager
    def page(self, title: str) -> Iterator[None]:
        """Collect what is printed, also the remarks on stderr, and show it at once."""
        page = _Page(self._out)
        errors = page if sys.stderr.isatty() else sys.stderr
        with contextlib.redirect_stdout(page), contextlib.redirect_stderr(errors):
            yield
        self._newest = page.getvalue()
        head = f"{title}   {datetime.now().astimezone():%H:%M:%S %Z}   Ctrl-C ends"
        lines = fitting(f"{head}\n\n{self._newest}".splitlines(), shutil.get_terminal_size())
        self._write(_HOME + "\n".join(line + _REST_OF_LINE for line in lines) + _REST_OF_SCREEN)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class _Page(io.StringIO):
    """Text for ``out``: with its colours."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out = out

    def isatty(self) -> bool:
        return self._out.isatty()


def fitting(lines: Sequence[str], size: tuple[int, int]) -> list[str]:
    """The first lines that a terminal of ``size`` (columns, rows) shows without scrolling; the last one says how many are missing."""
    columns, rows = size
    used, count = 0, 0
    heights = [max(1, -(-len(_COLOUR.sub("", line)) // max(1, columns))) for line in lines]
    if sum(heights) <= rows:
        return list(lines)
    while count < len(lines) and used + heights[count] < rows:
        used += heights[count]
        count += 1
    return [*lines[:count], f"... {len(lines) - count} more lines; the window is too small"]
