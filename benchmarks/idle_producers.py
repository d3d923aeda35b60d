"""What producers that have sent one message, and nothing since, cost the leader: memory, descriptors, CPU.

    python -m benchmarks.idle_producers [--producers 1000,3000] [--settle-s 3]

Producers with connections of their own, in processes of 500.  Anonymous memory of the leader: before them, with them and
behind a message of each, and after they are closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.processes import anonymous_mb
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client.aio import Admin, Message, Producer

ROOT = Path(__file__).resolve().parent.parent
EACH = 500
AT_ONCE = 20


async def hold(bootstrap: str, count: int) -> None:
    """Open producers, send a message with each, say so, and close them when the input ends."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Producer:
        async with gate:
            producer = Producer(bootstrap, "idle", send_timeout_ms=60_000)
            await producer.send(Message("t", b"one"), queue_id=number % 4)
            return producer

    producers = await asyncio.gather(*(one(number) for number in range(count)))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.gather(*(producer.close() for producer in producers))


async def make_topic(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin, Producer(bootstrap, "first") as producer:
        await admin.create_topic("t", queues=4)
        for _ in range(2000):
            await producer.send(Message("t", b"one"))


def measure(cluster: PrivateCluster, count: int, settle_s: float) -> dict[str, object]:
    leader = psutil.Process(cluster.processes[cluster.leader()].pid)
    time.sleep(settle_s)
    before_mb, before_fds = anonymous_mb(leader.pid), leader.num_fds()
    command = [sys.executable, "-m", "benchmarks.idle_producers", "--hold", cluster.bootstrap]
    children = []
    begun = time.perf_counter()
    for first in range(0, count, EACH):
        line = [*command, "--producers", str(min(EACH, count - first))]
        child = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        children.append(child)
        if child.stdout is None or child.stdout.readline() != "ready\n":
            raise SystemExit("producers ended early")
    took_s = time.perf_counter() - begun
    time.sleep(settle_s)
    with_mb, with_fds = anonymous_mb(leader.pid), leader.num_fds()
    cpu = leader.cpu_times()
    time.sleep(10)
    later = leader.cpu_times()
    cpu_percent = (later.user + later.system - cpu.user - cpu.system) * 10
    for child in children:
        child.communicate("end\n")
    time.sleep(settle_s)
    return {
        "producers": count,
        "opened_s": round(took_s, 1),
        "leader_mb": [before_mb, with_mb, anonymous_mb(leader.pid)],
        "kib_each": round((with_mb - before_mb) * 1024 / count, 1),
        "descriptors_each": round((with_fds - before_fds) / count, 2),
        "idle_cpu_percent": round(cpu_percent, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--producers", default="1000,3000")
    parser.add_argument("--settle-s", type=float, default=3)
    parser.add_argument("--hold", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        asyncio.run(hold(arguments.hold, int(arguments.producers)))
        return
    for count in map(int, arguments.producers.split(",")):
        with tempfile.TemporaryDirectory(prefix="dledger-idle-") as folder, PrivateCluster(Path(folder)) as cluster:
            cluster.start()
            asyncio.run(make_topic(cluster.bootstrap))
            print(json.dumps(measure(cluster, count, arguments.settle_s)), flush=True)


if __name__ == "__main__":
    main()
