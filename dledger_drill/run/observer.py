"""What is seen of the cluster from outside while rounds run: leaders by term, and resources of nodes.

Owns a thread that asks the nodes several times a second, and writes what it saw to the history.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil

from dledger_drill.cluster.cluster import Cluster
from dledger_drill.history.records import Operation, OperationKind, Outcome
from dledger_wire.errors import DledgerError

EVERY_S = 0.2
HANDLES_A_FILE = 2
PROCESS = "observer"


class Observer:
    """From its making until ``close``.  ``leaders`` is what was seen last: replica group -> node and term."""

    def __init__(self, cluster: Cluster, write: Callable[[Operation], None]) -> None:
        self.leaders: dict[str, tuple[str, int]] = {}
        self.round = 0
        self._noted: set[tuple[str, int]] = set()  # of one that is cut off, too: a term has one leader
        self._cluster, self._write = cluster, write
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="observer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(EVERY_S):
            with contextlib.suppress(DledgerError):
                self._look()

    def _look(self) -> None:
        at_ns = time.monotonic_ns()
        for group in self._cluster.group_statuses():
            for node in group.nodes:
                if node.role == "leader" and (node.id, node.term) not in self._noted:
                    self._noted.add((node.id, node.term))
                    self._note(OperationKind.LEADER, at_ns, {"group": group.name, "term": node.term, "node": node.id})
            if group.leader is not None:
                self.leaders[group.name] = group.leader.id, group.leader.term

    def sample_resources(self) -> None:
        """Of every node that is a process of this machine and runs."""
        for node in self._cluster.nodes:
            machine = self._cluster.machines.get(node)
            if machine is None or (process := machine.process) is None or process.poll() is not None:
                continue
            with contextlib.suppress(psutil.Error):
                found = psutil.Process(process.pid)
                with found.oneshot():
                    kept = Counter(file.path for file in found.open_files() if file.path.startswith(str(machine.disk.path)))
                    data = {
                        "node": node,
                        "rss_bytes": found.memory_info().rss,
                        # A log that grows has more files, each of them open to write and to read.
                        "files": found.num_fds() - sum(min(count, HANDLES_A_FILE) for count in kept.values()),
                        "threads": found.num_threads(),
                        "disk_bytes": 0,
                    }
                self._note(OperationKind.RESOURCE, time.monotonic_ns(), data)

    def _note(self, kind: OperationKind, at_ns: int, data: dict[str, object]) -> None:
        self._write(Operation(PROCESS, kind, at_ns, at_ns, Outcome.OK, self.round, data))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
