"""Keys of a terminal as they are pressed, without a line to be ended.

Owns the terminal's mode while it reads, and gives it back as it was.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator

ESCAPE = "\x1b"
_NAMED = {"[A": "up", "[B": "down", "OA": "up", "OB": "down"}


class Keys:
    """Calls ``pressed`` with each key in the running loop, for the time of a ``with``.  Without a terminal there are none."""

    def __init__(self, pressed: Callable[[str], None]) -> None:
        self._pressed = pressed
        self._before: list[object] | None = None
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else -1

    def __enter__(self) -> None:
        if self._file >= 0:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)  # Ctrl-C stays a signal
            asyncio.get_running_loop().add_reader(self._file, self._read)

    def __exit__(self, *_error: object) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _read(self) -> None:
        data = os.read(self._file, 1024)
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._file)
            self._pressed("q")
        for key in keys_in(data.decode(errors="replace")):
            self._pressed(key)


def keys_in(text: str) -> Iterator[str]:
    """The keys of what was read at once: characters, and by name what a terminal sends as a sequence."""
    while text:
        if text[0] != ESCAPE:
            yield text[0]
            text = text[1:]
        elif len(text) == 1:
            yield "escape"
            text = ""
        elif text[1] not in "[O":
            text = text[2:]  # a character with Alt
        else:
            end = next((place for place in range(2, len(text)) if "@" <= text[place] <= "~"), len(text) - 1)
            if text[1 : end + 1] in _NAMED:
                yield _NAMED[text[1 : end + 1]]
            text = text[end + 1 :]
