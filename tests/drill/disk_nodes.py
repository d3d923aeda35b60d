"""A group of real nodes, each on a disk and a clock that faults can strike, and a producer whose acknowledgements are kept.

Owns the least that faults of disks need of a cluster; links, members and certificates are not there.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dledger_client import Message, Producer, PullConsumer
from dledger_drill.hosts.folder_disk import FolderDisk
from dledger_drill.hosts.loop_disk import LoopDisk
from dledger_drill.hosts.machine import Links
from dledger_drill.hosts.preload import Preload, ShiftedClock
from dledger_wire.errors import DledgerError
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_S, wait_until

SETTINGS = {"store": {"mappedFileSizeCommitLog": "1MiB", "maxMessageSize": "256KiB", "cleanFileForciblyEnable": False}}
BODY_BYTES = 4000


class NodeProcess:
    """``Process`` of a node."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with open(log, "ab") as output:
            self._popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment))

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self, timeout_s: float) -> int:
        return self._popen.wait(timeout_s)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def terminate(self, timeout_s: float) -> int:
        self._popen.terminate()
        return self._popen.wait(timeout_s)

    def pause(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)


class NodeMachine:
    """``Machine`` on this host, with a loop disk or in a plain folder."""

    ip = "127.0.0.1"

    def __init__(self, name: str, folder: Path, loop: bool) -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.preload = Preload(folder / "control", folder / "mount" if loop else folder / "data")
        self.loop_disk = LoopDisk(folder, self.preload) if loop else None
        self.disk: FolderDisk = self.loop_disk or FolderDisk(folder / "data", self.preload)
        self.clock = ShiftedClock(self.preload)
        self.process: NodeProcess | None = None

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> NodeProcess:
        self.process = NodeProcess(command, log, os.environ | self.preload.environment | dict(environment))
        return self.process

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
        if self.loop_disk is not None:
            self.loop_disk.close()
        self.preload.close()


class DiskCluster:
    """``Target`` of one group of three nodes."""

    name_servers: Sequence[str] = ()

    def __init__(self, folder: Path, *, loop: bool = True) -> None:
        self.inner = Cluster(folder / "cluster", settings=SETTINGS)
        self.names = self.inner.local.node_ids()
        self.groups = {self.inner.config.groups[0].name: self.names}
        self.machines = {name: NodeMachine(name, folder / name, loop) for name in self.names}

    @property
    def group(self) -> str:
        return next(iter(self.groups))

    @property
    def links(self) -> Links:
        raise NotImplementedError

    def leader(self, group: str, timeout_s: float = 30.0) -> str:
        return self.inner.leader(timeout_s)

    def start_node(self, name: str) -> None:
        machine = self.machines[name]
        if machine.process is None or machine.process.poll() is not None:
            command = [sys.executable, "-P", "-m", "dledger_cli", "node", "--config", str(self.inner.local.file)]
            command += ["--id", name, "--data", str(machine.disk.path)]
            machine.start(command, self.inner.local.log_file(name), {"PYTHONPATH": str(ROOT)})

    def wait_healthy(self, timeout_s: float = LIMIT_S) -> None:
        self.inner.wait_healthy(timeout_s)

    def transfer_leader(self, group: str, to: str) -> None:
        raise NotImplementedError

    def replace_member(self, group: str, node: str) -> str:
        raise NotImplementedError

    def rotate_certificates(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()


class Load:
    """A producer that sends one message after the other to one queue, and when each was acknowledged."""

    def __init__(self, cluster: DiskCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        cluster.inner.cli_ok("topic", "create", topic, "--queues", "1")
        self.acknowledged: list[str] = []
        self.unknown: list[str] = []
        self.at: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with Producer(self._cluster.inner.bootstrap, "load", producer_id="load") as producer:
            number = 0
            while not self._stop.wait(0.004):
                number += 1
                body = f"{self._topic}/{number}"
                try:
                    producer.send(Message(self._topic, body.encode().ljust(BODY_BYTES)), queue_id=0)
                except DledgerError:
                    self.unknown.append(body)
                else:
                    self.at.append(time.monotonic())
                    self.acknowledged.append(body)

    def wait_for(self, count: int) -> None:
        """Until so many more were acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted, f"{count} more acknowledgements")

    def longest_gap_ms(self, since: float) -> float:
        times = [since, *(at for at in self.at if at > since)]
        return 1000 * max(later - before for before, later in itertools.pairwise(times))

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def stored(self) -> list[str]:
        with PullConsumer(self._cluster.inner.bootstrap) as consumer:
            found: list[str] = []
            while batch := consumer.fetch(self._topic, 0, len(found), 500, linearizable=True):
                found += [message.body.decode().strip() for message in batch]
        return found
