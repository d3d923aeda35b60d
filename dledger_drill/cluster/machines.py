"""The machines of a private cluster: each a network namespace, a disk and a clock of its own, as far as this machine lets it have them.

Owns all of them until ``close``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from dledger_drill.hosts.capabilities import Capabilities
from dledger_drill.hosts.folder_disk import FolderDisk
from dledger_drill.hosts.loop_disk import LoopDisk
from dledger_drill.hosts.machine import Clock, Disk
from dledger_drill.hosts.network import CLIENTS, Network
from dledger_drill.hosts.preload import Preload, ShiftedClock
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


LOOPBACK = "127.0.0.1"


class Machines:
    """Those of one cluster, by name.  ``network`` None: all share the network of this process."""

    def __init__(self, folder: Path, capabilities: Capabilities) -> None:
        self.by_name: dict[str, DrillMachine] = {}
        self._folder, self._capabilities = folder, capabilities
        self._stack = contextlib.ExitStack()
        self.network = self._stack.enter_context(Network()) if capabilities.network else None
        if self.network is not None:
            self.network.add(CLIENTS)

    def add(self, name: str, *, faults_of_disk: bool) -> DrillMachine:
        """A machine; ``faults_of_disk``: with a disk and a clock that faults can strike."""
        folder = self._folder / name
        folder.mkdir(parents=True)
        preload = Preload(folder / "control", folder) if faults_of_disk and self._capabilities.shim else None
        loop = faults_of_disk and self._capabilities.loop_disks
        disk = LoopDisk(folder, preload) if loop else FolderDisk(folder / "data", preload)
        ip = self.network.add(name) if self.network is not None else LOOPBACK
        namespace = self.network.namespace(name) if self.network is not None else None
        environment = preload.environment if preload is not None else None
        machine = DrillMachine(name, ip, disk, ShiftedClock(preload), namespace=namespace, environment=environment)
        self.by_name[name] = machine
        if preload is not None:
            self._stack.callback(preload.close)
        if isinstance(disk, LoopDisk):
            self._stack.callback(disk.close)
        self._stack.callback(_end, machine)
        return machine

    @property
    def loop_disks(self) -> bool:
        return self._capabilities.loop_disks

    @property
    def clients(self) -> int | None:
        """The network namespace of clients; None: that of this process."""
        return None if self.network is None else self.network.namespace(CLIENTS)

    def close(self) -> None:
        self._stack.close()


def _end(machine: DrillMachine) -> None:
    if machine.process is not None and machine.process.poll() is None:
        machine.process.kill()
