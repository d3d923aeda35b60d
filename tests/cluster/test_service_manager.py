"""A node, a spare node and a name server as a service manager sees them: real processes that tell a real socket how they fare."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dledger_cli.local.ports import free_ports
from tests.cluster.harness import ROOT, SMALL, Cluster
from tests.waiting import LIMIT_S


class Service:
    """A process that a manager started; what it says is kept by name, the newest of each."""

    def __init__(self, process: subprocess.Popen[bytes], manager: socket.socket) -> None:
        self.process, self._manager = process, manager
        self.said: dict[str, str] = {}

    def wait_for(self, name: str) -> str:
        while name not in self.said:
            self.said |= dict(line.split("=", 1) for line in self._manager.recv(4096).decode().split("\n"))
        return self.said[name]


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Service]:
    address = str(folder / arguments[arguments.index("--id") + 1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(LIMIT_S)
        environment = os.environ | {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-P", "-m", "dledger_cli", *arguments], env=environment, stderr=subprocess.PIPE)
        try:
            yield Service(process, manager)
        finally:
            process.kill()
            process.communicate()


def test_each_kind_of_process_says_that_it_is_ready_lives_and_stops(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    spares = [{"id": "sp0", "address": f"127.0.0.1:{port}", "host": "h9"}]
    cluster = make_cluster(nodes=1, name_servers=1, settings=SMALL | {"spares": spares})
    given = ("--config", str(cluster.local.file), "--data", str(cluster.data))
    with (
        started(tmp_path, "node", "--id", "n0", *given) as node,
        started(tmp_path, "node", "--id", "sp0", *given) as spare,
        started(tmp_path, "nameserver", "--id", "ns0", *given) as server,
    ):
        for service in (node, spare, server):
            service.wait_for("READY")
            service.wait_for("WATCHDOG")
        assert node.said["STATUS"].startswith("leader of replica group g0, term ")
        assert spare.said["STATUS"] == "spare node, waits for a replica group"
        assert server.said["STATUS"] == "leader of the name servers"
        for service in (node, spare, server):
            service.process.send_signal(signal.SIGTERM)
        for service in (node, spare, server):
            service.wait_for("STOPPING")
            assert service.process.wait(LIMIT_S) == 0, service.process.communicate()


def test_a_loop_that_hangs_leaves_its_place_in_the_log(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(nodes=1)
    with started(tmp_path, "node", "--id", "n0", "--config", str(cluster.local.file), "--data", str(cluster.data)) as node:
        node.wait_for("READY")
        node.process.send_signal(signal.SIGABRT)  # what the watchdog sends
        _, errors = node.process.communicate(timeout=LIMIT_S)
    assert b"Fatal Python error: Aborted" in errors
    assert b"broker/main.py" in errors
