"""SYNC_FLUSH against ASYNC_FLUSH, by short turns: latency of a message alone, throughput, CPU of the nodes a message, memory.

    python -m benchmarks.flush [--messages 2000] [--bursts 40] [--burst 5000] [--size 1024]

Two private clusters run beside each other.  Messages go to one and the other in turn, one at a time, then in bursts that are flushed: other
load on the machine meets both alike.  The last line has the ratios, ASYNC_FLUSH by SYNC_FLUSH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import anonymous_mb, cpu_s
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client.aio import Admin, Message, Producer
from dledger_drill.bench.bodies import Bodies

MODES = ("SYNC_FLUSH", "ASYNC_FLUSH")
TOPIC = "t"


@dataclass
class Side:
    cluster: PrivateCluster
    producer: Producer
    alone_ms: list[float] = field(default_factory=list)
    burst_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    largest_mb: float = 0.0

    def cpu_so_far_s(self) -> float:
        return cpu_s(process.pid for process in self.cluster.processes.values())

    async def one(self, body: bytes) -> None:
        begun = time.perf_counter()
        await self.producer.send(Message(TOPIC, body), queue_id=0)
        self.alone_ms.append((time.perf_counter() - begun) * 1e3)

    async def burst(self, bodies: list[bytes]) -> None:
        begun, before_s = time.perf_counter(), self.cpu_so_far_s()
        for body in bodies:
            self.producer.send_async(Message(TOPIC, body))
        await self.producer.flush()
        self.burst_s.append(time.perf_counter() - begun)
        self.cpu_s += self.cpu_so_far_s() - before_s
        self.largest_mb = max(self.largest_mb, *(anonymous_mb(process.pid) for process in self.cluster.processes.values()))

    def figures(self, burst: int) -> dict[str, float]:
        ordered = sorted(self.alone_ms)
        return {
            "p50_ms": ordered[len(ordered) // 2],
            "p99_ms": ordered[len(ordered) * 99 // 100],
            "messages_per_s": burst / statistics.median(self.burst_s),
            "cpu_us": self.cpu_s / (len(self.burst_s) * burst) * 1e6,
            "largest_mb": self.largest_mb,
        }


async def measure(clusters: list[PrivateCluster], arguments: argparse.Namespace) -> None:
    bodies = Bodies(arguments.size, arguments.size)
    sides = []
    for cluster in clusters:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, queues=4)
        sides.append(Side(cluster, Producer(cluster.bootstrap, "flush", compress_type="none")))
    for side in sides:
        await side.burst([bodies.make(number) for number in range(arguments.burst)])  # routes, sessions, files
        side.burst_s.clear()
        side.cpu_s = 0.0
    for number in range(arguments.messages):
        for side in sides if number % 2 else sides[::-1]:
            await side.one(bodies.make(number))
    for number in range(arguments.bursts):
        made = [bodies.make(number * arguments.burst + each) for each in range(arguments.burst)]
        for side in sides if number % 2 else sides[::-1]:
            await side.burst(made)
    found = [side.figures(arguments.burst) for side in sides]
    for mode, figures in zip(MODES, found, strict=True):
        print(json.dumps({"mode": mode} | {name: round(value, 3) for name, value in figures.items()}))
    print(json.dumps({name: round(found[1][name] / found[0][name], 2) for name in found[0]}))
    for side in sides:
        await side.producer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("messages", 2000), ("bursts", 40), ("burst", 5000), ("size", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    with tempfile.TemporaryDirectory(prefix="dledger-flush-") as folder:
        sync, lazy = (PrivateCluster(Path(folder) / mode, settings={"store": {"flushDiskType": mode}}) for mode in MODES)
        with sync, lazy:
            for cluster in (sync, lazy):
                cluster.start()
            asyncio.run(measure([sync, lazy], parser.parse_args()))


if __name__ == "__main__":
    main()
