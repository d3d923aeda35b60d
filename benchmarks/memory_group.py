"""A limit of memory for the processes of a node, as a container has one: a cgroup, of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOTS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}  # of versions 1 and 2
ENDED_S = 30.0


class MemoryGroup:
    """A cgroup in which processes may use so much memory; ``OSError`` where none can be made."""

    def __init__(self, name: str, limit_bytes: int) -> None:
        root, limit = next(((root, limit) for root, limit in ROOTS.items() if _limits_memory(root)), (None, ""))
        if root is None:
            raise OSError("there is no cgroup controller of memory")
        self._outer, self._own = _group_of_this_process(root), root / name
        self._own.mkdir()
        try:
            (self._own / limit).write_text(str(limit_bytes))
        except OSError:
            self._own.rmdir()
            raise

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """What is started meanwhile is in the group; this process is only for as long."""
        own = str(os.getpid())
        (self._own / "cgroup.procs").write_text(own)
        try:
            yield
        finally:
            (self._outer / "cgroup.procs").write_text(own)

    def remove(self) -> None:
        """Once its processes have ended; ``TimeoutError`` when they do not."""
        until_s = time.monotonic() + ENDED_S
        while (self._own / "cgroup.procs").read_text():
            if time.monotonic() > until_s:
                raise TimeoutError(f"the processes of {self._own} did not end")
            time.sleep(0.05)
        self._own.rmdir()


def _limits_memory(root: Path) -> bool:
    if root.name == "memory":
        return (root / "cgroup.procs").exists()
    control = root / "cgroup.subtree_control"
    return control.exists() and "memory" in control.read_text().split()


def _group_of_this_process(root: Path) -> Path:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    of_memory = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    return root / (of_memory or [path for _, _, path in lines])[0].lstrip("/")
