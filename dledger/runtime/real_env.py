"""The environment of a node on this machine: its clocks, the system's randomness, real files, and the network it is given."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from dledger.runtime.env import Environment
from dledger.runtime.folders import HARD_STATE_PATH, LOG_FOLDER, SNAPSHOT_FOLDER
from dledger.runtime.real_disk import RealDisk
from dledger_wire.clock import SystemClock, system_random
from dledger_wire.rpc.transport import Network


def real_environment(data_dir: str, network: Network, *, beside_folders: Sequence[str] = ()) -> Environment:
    """Everything a node takes from outside; makes ``data_dir`` when it is not there.

    ``beside_folders``: what is written into them keeps an order of its own, and the log's writes do not wait for it.
    """
    disk = RealDisk(data_dir, direct_folders=(LOG_FOLDER, SNAPSHOT_FOLDER), beside_folders=beside_folders, own_thread=HARD_STATE_PATH)
    return Environment(SystemClock(), system_random(), disk, network, boot_id=_boot_id(), stopwatch=time.perf_counter)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
