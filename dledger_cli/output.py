"""What the commands print: tables, JSON and one-line errors.

Rules: data goes to stdout, everything else to stderr; with --json errors are JSON, too; colours only on a terminal; text from outside
goes through ``dledger_wire/printable.py``, which the functions here see to.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from dledger_wire.printable import printable, printable_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BOLD, RED, GREEN, YELLOW, RESET = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_CLEAR = "\x1b[K"  # the rest of the line


class ClosedPipeExit(SystemExit):
    """The reader of standard output is gone: the process ends without an error."""


class _StandardOutput(io.FileIO):
    """Standard output whose reader may close it early, as ``head`` does: that is no error, and nothing more is written.

    When it cannot be written (a full disk), the error is raised once, and what is still buffered is dropped.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            self._drop_the_rest()
            raise ClosedPipeExit(0) from None
        except OSError as error:
            self._drop_the_rest()
            raise OSError(error.errno, error.strerror, "standard output") from None

    def _drop_the_rest(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())


def end_quietly_at_closed_pipe() -> None:
    """Let a closed pipe end the process with exit status 0; open /dev/null for streams that were closed at the start."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - as long as the process
    old = sys.stdout
    raw = _StandardOutput(old.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), old.encoding, old.errors, line_buffering=old.isatty())


def end_if_unread() -> None:
    """End as at a closed pipe, without a write that would show it: for commands that wait for something to print."""
    looked_at = select.poll()
    looked_at.register(1, 0)  # errors are reported unasked
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in looked_at.poll(0)):
        raise ClosedPipeExit(0)


class _LogLine(logging.Formatter):
    """The text alone, as Python shows warnings of a process that has set nothing up, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def show_log_lines() -> None:
    """Warnings of the clients go to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LogLine())
    logging.getLogger().handlers[:] = [handler]


def is_terminal(stream: IO[str]) -> bool:
    """Whether ``stream`` is a terminal and colours are not disabled (``NO_COLOR``)."""
    return stream.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, colour: str, stream: IO[str] | None = None) -> str:
    return f"{colour}{text}{RESET}" if is_terminal(stream or sys.stdout) else text


def print_json(value: object) -> None:
    print(printable_json(value), flush=True)


def fields_of(record: object, *names: str, **renamed: str) -> dict[str, Any]:
    """Attributes of a record for JSON; ``group="replica_group"`` shows one under another name."""
    return {name: getattr(record, attribute) for name, attribute in ({name: name for name in names} | renamed).items()}


def print_line(text: str, colour: str = "") -> None:
    """One line for people on stdout, whatever is in ``text``."""
    print(paint(printable(text), colour) if colour else printable(text), flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Plain columns two spaces apart, a row a line; ``right`` names the columns of numbers; None is shown as ``-``."""
    cells = [["-" if cell is None or cell == "" else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(title), *(len(row[column]) for row in cells)) if cells else len(title) for column, title in enumerate(header)]
    aligned_right = [title in right for title in header]
    print(paint(_table_line(list(header), widths, aligned_right), BOLD))
    for row in cells:
        print(_table_line(row, widths, aligned_right))
    sys.stdout.flush()


def _table_line(cells: Sequence[str], widths: Sequence[int], aligned_right: Sequence[bool]) -> str:
    padded = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(cells, widths, aligned_right, strict=True)]
    return "  ".join(padded).rstrip()


_as_json = False  # a process runs one command


def use_json(wanted: bool) -> bool:
    """Callback of --json: a program that reads the answer reads errors, too."""
    global _as_json
    _as_json = wanted
    return wanted


def json_wanted() -> bool:
    return _as_json


def report(answer: object, *lines: str) -> None:
    """What a command did: with --json as an object, else as remarks."""
    if _as_json:
        print_json(answer)
        return
    for line in lines:
        note(line)


def print_answer(answer: object, header: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """What a command found: with --json as an object, else as a table."""
    if _as_json:
        print_json(answer)
    else:
        print_table(header, rows, right=right)


def error_line(text: str, error: BaseException | None = None) -> None:
    """An error as one line (or one line a mistake) on stderr; with --json as one object, that has the class of ``error``."""
    if _as_json:
        known = {"type": type(error).__name__} if error is not None else {}
        print(printable_json({"error": known | {"message": text or "unknown error"}}), file=sys.stderr, flush=True)
        return
    for line in str(text).split("\n") if text else ["unknown error"]:
        print(f"{paint('dledger:', RED, sys.stderr)} {printable(line)}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """A remark on stderr, beside the data."""
    print(printable(text), file=sys.stderr, flush=True)


def show_progress(text: str) -> None:
    """A line on a terminal that the next one takes the place of; nothing where stderr is none."""
    if is_terminal(sys.stderr):
        print(f"\r{_CLEAR}{printable(text)}", end="", file=sys.stderr, flush=True)


def clear_progress() -> None:
    """Take the line of progress away."""
    if is_terminal(sys.stderr):
        print(f"\r{_CLEAR}", end="", file=sys.stderr, flush=True)


def note_unanswered(unanswered: Mapping[str, Exception], without_members: Collection[str] = ()) -> None:
    """Which replica groups are missing in what was shown, a line each.  Then the command ends with exit code 1.

    ``without_members``: those of them that followers answered for.
    """
    for group, error in sorted(unanswered.items()):
        if group in without_members:
            note(f"replica group {group} has no leader: offsets are those of a follower, members are unknown: {error}")
        else:
            note(f"replica group {group} did not answer, its part is missing: {error}")
    if unanswered:
        raise SystemExit(1)


def unanswered_json(unanswered: Mapping[str, Exception]) -> dict[str, Any]:
    """The same for programs; nothing when every replica group answered."""
    return {"unanswered": {group: str(error) for group, error in sorted(unanswered.items())}} if unanswered else {}


def with_spaces(number: float) -> str:
    """``1236004`` -> ``1 236 004``."""
    return f"{number:,.0f}".replace(",", " ")
