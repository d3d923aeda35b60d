"""What every bench prints: the banner that makes figures comparable, a progress bar for people, percentiles, one result line."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.config.units import format_size
from dledger_cli.context import cluster_status, run
from dledger_cli.output import clear_progress, note, print_json, show_progress, with_spaces
from dledger_wire.version import installed_version

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
BAR_WIDTH = 24


@dataclass
class Figures:
    """The result of one bench: counts, time, and a sample of latencies in milliseconds."""

    acknowledged: int = 0
    failed: int = 0
    bytes: int = 0
    took_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        marks = percentiles(self.latencies_ms)
        return {
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "took_s": round(self.took_s, 4),
            "messages_per_s": self.acknowledged / self.took_s if self.took_s else 0.0,
            "bytes_per_s": self.bytes / self.took_s if self.took_s else 0.0,
            "p50_ms": marks.get(50.0),
            "p95_ms": marks.get(95.0),
            "p99_ms": marks.get(99.0),
            "p999_ms": marks.get(99.9),
            "max_ms": max(self.latencies_ms, default=None),
        }

    def line(self, verb: str) -> str:
        per_s = self.acknowledged / self.took_s if self.took_s else 0.0
        rate = format_size(self.bytes / self.took_s if self.took_s else 0.0)
        marks = percentiles(self.latencies_ms)
        latency = " ".join(f"p{mark:g} {value:.2f}" for mark, value in marks.items())
        text = f"{verb} {with_spaces(self.acknowledged)}  failed {with_spaces(self.failed)}  {with_spaces(per_s)} msgs/s  {rate}/s"
        return f"{text}  latency ms {latency} max {max(self.latencies_ms):.1f}" if marks else text

    def show(self, verb: str, *, as_json: bool, checked: str = "", **more: Any) -> None:
        """``checked``: the sentence that says what was checked."""
        more |= {"checked": checked} if checked else {}
        if as_json:
            print_json(self.as_json() | more)
        else:
            print("\n".join([self.line(verb), checked] if checked else [self.line(verb)]), flush=True)


def percentiles(values: Sequence[float]) -> dict[float, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {mark: ordered[min(len(ordered) - 1, int(len(ordered) * mark / 100))] for mark in PERCENTILES}


def banner(config: ClusterConfig, what: str, folder: Path | None) -> str:
    """Settings and machine on one line, so that two results can be compared.  ``folder``: where the nodes' data lies, if we know."""
    voters = count_voters(config)
    place = _file_system(folder) if folder else "data of running nodes"
    return (
        f"{voters} node{'s' if voters != 1 else ''}, {config.store.flushDiskType}, {what}; "
        f"{os.cpu_count()} CPU, {place}, Python {platform.python_version()}, dledger {_version()}"
    )


def count_voters(config: ClusterConfig) -> int:
    """Nodes whose disks an acknowledgement may count: the voters, or all nodes of the file for a group without a leader."""
    groups = run(cluster_status(config))
    return sum(len(group.voters) if group.leader else len(group.nodes) for group in groups)


def _version() -> str:
    number = installed_version()
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S603, S607
        if done.returncode == 0:
            return f"{number} ({done.stdout.strip()})"
    return number


def _file_system(folder: Path) -> str:
    import psutil

    best = max(
        (part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)),
        key=lambda part: len(part.mountpoint),
        default=None,
    )
    return f"{best.fstype} on {best.device}" if best else "unknown file system"


class Progress:
    """A bar that renews itself on a terminal; nothing anywhere else."""

    def __init__(self, total: float, unit: str) -> None:
        self._total, self._unit = total, unit
        self._start = self._shown_at = time.monotonic()

    def update(self, done: float, acknowledged: int) -> None:
        now = time.monotonic()
        if now - self._shown_at < 0.2:
            return
        self._shown_at = now
        share = min(1.0, done / self._total) if self._total else 0.0
        bar = "█" * round(share * BAR_WIDTH) + "░" * (BAR_WIDTH - round(share * BAR_WIDTH))
        per_s = with_spaces(acknowledged / max(now - self._start, 0.001))
        show_progress(f" {bar} {done:.0f}/{self._total:.0f} {self._unit}  {per_s} msgs/s")

    def end(self) -> None:
        clear_progress()


def announce(config: ClusterConfig, what: str, folder: Path | None = None) -> None:
    note(banner(config, what, folder))
    if folder and _file_system(folder).startswith("tmpfs"):
        note(f"{folder} is in memory: syncs cost nothing there (set TMPDIR to a folder on a disk)")
