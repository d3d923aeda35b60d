"""Nodes of 512 MiB under more than they can take: large messages, disks of 1 s a sync, readers that stop, connections, floods of names.

    python -m benchmarks.attacks                  # all, on a cluster of its own for each
    python -m benchmarks.attacks --attack topics  # one

Attackers run in processes of their own.  A probe sends one small message after the other meanwhile; what it could not send is counted.
``benchmarks/overload.py`` has loads of producers only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import psutil

from benchmarks import overload
from benchmarks.memory_group import MemoryGroup
from benchmarks.processes import largest_mb
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer, aio
from dledger_drill.hosts.preload import Preload
from dledger_wire.errors import DledgerError

SECONDS = 15.0
LIMIT_BYTES = 512 << 20
SYNC_MS = 1000
CONNECTIONS, READERS, LANES, PROCESSES = 2000, 200, 16, 2
OLD_MESSAGES, OLD_BYTES = 3000, 64 << 10  # for readers
Counts = dict[str, int]


async def flood(one: Callable[[int], Awaitable[object]]) -> Counts:
    """Call ``one`` with numbers of its own, some at a time, until the time is over."""
    counts, until_s = {"done": 0, "failed": 0}, time.monotonic() + SECONDS

    async def lane(number: int) -> None:
        while time.monotonic() < until_s:
            try:
                await one(number)
                counts["done"] += 1
            except DledgerError:
                counts["failed"] += 1
            number += LANES

    await asyncio.gather(*map(lane, range(LANES)))
    return counts


async def topics(bootstrap: str) -> Counts:
    async with aio.Admin(bootstrap) as admin:
        return await flood(lambda number: admin.create_topic(f"flood-{os.getpid()}-{number}", queues=8))


async def groups(bootstrap: str) -> Counts:
    async def one(number: int) -> None:
        async with aio.PullConsumer(bootstrap, f"flood-{os.getpid()}-{number}") as consumer:
            ((_group, queue), *_) = await consumer.offsets("probe")
            await consumer.commit({("probe", queue): 0})

    return await flood(one)


async def connections(bootstrap: str) -> Counts:
    """Producers that send a message each, and stay."""
    counts, until_s = {"done": 0, "failed": 0}, time.monotonic() + SECONDS
    async with AsyncExitStack() as stack:
        for first in range(0, CONNECTIONS // PROCESSES, LANES):
            made = [aio.Producer(bootstrap, f"many-{os.getpid()}-{number}") for number in range(first, first + LANES)]
            for producer in made:
                await stack.enter_async_context(producer)
            for end in await asyncio.gather(*(producer.send(Message("probe", b"x")) for producer in made), return_exceptions=True):
                counts["failed" if isinstance(end, DledgerError) else "done"] += 1
            if time.monotonic() > until_s:
                break
        await asyncio.sleep(until_s - time.monotonic())
    return counts


async def readers(bootstrap: str) -> Counts:
    """Read what is old, all of it, again and again; the parent stops this process in the middle of that."""
    counts, until_s = {"done": 0, "failed": 0}, time.monotonic() + SECONDS

    async def one() -> None:
        async with aio.PullConsumer(bootstrap) as consumer:
            while time.monotonic() < until_s:
                for (group, queue), held in (await consumer.offsets("old")).items():
                    async for chunk in consumer.read_chunks("old", queue, held.min_offset, held.max_offset, replica_group=group):
                        counts["done"] += chunk.count

    for end in await asyncio.gather(*(one() for _ in range(READERS // PROCESSES)), return_exceptions=True):
        counts["failed"] += isinstance(end, BaseException)
    return counts


async def small_messages(bootstrap: str) -> Counts:
    return await _sent(bootstrap, overload.Load(20, 64 << 10, 2))


async def large_messages(bootstrap: str) -> Counts:
    return await _sent(bootstrap, overload.Load(100, 4 << 20, 2))


async def _sent(bootstrap: str, load: overload.Load) -> Counts:
    sent = await overload.send(bootstrap, load)
    return {name: int(str(sent[name])) for name in ("stored", "refused", "in doubt")}


ATTACKS = {
    "large messages": large_messages,
    "slow disks": small_messages,
    "stopped readers": readers,
    "connections": connections,
    "topics": topics,
    "groups": groups,
}


@contextmanager
def cluster_of(folder: Path, preload: Preload) -> Iterator[PrivateCluster]:
    """Three nodes, each in a cgroup of its own where one can be made."""
    settings = {"store": {"mappedFileSizeCommitLog": "64MiB"}}
    with ExitStack() as limits, PrivateCluster(folder, settings=settings) as cluster:
        is_limited = True
        for node_id in cluster.local.node_ids():
            with ExitStack() as starting:
                try:
                    limit = MemoryGroup(f"dledger-attack-{os.getpid()}-{node_id}", LIMIT_BYTES)
                except OSError:
                    is_limited = False
                else:
                    limits.callback(limit.remove)  # after the cluster's processes have ended
                    starting.enter_context(limit.starting())
                starting.enter_context(patch.dict(os.environ, preload.environment))
                cluster.start(node_id, wait=False)
        cluster.wait_healthy()
        if not is_limited:
            print("no cgroups here: memory is not limited", file=sys.stderr)
        yield cluster


def probe(bootstrap: str, seconds: float) -> dict[str, float]:
    """How many ms small messages take, one after the other, and how many were refused or are in doubt."""
    took, failed, until_s = list[float](), 0, time.monotonic() + seconds
    with Producer(bootstrap, "probe") as producer:
        while (began_s := time.monotonic()) < until_s:
            try:
                producer.send(Message("probe", b"x" * 100))
            except DledgerError:
                failed += 1
            took.append(1e3 * (time.monotonic() - began_s))
            time.sleep(overload.PROBE_EVERY_S)
    took.sort()
    return {"p50": round(took[len(took) // 2], 1), "p99": round(took[len(took) * 99 // 100], 1), "failed": failed}


def measured(name: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as scratch:
        folder = Path(scratch, "cluster")
        folder.mkdir()
        preload = Preload(Path(scratch, "control"), folder)
        with cluster_of(folder, preload) as cluster:
            return {"attack": name} | _carried_out(name, cluster, preload)


def _carried_out(name: str, cluster: PrivateCluster, preload: Preload) -> dict[str, object]:
    bootstrap = cluster.bootstrap
    with Admin(bootstrap) as admin:
        for topic in ("heavy", "probe", "old"):
            admin.create_topic(topic, queues=8)
    if name == "stopped readers":
        with Producer(bootstrap, compress_type="none") as producer:
            body = os.urandom(OLD_BYTES)
            for _ in range(OLD_MESSAGES):
                producer.send_async(Message("old", body))
    alone, term = probe(bootstrap, 3), overload.term_of(cluster)
    if name == "slow disks":
        preload.slow(SYNC_MS, 0)
    command = [sys.executable, "-m", "benchmarks.attacks", "--child", name, bootstrap]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    try:
        time.sleep(3)
        if name == "stopped readers":
            for child in children:
                child.send_signal(signal.SIGSTOP)
        beside = probe(bootstrap, SECONDS - 5)
        most = max(len(psutil.Process(process.pid).net_connections()) for process in cluster.processes.values())
        for child in children:
            child.send_signal(signal.SIGCONT)
        parts = [json.loads(child.communicate(timeout=4 * SECONDS)[0]) for child in children]
    finally:
        preload.slow(0, 0)
        for child in children:
            child.kill()
    return {
        **{end: sum(part[end] for part in parts) for end in parts[0]},
        "most connections": most,
        "probe ms": [alone, beside],
        "largest RSS MB": {node: largest_mb(process.pid) for node, process in cluster.processes.items()},
        "new leaders": overload.term_of(cluster) - term,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", choices=ATTACKS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(ATTACKS[options.child[0]](options.child[1]))))
    else:
        for chosen in [options.attack] if options.attack else ATTACKS:
            print(json.dumps(measured(chosen)), flush=True)
