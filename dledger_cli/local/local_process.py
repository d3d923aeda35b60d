"""A process that a command starts on this machine: how it is signalled, waited for and ended, and the last it wrote.

It is in a session of its own and outlives the command, unless its program is one that ends with it (``dledger_drill/hosts/launcher.py``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

from dledger_wire.errors import DeadlineExceededError

KILL_LIMIT_S = 60.0
LOOKED_AT_BYTES = 16_384  # of a log's end


class LocalProcess:
    """Signals go to the process alone, not to those that it started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: IO[bytes] | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start ``command``.

        Args:
            log: Gets its output; None: goes where that of this process goes.
            environment: Added to that of this process; an empty value removes a variable.
            stdin: ``subprocess.PIPE`` to write to ``popen.stdin``.
        """
        self.popen = subprocess.Popen(  # noqa: S603 - the command is the caller's
            command, stdin=stdin, stdout=log, stderr=log, env=environment_with(environment), pass_fds=pass_fds, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def poll(self) -> int | None:
        return self.popen.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DeadlineExceededError(f"process {self.pid} still runs after {timeout_s:g} s") from None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait(KILL_LIMIT_S)

    def terminate(self, timeout_s: float) -> int:
        """SIGTERM; returns the exit status."""
        self.send_signal(signal.SIGCONT)  # a process that is paused ends, too
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def pause(self) -> None:
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens when it has ended."""
        self.popen.send_signal(number)


def environment_with(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process and ``added``, for one that it starts; an empty value removes a variable."""
    return {name: value for name, value in (os.environ | added).items() if value or name not in added}


def last_words(log: Path) -> str:
    """The last error in the log of a process that ended, as one line; without one its last line, or the name of its last event."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOOKED_AT_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if line.startswith("dledger: "):
            return line.removeprefix("dledger: ")
    return _event_of(lines[-1]) if lines else ""


def _event_of(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    return str(entry.get("event", line)) if isinstance(entry, dict) else line
