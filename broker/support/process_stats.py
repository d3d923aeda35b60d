"""What a node reports about its own process.  ``broker/process/process_reader.py`` reads it; a simulated node has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """``anonymous_bytes`` is memory the kernel cannot drop: what a leak would grow.  ``memory_bytes``: the machine's,
    or the limit of its cgroup.  ``cpu_s``: used.
    ``loop_lag_ms``: see ``LoopWatch``.  ``connections``: open ones, see ``Arrivals.by_kind``."""

    pid: int = 0
    rss_bytes: int = 0
    anonymous_bytes: int = 0
    version: str = ""
    memory_bytes: int = 0
    cpu_s: float = 0.0
    loop_lag_ms: float = 0.0
    connections: Mapping[str, int] = field(default_factory=dict, hash=False)
