"""What a node tells about its own process.  The real ones are read in ``broker/main.py``'s process; a simulated node has none."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from dledger_wire.version import installed_version


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """``anonymous_bytes`` is memory the kernel cannot drop: what a leak would grow.  ``memory_bytes``: the machine's.  ``cpu_s``: used.
    ``loop_lag_ms``: see ``LoopWatch``.  ``connections``: open ones, see ``Arrivals.by_kind``."""

    pid: int = 0
    rss_bytes: int = 0
    anonymous_bytes: int = 0
    version: str = ""
    memory_bytes: int = 0
    cpu_s: float = 0.0
    loop_lag_ms: float = 0.0
    connections: Mapping[str, int] = field(default_factory=dict, hash=False)


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
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ProcessStats(os.getpid(), sizes["VmRSS"], sizes["RssAnon"], installed_version(), memory_bytes, time.process_time())


def open_files() -> int:
    """Open files and connections of this process."""
    return int(psutil.Process().num_fds())


def started_s() -> float:
    """When this process started, seconds since 1970."""
    return float(psutil.Process().create_time())


def local_utc_offset_ms() -> int:
    """How far local time is ahead of UTC now."""
    return int(time.localtime().tm_gmtoff * 1000)
