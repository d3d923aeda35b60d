"""Reads the memory, processor time and open files of this process from the kernel."""

from __future__ import annotations

import os
import time

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
