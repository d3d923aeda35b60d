"""dledger: a private cluster of three nodes with default settings."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.processes import cpu_s
from dledger_cli.local.private_cluster import PrivateCluster

# A disk of which much is used, but has room: dledger would refuse messages where the others go on writing.
ROOM = {"store": {"diskSpaceEnoughFree": 1 << 30}}


class DledgerServers(PrivateCluster):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, settings=ROOM)

    def __enter__(self) -> DledgerServers:
        try:
            self.start()
        except BaseException:
            self.kill_all()
            raise
        return self

    def cpu_s(self) -> float:
        return cpu_s(process.pid for process in self.processes.values())

    def kill_leader(self, named: str) -> tuple[str, float]:
        leader = self.leader()
        since = time.monotonic()
        self.kill(leader)
        return leader, since

    def start_again(self, node: str) -> None:
        self.start(node)


def servers(folder: Path) -> DledgerServers:
    return DledgerServers(folder)
