"""The machine that figures were measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil


def cpu_model() -> str:
    return next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")


def machine() -> dict[str, Any]:
    """What figures depend on, with how busy the machine was before."""
    return {
        "cpu": f"{os.cpu_count()} x {cpu_model()}",
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_before": round(os.getloadavg()[0], 1),
    }
