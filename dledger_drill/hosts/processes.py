"""Processes of machines: each in its machine's network namespace, in a session of its own, and ended by the kernel with this process.

Owns the thread that starts them.  The kernel ends a process with the thread that started it, so all are started by one that lasts as long
as the drill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dledger_cli.given import environment_with
from dledger_wire.errors import DeadlineExceededError

_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
_KILL_LIMIT_S = 60.0
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class ChildProcess:
    """``Process`` of machine.py.  Signals go to all that it started, too, unless those left its process group."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        namespace: int | None = None,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start ``command``.

        Args:
            log: Its output is appended to it; None: goes where that of this process goes.
            environment: Added as in ``environment_with``.
            namespace: Descriptor of a network namespace; None: that of this process.
            stdin: ``subprocess.PIPE`` to write to ``popen.stdin``.
        """
        launcher = [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid()), "-" if namespace is None else str(namespace), *command]
        fds = [*pass_fds, *([] if namespace is None else [namespace])]
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(open(log, "ab")) if log else None

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(  # noqa: S603 - the command is the caller's
                    launcher,
                    stdin=stdin,
                    stdout=output,
                    stderr=output,
                    env=environment_with(environment or {}),
                    pass_fds=fds,
                    start_new_session=True,
                )

            self.popen = _starter.submit(start).result()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def poll(self) -> int | None:
        return self.popen.poll()

    def wait(self, timeout_s: float) -> int:
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DeadlineExceededError(f"process {self.pid} still runs after {timeout_s:g} s") from None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.wait(_KILL_LIMIT_S)

    def terminate(self, timeout_s: float) -> int:
        self._signal(signal.SIGCONT)  # a process that is paused ends, too
        self._signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.popen.poll() is None:  # not waited for, so its number is nobody else's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def last_line(log: Path) -> str:
    """The last words of a process that ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else f"nothing was said in {log}"
