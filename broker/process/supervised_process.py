"""A process that a node keeps running beside itself, such as the web console, and that ends with it.

Owns its life: it is started by a thread, started again after a while when it ends, and asked to end by the end of its standard input, which
the kernel closes however this process ends.  Nothing of it touches the loop of the node, and no failure of it ends the node.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from broker.process.allocator import MALLOC_SETTINGS
from broker.process.service_manager import VARIABLES
from dledger_wire.printable import printable

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
GRACE_S = 5.0

logger = logging.getLogger(__name__)


class SupervisedProcess:
    """``command`` runs as long as this context is open, without the variables ``without``; ``name`` is what the log calls it."""

    def __init__(self, name: str, command: Sequence[str], without: Sequence[str] = ()) -> None:
        self._name = name
        self._command = list(command)
        # The allocator's settings are for messages of a node: they keep memory that a process beside it has to give back.
        kept_back = {*without, *MALLOC_SETTINGS, *VARIABLES}
        self._env = {key: value for key, value in os.environ.items() if key not in kept_back} | {"MALLOC_ARENA_MAX": "2"}
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # no process is started once it ends
        self._thread = threading.Thread(target=self._keep_running, name=f"child-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._ending.set()
            process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._thread.join(GRACE_S)
        if process is not None and process.poll() is None:
            process.kill()

    def _keep_running(self) -> None:
        """The thread lives longer than each process: the kernel ends a process with the thread that started it, where it asked for that."""
        pause_s = FIRST_PAUSE_S
        while not self._ending.is_set():
            began_s = time.monotonic()
            status = self._run_once()
            if self._ending.is_set():
                return
            if time.monotonic() - began_s > MAX_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            if status is not None:
                logger.warning(
                    "a process beside the node ended",
                    extra={"event": "child_process_ended", "child": self._name, "status": status, "again_in_s": pause_s},
                )
            self._ending.wait(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _run_once(self) -> int | None:
        """Its exit status; None when it was not started."""
        with self._lock:
            if self._ending.is_set():
                return None
            try:
                process = subprocess.Popen(  # noqa: S603 - a command of our own
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self._env
                )
            except OSError as error:
                _log_not_started(self._name, str(error))
                return None
            self._process = process
        assert process.stderr is not None  # noqa: S101 - it is a pipe, for the type checker
        with process:  # closes its pipes
            for line in process.stderr:
                logger.info("%s: %s", self._name, printable(line.decode("utf-8", "replace").rstrip()))
        return process.returncode


@contextlib.contextmanager
def not_started(name: str, reason: str) -> Iterator[None]:
    """In place of a ``SupervisedProcess`` that cannot run here: the node goes on without it, and its log says so."""
    _log_not_started(name, reason)
    yield


def _log_not_started(name: str, reason: str) -> None:
    logger.warning(
        "a process beside the node cannot be started", extra={"event": "child_process_not_started", "child": name, "reason": reason}
    )
