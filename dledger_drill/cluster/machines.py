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
from dledger_drill.hosts.network import CLIENTS, Network
from dledger_drill.hosts.preload import Preload, ShiftedClock
from dledger_drill.hosts.processes import ChildProcess

LOOPBACK = "127.0.0.1"


class DrillMachine:
    """``Machine`` of hosts/machine.py.  ``namespace`` None: it shares the network of this process."""

    def __init__(self, name: str, ip: str, disk: FolderDisk, preload: Preload | None, namespace: int | None) -> None:
        self.name, self.ip, self.disk = name, ip, disk
        self.clock = ShiftedClock(preload)
        self.process: ChildProcess | None = None
        self._preload, self._namespace = preload, namespace

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ChildProcess:
        loaded = self._preload.environment if self._preload is not None else {}
        self.process = ChildProcess(command, log=log, environment={**environment, **loaded}, namespace=self._namespace)
        return self.process

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def close(self) -> None:
        """Kill its process and let its disk go."""
        if self.process is not None and self.runs:
            self.process.kill()
        if isinstance(self.disk, LoopDisk):
            self.disk.close()
        if self._preload is not None:
            self._preload.close()


class Machines:
    """Those of one cluster, by name.  ``network`` None: all share the network of this process."""

    def __init__(self, folder: Path, capabilities: Capabilities) -> None:
        self.by_name: dict[str, DrillMachine] = {}
        self._folder, self._capabilities = folder, capabilities
        self._stack = contextlib.ExitStack()
        self.network = self._stack.enter_context(Network()) if capabilities.network else None

    def add(self, name: str, *, faults_of_disk: bool) -> DrillMachine:
        """A machine; ``faults_of_disk``: with a disk and a clock that faults can strike."""
        folder = self._folder / name
        folder.mkdir(parents=True)
        preload = Preload(folder / "control", folder) if faults_of_disk and self._capabilities.shim else None
        loop = faults_of_disk and self._capabilities.loop_disks
        disk = LoopDisk(folder, preload) if loop else FolderDisk(folder / "data", preload)
        ip = self.network.add(name) if self.network is not None else LOOPBACK
        namespace = self.network.namespace(name) if self.network is not None else None
        machine = DrillMachine(name, ip, disk, preload, namespace)
        self._stack.callback(machine.close)
        self.by_name[name] = machine
        return machine

    def clients(self) -> int | None:
        """The network namespace of clients, made at the first call; None: that of this process."""
        if self.network is None:
            return None
        with contextlib.suppress(KeyError):
            return self.network.namespace(CLIENTS)
        self.network.add(CLIENTS)
        return self.network.namespace(CLIENTS)

    def close(self) -> None:
        self._stack.close()
