"""What a drill runs on, for its report."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from dledger_drill.report.model import MachineInfo


def machine_info() -> MachineInfo:
    return MachineInfo(
        cpu=_cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
