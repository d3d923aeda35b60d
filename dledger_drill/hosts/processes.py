"""A process of a machine: it runs in the machine's network namespace, and the kernel ends it with this process.

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
from functools import partial
from pathlib import Path
from types import MappingProxyType

from dledger_cli.local.local_process import LocalProcess

_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class MachineProcess(LocalProcess):
    """``Process`` of machine.py.  Signals go to all that it started, too, unless those left its process group."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        namespace: int | None = None,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """As ``LocalProcess``.  ``namespace``: descriptor of a network namespace; None: that of this process."""
        launcher = [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid()), "-" if namespace is None else str(namespace), *command]
        fds = [*pass_fds, *([] if namespace is None else [namespace])]
        with open(log, "ab") if log else contextlib.nullcontext() as output:
            start = partial(super().__init__, launcher, log=output, environment=environment, pass_fds=fds, stdin=stdin)
            _starter.submit(start).result()

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:  # not waited for, so its number is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
