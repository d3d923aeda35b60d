"""What the benchmarks look at in the processes they start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process in MiB."""
    return _memory_mb(pid, "RssAnon")


def largest_mb(pid: int) -> float:
    """The most memory that a process had resident since its start, in MiB."""
    return _memory_mb(pid, "VmHWM")


def _memory_mb(pid: int, field: str) -> float:
    return round(int(_status(Path(f"/proc/{pid}"))[field].split()[0]) / 1024, 1)


def _status(folder: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of CPU that the processes have used so far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def spent(pid: int) -> tuple[float, int]:
    """(seconds of CPU, times that a thread gave up its core to wait) of a process since its start, over the threads it has now."""
    used = slept = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        slept += int(_status(task)["voluntary_ctxt_switches"])
        used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9, slept
