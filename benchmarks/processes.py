"""What the benchmarks look at in the processes they start."""

from __future__ import annotations

from pathlib import Path


def anonymous_mb(pid: int) -> float:
    """Anonymous memory of a process in MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(fields["RssAnon"].split()[0]) / 1024, 1)
