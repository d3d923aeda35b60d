"""``Machine`` of machine.py, put together from a name, an address, a disk, a clock, and the namespace that its processes run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dledger_drill.hosts.machine import Clock, Disk
from dledger_drill.hosts.processes import MachineProcess
from dledger_wire.check import require


class DrillMachine:
    """One process runs on it at a time.

    Args:
        namespace: Descriptor of its network namespace; None: it shares the network of this process.
        environment: For each of its processes: what the preloaded library wants.
    """

    def __init__(
        self,
        name: str,
        ip: str,
        disk: Disk,
        clock: Clock,
        *,
        namespace: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.ip, self.disk, self.clock = name, ip, disk, clock
        self.process: MachineProcess | None = None
        self._namespace = namespace
        self._environment = dict(environment or {})

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> MachineProcess:
        running = self.process
        require(running is None or running.poll() is not None, f"a process runs on {self.name}")
        added = {**environment, **self._environment}
        self.process = MachineProcess(command, log=log, environment=added, namespace=self._namespace)
        return self.process
