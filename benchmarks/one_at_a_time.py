"""One message at a time: latency, and what each process spends on a message: CPU, and how often its threads slept.

    python -m benchmarks.one_at_a_time --messages 2000            # PYTHONPATH chooses the code to measure

Where other work shares the machine only the last two are to be trusted; compare two versions by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bodies import Bodies
from benchmarks.processes import spent
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer

WARM = 200


def measured(messages: int, size: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as folder, PrivateCluster(Path(folder)) as cluster:
        cluster.start()
        bootstrap, leader = cluster.bootstrap, cluster.leader()
        with Admin(bootstrap) as admin:
            admin.create_topic("bench", queues=1, if_not_exists=True)
        nodes = {name: process.pid for name, process in cluster.processes.items()}
        pids = {"client": os.getpid(), "leader": nodes.pop(leader)}
        pids |= {f"follower {number}": pid for number, pid in enumerate(nodes.values(), 1)}
        with Producer(bootstrap, linger_ms=0) as producer:
            given = [Message("bench", body) for body in Bodies(size).many(0, WARM + messages)]
            for message in given[:WARM]:
                producer.send(message)
            before = {name: spent(pid) for name, pid in pids.items()}
            took = []
            for message in given[WARM:]:
                began = time.perf_counter()
                producer.send(message)
                took.append(time.perf_counter() - began)
            after = {name: spent(pid) for name, pid in pids.items()}
    return figures(sorted(took), before, after)


def figures(took: list[float], before: Mapping[str, tuple[float, int]], after: Mapping[str, tuple[float, int]]) -> dict[str, object]:
    count = len(took)
    found: dict[str, object] = {"p50_ms": round(1000 * took[count // 2], 3), "p99_ms": round(1000 * took[count * 99 // 100], 3)}
    for name in before:
        cpu_s, sleeps = after[name][0] - before[name][0], after[name][1] - before[name][1]
        found[name] = {"cpu_us": round(1e6 * cpu_s / count), "sleeps": round(sleeps / count, 2)}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--size", default="512-1536")
    options = parser.parse_args()
    print(json.dumps(measured(options.messages, options.size)))
