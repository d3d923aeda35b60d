"""A cluster whose processes run in network namespaces of the test: each where it is placed, all with one cluster file.

Owns starting and ending them, and asking from the space of a client.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness import ROOT
from tests.machines.spaces import Spaces

PASSWORD = "of the name servers of this test"
NODE_PORT, NAME_PORT, QUORUM_PORT, METRICS_PORT = 10911, 9876, 19876, 9464  # the table "Ports" of docs/reference/network.md


class Placed:
    """``client``: the space that commands and clients run in."""

    def __init__(self, spaces: Spaces, folder: Path, client: str, settings: dict[str, Any]) -> None:
        self.spaces, self.client = spaces, client
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "cluster.yaml"
        store = {"mappedFileSizeCommitLog": "4MiB", "maxMessageSize": "1MiB"}
        self._file.write_text(yaml.safe_dump({"cluster": "placed", "store": store, **settings}), encoding="utf-8")
        self.names = [server["id"] for server in settings["name_servers"]]
        self.nodes = [node["id"] for node in settings["groups"][0]["nodes"]]
        # A client needs no more than one process that answers; it is told names first, as routes are.
        members = [*settings["name_servers"], *settings["groups"][0]["nodes"]]
        self.bootstrap = ",".join(member["address"] for member in members)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        python = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
        self.environment = {"PYTHONPATH": python, "DLEDGER_CONFIG": str(self._file), "DLEDGER_NAME_SERVICE_PASSWORD": PASSWORD}

    # -- processes

    def start(self, name: str, space: str) -> None:
        """A node or a name server, by its id."""
        kind = "nameserver" if name in self.names else "node"
        argv = [
            sys.executable,
            "-P",
            "-m",
            "dledger_cli",
            kind,
            "--config",
            str(self._file),
            "--id",
            name,
            "--data",
            str(self.folder / "data"),
        ]
        self.running[name] = self.spaces.start(space, argv, log=self.folder / f"{name}.log", env=self.environment)

    def kill(self, name: str) -> None:
        """As a power loss: nothing is handed over."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def assert_running(self) -> None:
        for name, process in self.running.items():
            assert process.poll() is None, f"{name} ended: {self.log(name)[-2000:]}"

    # -- clients

    def argv(self, what: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tests.deploy.far_client", what, self.bootstrap, *arguments]

    def program(self, what: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        """Run ``far_client`` in the client's space; what it prints."""
        said = self.spaces.run(self.client, self.argv(what, *arguments), env=self.environment | (env or {}))
        return dict(json.loads(said.splitlines()[-1]))

    def wait_leader(self) -> str:
        """Once all that run know each other."""
        running = set(self.running)
        leader = self.program("state", str(len(running & set(self.nodes))), str(len(running & set(self.names))))["leader"]
        self.assert_running()
        return str(leader)

    def check_everything(self) -> None:
        """Clients, reads from followers and Spark are served, and clients again after the leader was killed."""
        sent, leader = 0, ""
        while not leader:
            sent += 50
            leader = self._reads_at_followers(sent)
        self.kill(leader)
        assert self.program("check", "10")["count"] == sent + 10
        assert self.wait_leader() != leader

    def _reads_at_followers(self, sent: int) -> str:
        """The leader, of which nothing was read; empty when a busy machine elected another one meanwhile."""
        leader = self.wait_leader()
        found = self.program("check", "50")
        spark = self.program("spark", env={"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable})
        assert (found["count"], spark["rows"]) == (sent, sent)
        if self.wait_leader() != leader:
            return ""
        assert {*found["replicas"], *spark["replicas"]} <= set(self.nodes) - {leader}
        return leader
