"""Reads the memory, processor time and open files of this process from the kernel."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from broker.support.process_stats import ProcessStats
from dledger_wire.version import installed_version


def read_process_stats() -> ProcessStats:
    """This process, now."""
    sizes = {"RssAnon": 0, "VmRSS": 0}
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in sizes:
                    sizes[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return ProcessStats(os.getpid(), sizes["VmRSS"], sizes["RssAnon"], installed_version(), memory_bytes(), time.process_time())


@functools.cache
def memory_bytes() -> int:
    """The machine's memory, or what the cgroup of this process may use when that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):
        limits += cgroup_limits(Path("/proc/self/cgroup").read_text(encoding="utf-8"), Path("/sys/fs/cgroup"))
    return min(limits)


def cgroup_limits(text: str, root: Path) -> Iterator[int]:
    """The limits of memory in force for the cgroups in ``text`` (/proc/self/cgroup): their own and those of the ones around them.

    A container sees its own as the root, whatever path its process has in ``text``.
    """
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        place = base / path.strip("/")
        for folder in (place, *place.parents):
            if folder.is_relative_to(base):
                with contextlib.suppress(OSError, ValueError):  # there is none in this one, or it says "max"
                    yield int((folder / name).read_text(encoding="ascii"))


def open_files() -> int:
    """Open files and connections of this process."""
    return int(psutil.Process().num_fds())


def started_s() -> float:
    """When this process started, seconds since 1970."""
    return float(psutil.Process().create_time())


def local_utc_offset_ms() -> int:
    """How far local time is ahead of UTC now."""
    return int(time.localtime().tm_gmtoff * 1000)
