"""A cluster of real processes whose nodes run different builds, and load from clients of both.

Owns which process runs which build, and exchanging one for the other as an operator does: SIGTERM, start, wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from dledger_cli.context import nodes_of
from dledger_cli.local.local_process import LocalProcess, last_words
from dledger_client import Admin, PullConsumer
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_MS, LIMIT_S, wait_until


def environment_of(root: Path, **more: str) -> dict[str, str]:
    """Of a process that imports the build at ``root`` and nothing of another."""
    return os.environ | {"PYTHONPATH": str(root), **more}


class MixedCluster(Cluster):
    """``build``: where the sources of what each process runs are; ``old`` in the beginning."""

    def __init__(self, data: Path, old: Path, new: Path, **options: Any) -> None:
        super().__init__(data, **options)
        self.old, self.new = old, new
        self.build: dict[str, Path] = dict.fromkeys(self.local.all_ids(), old)

    def start(self, *node_ids: str, wait: bool = True, timeout_s: float | None = None) -> None:
        for node_id in node_ids or self.local.all_ids():
            self.processes[node_id] = self._spawn(node_id)
        if wait:
            self.wait_healthy(timeout_s)

    def _spawn(self, node_id: str) -> LocalProcess:
        kind = "nameserver" if node_id in self.local.name_server_ids() else "node"
        command = [sys.executable, "-P", "-m", "dledger_cli", kind, "--config", str(self.local.file)]
        command += ["--id", node_id, "--data", str(self.data)]
        with open(self.local.log_file(node_id), "ab") as log:
            return LocalProcess(command, log=log, environment=environment_of(self.build[node_id]))

    def exchange(self, node_id: str, build: Path) -> None:
        """Stop a node in order, start another build on its folder, and wait until it has caught up."""
        assert self.terminate(node_id) == 0
        self.build[node_id] = build
        self.start(node_id)

    def exchange_all(self, build: Path) -> None:
        """Node by node, the leader last, each after a look whether it may stop."""
        leader = self.leader()
        for node_id in sorted(self.local.node_ids(), key=lambda node_id: node_id == leader):
            if self.build[node_id] != build:
                self.may_stop()
                self.exchange(node_id, build)

    def may_stop(self) -> None:
        """Wait until ``upgrade-check`` finds nothing against stopping a node; asked without the start of a process."""
        with Admin(self.bootstrap, timeout_ms=LIMIT_MS) as admin:
            nodes = nodes_of(self.config)
            wait_until(lambda: not admin.upgrade_check(nodes=nodes).problems, "nothing speaks against stopping a node")

    def refused_start(self, node_id: str, build: Path) -> str:
        """The last words of a node that does not start."""
        self.build[node_id] = build
        process = self._spawn(node_id)
        assert process.wait(LIMIT_S) == 1
        return last_words(self.local.log_file(node_id))

    def stored(self, topic: str, queues: int) -> list[bytes]:
        """The bodies of all messages of a topic."""
        found: list[bytes] = []
        with PullConsumer(self.bootstrap, "reader") as consumer:
            for queue_id in range(queues):
                offset = 0
                while messages := consumer.fetch(topic, queue_id, offset, 1000):
                    found += [message.body for message in messages]
                    offset = messages[-1].queue_offset + 1
        return found


class OldProducer:
    """``dledger produce`` of the last release, fed with numbered lines until it is stopped."""

    def __init__(self, cluster: MixedCluster, topic: str, rate: float) -> None:
        self.bodies: list[bytes] = []
        self._rate = rate
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dledger_cli", "produce", topic, "--json", "--timeout", str(int(LIMIT_S))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_of(cluster.old, DLEDGER_CONFIG=str(cluster.local.file)),
        )
        self._stop = threading.Event()
        assert self._process.stdin is not None
        self._feeding = threading.Thread(target=self._feed, args=(self._process.stdin,))
        self._feeding.start()

    def _feed(self, stdin: IO[bytes]) -> None:
        while not self._stop.wait(1 / self._rate):
            body = b"old%d." % len(self.bodies)
            stdin.write(body + b"\n")
            stdin.flush()
            self.bodies.append(body)

    def finish(self) -> dict[str, Any]:
        """Its figures."""
        self._stop.set()
        self._feeding.join()
        out, errors = self._process.communicate(timeout=LIMIT_S)
        assert self._process.returncode == 0, errors.decode()
        return dict(json.loads(out))

    def kill(self) -> None:
        self._stop.set()
        self._feeding.join()
        self._process.kill()
        self._process.communicate()
