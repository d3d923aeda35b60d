"""Loads that ask for more than a cluster has: what is stored, what is in doubt, how much memory nodes take, whether leaders change.

    python -m benchmarks.overload                 # all loads, on a cluster of its own for each
    python -m benchmarks.overload --load 4MiB-2   # one

Producers run in processes of their own, each with connections of its own; a probe sends one small message after the other meanwhile.  The
``dledger bench overload`` command offers multiples of the capacity instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.processes import largest_mb
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer, aio
from dledger_wire.errors import DledgerError

SECONDS = 15.0
PROCESSES = 2
PROBE_EVERY_S = 0.05


@dataclass(frozen=True)
class Load:
    """``producers`` in all, each with ``depth`` messages of ``size_bytes`` in flight all the time."""

    producers: int
    size_bytes: int
    depth: int


LOADS = {
    "1KiB-64": Load(200, 1 << 10, 64),
    "64KiB-16": Load(200, 64 << 10, 16),
    "64KiB-8": Load(20, 64 << 10, 8),
    "1MiB-2": Load(200, 1 << 20, 2),
    "4MiB-1": Load(100, 4 << 20, 1),
    "4MiB-2": Load(200, 4 << 20, 2),
}


async def send(bootstrap: str, load: Load) -> dict[str, object]:
    """What the producers of one process do."""
    body, counts, took = os.urandom(load.size_bytes), {"stored": 0, "refused": 0, "in doubt": 0}, [0.0]
    until_s = time.monotonic() + SECONDS

    async def lane(producer: aio.Producer) -> None:
        while (began_s := time.monotonic()) < until_s:
            try:
                await producer.send(Message("heavy", body))
            except DledgerError as error:
                counts["in doubt" if error.outcome_unknown else "refused"] += 1
            else:
                counts["stored"] += 1
                took.append(time.monotonic() - began_s)

    async def one(number: int) -> None:
        async with aio.Producer(bootstrap, f"heavy-{number}", compress_type="none") as producer:
            await asyncio.gather(*(lane(producer) for _ in range(load.depth)))

    await asyncio.gather(*map(one, range(load.producers)))
    return counts | {"took": sorted(took)[:: max(1, len(took) // 1000)]}


def probe(bootstrap: str, seconds: float) -> list[float]:
    """Milliseconds that small messages take, one after the other, in rising order."""
    took = []
    with Producer(bootstrap, "probe") as producer:
        for _ in range(20):
            producer.send(Message("probe", b"x"))
        until_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < until_s:
            producer.send(Message("probe", b"x" * 100))
            took.append(1e3 * (time.monotonic() - began_s))
            time.sleep(PROBE_EVERY_S)
    return sorted(took)


def measured(name: str) -> dict[str, object]:
    load = LOADS[name]
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as folder, PrivateCluster(Path(folder)) as cluster:
        cluster.start()
        bootstrap, term = cluster.bootstrap, term_of(cluster)
        with Admin(bootstrap) as admin:
            for topic in ("heavy", "probe"):
                admin.create_topic(topic, queues=8)
        alone = probe(bootstrap, 5)
        part = Load(load.producers // PROCESSES, load.size_bytes, load.depth)
        command = [sys.executable, "-m", "benchmarks.overload", "--child", bootstrap, json.dumps(asdict(part))]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
        time.sleep(2)
        beside = probe(bootstrap, SECONDS - 4)
        parts = [json.loads(child.communicate()[0]) for child in children]
        took = sorted(second for each in parts for second in each["took"])
        stored = sum(each["stored"] for each in parts)
        return {
            "load": name,
            "stored MB/s": round(stored * load.size_bytes / SECONDS / 1e6, 1),
            "p50 s": round(took[len(took) // 2], 2),
            "p99 s": round(took[len(took) * 99 // 100], 2),
            **{end: sum(each[end] for each in parts) for end in ("stored", "refused", "in doubt")},
            "probe p99 ms": [round(each[len(each) * 99 // 100], 1) for each in (alone, beside)],
            "largest RSS MB": {node: largest_mb(process.pid) for node, process in cluster.processes.items()},
            "new leaders": term_of(cluster) - term,
        }


def term_of(cluster: PrivateCluster) -> int:
    return max(node.term for node in cluster.statuses().values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", choices=LOADS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(send(options.child[0], Load(**json.loads(options.child[1]))))))
    else:
        for chosen in [options.load] if options.load else LOADS:
            print(json.dumps(measured(chosen)), flush=True)
