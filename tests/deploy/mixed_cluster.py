"""A cluster of real processes whose nodes run different builds.  Owns which process runs which build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dledger_client import PullConsumer
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_S


def environment_of(root: Path, **more: str) -> dict[str, str]:
    """Of a process that imports the build at ``root`` and nothing of another."""
    return os.environ | {"PYTHONPATH": str(root), **more}


class MixedCluster(Cluster):
    """``build``: where the sources of what each process runs are; ``old`` in the beginning."""

    def __init__(self, data: Path, old: Path, **options: Any) -> None:
        super().__init__(data, **options)
        self.build: dict[str, Path] = dict.fromkeys(self.local.all_ids(), old)

    def start(self, *node_ids: str, wait: bool = True, timeout_s: float | None = None) -> None:
        for node_id in node_ids or self.local.all_ids():
            self.processes[node_id] = self._spawn(node_id)
        if wait:
            self.wait_healthy(timeout_s)

    def _spawn(self, node_id: str) -> subprocess.Popen[bytes]:
        kind = "nameserver" if node_id in self.local.name_server_ids() else "node"
        command = [sys.executable, "-P", "-m", "dledger_cli", kind, "--config", str(self.local.file)]
        command += ["--id", node_id, "--data", str(self.data)]
        with open(self.local.log_file(node_id), "ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment_of(self.build[node_id])
            )

    def refused_start(self, node_id: str, build: Path) -> str:
        """The last words of a node that does not start."""
        self.build[node_id] = build
        process = self._spawn(node_id)
        assert process.wait(LIMIT_S) == 1
        return self.local.last_words(node_id)

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
