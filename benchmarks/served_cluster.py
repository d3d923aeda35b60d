"""A private cluster of any checkout, in a process of its own: what benchmarks compare whose nodes take turns.

``python served_cluster.py TOPIC QUEUES``, run with the checkout's folder in PYTHONPATH, serves until its standard input ends.  ``-m`` would
not do: nodes import what the process that starts them imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """One replica group: where its leader is, and the pids of the leader and of a follower."""

    address: str
    bootstrap: str
    leader: int
    follower: int


@contextmanager
def served_cluster(code: Path, topic: str, queues: int) -> Iterator[ServedCluster]:
    """Three nodes that run the code of the checkout in ``code``, with a topic."""
    line = [sys.executable, str(Path(__file__).resolve()), topic, str(queues)]
    environment = os.environ | {"PYTHONPATH": str(code)}
    with subprocess.Popen(line, cwd=code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield ServedCluster(**json.loads(process.stdout.readline()))
        process.communicate()


def serve(topic: str, queues: int) -> None:
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin

    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as folder, PrivateCluster(Path(folder)) as cluster:
        cluster.start()
        leader = cluster.leader()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(topic, queues=queues)
        pids = {name: process.pid for name, process in cluster.processes.items()}
        found = {
            "address": next(node.address for _, node in cluster.config.all_nodes() if node.id == leader),
            "bootstrap": cluster.bootstrap,
            "leader": pids.pop(leader),
            "follower": next(iter(pids.values())),
        }
        print(json.dumps(found), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
