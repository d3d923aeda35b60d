"""A process that holds namespaces, and running programs in them.  They end with this process: the kernel sees to it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.waiting import wait_until

# With the thread that started it; its own children follow by --kill-child.
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


class Namespaces:
    """Namespaces of one process, ``pid``."""

    def __init__(self, holder: subprocess.Popen[bytes], pid: int, kinds: Sequence[str]) -> None:
        self._holder = holder
        self.pid = pid
        self._kinds = kinds

    @classmethod
    def start(cls, *kinds: str, setup: str = "true") -> Self:
        """New namespaces of these kinds (``net``, ``mount``, ...), held by a process that sleeps after ``setup``, a line of shell."""
        command = [
            "unshare",
            *(f"--{kind}" for kind in kinds),
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-c",
            f"{setup} && exec sleep infinity",
        ]
        holder = subprocess.Popen([*_DIES_WITH_US, *command], stdin=subprocess.DEVNULL)
        return cls(holder, child_of(holder, "sleep"), kinds)

    @classmethod
    def boot(cls, script: str, within: Sequence[str], log: Path, init: str) -> Self:
        """Namespaces of a whole system, whose first process ``script`` turns into; its console is ``log``."""
        kinds = ("pid", "mount", "net", "uts", "ipc", "cgroup")
        command = ["unshare", *(f"--{kind}" for kind in kinds), "--fork", "--kill-child", "--", "sh", "-ec", script]
        with open(log, "ab") as console:
            holder = subprocess.Popen([*_DIES_WITH_US, *within, *command], stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        return cls(holder, child_of(holder, init, lambda: log.read_text(errors="replace")[-3000:]), kinds)

    def command(self, argv: Sequence[str]) -> list[str]:
        """What runs ``argv`` inside."""
        return ["nsenter", f"--target={self.pid}", *(f"--{kind}" for kind in self._kinds), "--", *argv]

    @property
    def root(self) -> Path:
        """The file tree that processes inside see."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def ended(self) -> bool:
        return self._holder.poll() is not None

    def end(self) -> None:
        """Kill the process that holds them, and with it, if it is the first of its system, all others."""
        self._holder.send_signal(signal.SIGKILL)
        self._holder.wait()


def child_of(process: subprocess.Popen[bytes], program: str, why: object = "") -> int:
    """The process that ``unshare`` started, once it runs ``program``."""

    def found() -> int | None:
        ended = process.poll()
        assert ended is None, f"{program} did not start: status {ended}: {why() if callable(why) else why}"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == program), None)

    pid = wait_until(found, f"{program} started", pause_s=0.02)
    assert pid is not None
    return pid
