"""What grows with used queues and consumer groups: start, memory, CPU at rest and of a snapshot, status, latency.

    python -m benchmarks.growth [--queues 1000,10000,50000] [--groups 100,1000,10000] [--quiet-s 20]

For each number a private cluster of three nodes gets one message of 100 B in each of so many queues (topics of 1000 queues), or so many
groups that have committed offsets of 16 queues.  Then, in this order: latency of messages one at a time right behind it; the CPU of a node
while nothing is sent, by slices of five seconds; the same with two messages a second, so that every snapshot has something new; latency
again; memory; ``dledger status``; the times to stop in order and to start again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.metrics import cpu_s
from benchmarks.processes import anonymous_mb
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client.aio import Admin, Message, Producer, PullConsumer

ROOT = Path(__file__).resolve().parent.parent
TOPIC_QUEUES = 1000
GROUP_QUEUES = 16
BODY = bytes(100)
SLICE_S = 5.0


async def use_queues(bootstrap: str, count: int) -> None:
    async with Admin(bootstrap) as admin, Producer(bootstrap, "growth", compress_type="none") as producer:
        for first in range(0, count, TOPIC_QUEUES):
            name, queues = f"t{first // TOPIC_QUEUES}", min(TOPIC_QUEUES, count - first)
            await admin.create_topic(name, queues=queues)
            sent = [producer.send_async(Message(name, BODY), queue_id=number) for number in range(queues)]
            for future in sent:
                await future


async def use_groups(bootstrap: str, count: int) -> None:
    async with Admin(bootstrap) as admin, Producer(bootstrap, "growth") as producer, PullConsumer(bootstrap, "growth") as consumer:
        await admin.create_topic("t0", queues=GROUP_QUEUES)
        for number in range(GROUP_QUEUES):
            await producer.send(Message("t0", BODY), queue_id=number)
        for number in range(count):
            consumer.group = f"group-{number}"  # one connection for all of them
            await consumer.commit({("t0", queue_id): 1 for queue_id in range(GROUP_QUEUES)})


async def latencies_ms(bootstrap: str, count: int, pause_s: float = 0.0) -> list[float]:
    found = []
    async with Producer(bootstrap, "growth-latency") as producer:
        await producer.send(Message("t0", BODY), queue_id=0)
        for _ in range(count):
            begun = time.perf_counter()
            await producer.send(Message("t0", BODY), queue_id=0)
            found.append((time.perf_counter() - begun) * 1e3)
            await asyncio.sleep(pause_s)
    return sorted(found)


def cpu_percent(cluster: PrivateCluster, meanwhile: Callable[[], object]) -> float:
    """Of one core, by each node, on average."""
    before_s, begun = cpu_s(cluster), time.perf_counter()
    meanwhile()
    return round((cpu_s(cluster) - before_s) / len(cluster.processes) / (time.perf_counter() - begun) * 100, 1)


def status_s(cluster: PrivateCluster) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-P", "-m", "dledger_cli", "status", "--config", str(cluster.local.file)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return round(time.perf_counter() - begun, 2)


def measure(kind: str, count: int, quiet_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dledger-growth-") as folder, PrivateCluster(Path(folder)) as cluster:
        cluster.start()
        begun = time.perf_counter()
        asyncio.run((use_queues if kind == "queues" else use_groups)(cluster.bootstrap, count))
        figures: dict[str, Any] = {kind: count, "made_s": round(time.perf_counter() - begun, 1)}
        at_once = asyncio.run(latencies_ms(cluster.bootstrap, 1000))
        figures |= {"first_p50_ms": round(at_once[500], 2), "first_p99_ms": round(at_once[990], 2), "first_max_ms": round(at_once[-1], 1)}
        figures["quiet_cpu_percent"] = [cpu_percent(cluster, lambda: time.sleep(SLICE_S)) for _ in range(int(quiet_s / SLICE_S))]
        # A little is always new, so that every snapshot is written.
        figures["busy_cpu_percent"] = cpu_percent(cluster, lambda: asyncio.run(latencies_ms(cluster.bootstrap, 40, 0.5)))
        later = asyncio.run(latencies_ms(cluster.bootstrap, 10_000))
        figures |= {"p50_ms": round(later[5000], 2), "p99_ms": round(later[9900], 2), "max_ms": round(later[-1], 1)}
        figures["anonymous_mb"] = [anonymous_mb(process.pid) for process in cluster.processes.values()]
        figures["status_s"] = status_s(cluster)
        begun = time.perf_counter()
        cluster.stop()
        figures["stop_s"], begun = round(time.perf_counter() - begun, 2), time.perf_counter()
        cluster.start(timeout_s=600)
        figures["start_s"] = round(time.perf_counter() - begun, 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", default="1000,10000,50000")
    parser.add_argument("--groups", default="100,1000,10000")
    parser.add_argument("--quiet-s", type=float, default=20)
    arguments = parser.parse_args()
    for kind in ("queues", "groups"):
        for count in filter(None, getattr(arguments, kind).split(",")):
            print(json.dumps(measure(kind, int(count), arguments.quiet_s)), flush=True)


if __name__ == "__main__":
    main()
