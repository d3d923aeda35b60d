"""The drill's side of a workload process: starts it, tells it what to do, knows its reports.

Commands and reports go through named pipes in its folder, so that it may be started by whatever starts processes on a machine of the
drill.  When the drill ends, however it does, its end of the commands is closed and the workload process ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dledger_cli.local.local_process import last_words
from dledger_drill.hosts.machine import Process
from dledger_drill.workloads.spark_process import HISTORY as SPARK_HISTORY
from dledger_drill.workloads.spec import Command, LoadSpec
from dledger_wire.errors import DeadlineExceededError, DledgerError

COMMAND = (sys.executable, "-P", "-m", "dledger_drill.workloads.process")
SHELL = ("/bin/sh", "-c", 'commands=$1 reports=$2; shift 2; exec "$@" <"$commands" >"$reports"', "workloads")
END_S = 10.0
KEPT_REPORTS = 120


Start = Callable[[Sequence[str], Path, Mapping[str, str]], Process]  # as DrillMachine.start: command, log, environment


class LoadControl:
    """One workload process.

    Args:
        folder: For its history, its pipes and its log; made if it is not there.
        start: Starts a command, with its output appended to a log, and an environment added to that of this process.
        environment: That environment.
        on_report: Called with each report, in a thread of its own.
    """

    def __init__(
        self,
        folder: Path,
        spec: LoadSpec,
        start: Start,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        on_report: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.spec = folder, spec
        self.reports: deque[dict[str, Any]] = deque(maxlen=KEPT_REPORTS)
        self._count = 0  # of all reports
        self.log = folder / "workloads.log"
        self._on_report = on_report
        self._changed = threading.Condition()
        self._ended = False
        spec_file, commands, self._pipe = folder / "spec.json", folder / "commands", folder / "reports"
        spec.write(spec_file)
        os.mkfifo(commands)
        os.mkfifo(self._pipe)
        # Open for both directions: opening does not wait, and reading ends only with this process.
        self._commands = os.open(commands, os.O_RDWR | os.O_CLOEXEC)
        self._process = start((*SHELL, str(commands), str(self._pipe), *COMMAND, str(folder), str(spec_file)), self.log, environment)
        self._reader = threading.Thread(target=self._read_reports, name="load-reports", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def histories(self) -> list[Path]:
        """The files of its history that are there."""
        return [path for name in (self.spec.history, SPARK_HISTORY) if (path := self.folder / name).exists()]

    def tell(self, command: Command) -> None:
        os.write(self._commands, command.encode())

    def check(self) -> None:
        """DledgerError when the process has ended."""
        if self._process.poll() is not None:
            raise DledgerError(f"the workload process ended with status {self._process.poll()}: {last_words(self.log)}")

    def wait_running(self, timeout_s: float) -> None:
        """Topics are made and every workload was begun."""
        self.wait_for(lambda report: report["state"] == "running", "the workloads to start", timeout_s)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], what: str, timeout_s: float) -> dict[str, Any]:
        """The first report from now on, or the last one until now, that is ``wanted``.  DledgerError when the process ended."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            seen = max(0, self._count - 1)
            while True:
                for number, report in enumerate(self.reports, self._count - len(self.reports)):
                    if number >= seen and wanted(report):
                        return report
                seen = self._count
                if self._ended:
                    raise DledgerError(f"the workload process ended with status {self._process.wait(END_S)}: {last_words(self.log)}")
                if not self._changed.wait(deadline - time.monotonic()):
                    raise DeadlineExceededError(f"waited {timeout_s:g} s for {what}; log: {self.log}")

    def finish(self, timeout_s: float) -> dict[str, Any]:
        """Drain, audit, end; the report of the audit: ``stored`` messages, ``left`` values that consumers were not given."""
        self.tell(Command(finish=True))
        audited = self.wait_for(lambda report: report["state"] == "audited", "the audit", timeout_s)
        status = self._process.wait(END_S)
        if status:
            raise DledgerError(f"the workload process ended with status {status}: {last_words(self.log)}")
        return audited

    def close(self) -> None:
        """Close the commands: the process ends by itself, else it is killed.  Safe to repeat."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1
        try:
            self._process.wait(END_S)
        except DeadlineExceededError:
            self._process.kill()
        # If it ended before it opened its end of the pipe, the reader still waits for one.
        with contextlib.suppress(OSError):
            os.close(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK))
        self._reader.join(END_S)

    def _read_reports(self) -> None:
        with self._pipe.open("rb") as reports:
            for line in reports:
                report = json.loads(line)
                with self._changed:
                    self.reports.append(report)
                    self._count += 1
                    self._changed.notify_all()
                self._on_report(report)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
