"""The key index: keys a second into its files, queries by key, and what it costs those who produce.

    python -m benchmarks.index [--keys 10000000] [--queries 2000] [--folder DIR]        build and query, one process, real files
    python -m benchmarks.index --produce [--count 400000] [--rounds 3]                  produce with the index on and off, by turns
    python -m benchmarks.index --cluster [--keys 1000000] [--queries 2000]              query a running cluster, message and all

The first form feeds batches of 4096 messages, one key each, through what the dispatcher feeds; a query walks to the positions, without
reading messages.  The files lie where ``--folder`` says (default: the temporary folder) and are removed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
BATCH = 4096
FRAME_BYTES = 1024


class _NoLog:
    """As much of a log as an ``IndexSet`` looks at."""

    first_index = 1

    class last:
        index = 0

    durable = last

    def term_at(self, index: int) -> int | None:
        return None


def batch_template() -> bytearray:
    """A batch of messages whose hashes are to be filled in."""
    from dledger_wire.batches.batch import encode_batch

    hashes = np.ones(BATCH, np.int32)
    sizes = np.full(BATCH, FRAME_BYTES, np.uint32)
    return bytearray(encode_batch("t", 0, bytes(BATCH * FRAME_BYTES), sizes, hashes * 0, hashes))


async def build(folder: Path, keys: int) -> tuple[Any, dict[str, float]]:
    from dledger.runtime.real_disk import RealDisk
    from dledger_wire.batches.batch import BatchView
    from dledger_wire.store_layout import INDEX_ENTRIES, INDEX_SLOTS
    from store.key_index.index_file import Geometry
    from store.key_index.index_keys import KeyCollector
    from store.key_index.index_set import IndexSet

    index = IndexSet(RealDisk(str(folder)), Geometry(INDEX_SLOTS, INDEX_ENTRIES), cast(Any, _NoLog()), lambda: None)
    await index.open()
    template, draw = batch_template(), np.random.default_rng(1)
    view = BatchView(memoryview(template))
    at = view.frames_at - 4 * BATCH
    took = cpu = longest = 0.0
    for number in range(keys // BATCH):
        template[at : at + 4 * BATCH] = draw.integers(1, 1 << 31, BATCH).astype(">i4").tobytes()
        start, cpu_start = time.perf_counter(), time.process_time()
        collector = KeyCollector()
        collector.add(number + 1, number * len(template), view)
        await index.add(collector.take())
        step = time.perf_counter() - start
        took, longest, cpu = took + step, max(longest, step), cpu + time.process_time() - cpu_start
    start = time.perf_counter()
    await index.flush(slots=True)
    end = time.perf_counter() - start
    rates = {"keys_per_s": round(keys / (took + end)), "keys_per_cpu_s": round(keys / cpu)}
    return index, {**rates, "longest_step_ms": round(longest * 1000, 1), "slots_ms": round(end * 1000)}


async def query(index: Any, keys: int, queries: int) -> dict[str, float]:
    """Walk to the positions of keys that are there, drawn from all that were added."""
    from store.key_index.index_file import Window

    wanted = np.sort(np.random.default_rng(2).integers(0, keys // BATCH * BATCH, queries))
    draw, hashes, batch = np.random.default_rng(1), [], -1
    drawn: Any = None
    for number, place in (divmod(key, BATCH) for key in wanted.tolist()):
        while batch < number:
            drawn, batch = draw.integers(1, 1 << 31, BATCH), batch + 1
        hashes.append(int(drawn[place]))
    np.random.default_rng(3).shuffle(hashes)
    took = []
    for key_hash in hashes:
        start = time.perf_counter()
        found = [pos async for pos in index.find(key_hash, Window())]
        took.append(time.perf_counter() - start)
        if not found:
            raise SystemExit(f"key hash {key_hash} was added and is not found")
    return {"queries": len(took), "p50_ms": _percentile(took, 50), "p99_ms": _percentile(took, 99)}


def _percentile(took_s: list[float], percent: float) -> float:
    return round(float(np.percentile(took_s, percent)) * 1000, 3)


async def build_and_query(folder: Path, keys: int, queries: int) -> dict[str, Any]:
    index, figures = await build(folder, keys)
    found = await query(index, keys, queries)
    disk = sum(file.stat().st_blocks * 512 for file in (folder / "index").iterdir())
    await index.close()
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"keys": keys, **figures, **found, "disk_mb": disk >> 20, "peak_rss_mb": rss_mb}


def cpu_s(pid: int) -> float:
    """Processor time a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def produce_rate(work: Path, count: int, *, enabled: bool) -> tuple[float, float]:
    """(messages a second of ``dledger bench produce`` at a cluster of its own, microseconds of the nodes' processors a message)."""
    from dledger_cli.local.private_cluster import PrivateCluster

    cluster = PrivateCluster(work, settings={"store": {"messageIndexEnable": enabled}})
    try:
        cluster.start()
        command = [
            sys.executable,
            "-P",
            "-m",
            "dledger_cli",
            "bench",
            "produce",
            "--no-read-back",
            "-n",
            str(count),
            "--config",
            str(cluster.local.file),
            "--json",
        ]
        before = sum(cpu_s(process.pid) for process in cluster.processes.values())
        done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
        took = sum(cpu_s(process.pid) for process in cluster.processes.values()) - before
        return float(json.loads(done.stdout.splitlines()[-1])["messages_per_s"]), took * 1e6 / count
    finally:
        cluster.kill_all()
        shutil.rmtree(work, ignore_errors=True)


def produce_ratio(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    rates: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(rounds):
        for enabled in (True, False) if number % 2 else (False, True):
            rates[enabled].append(produce_rate(folder / f"c{number}{enabled}", count, enabled=enabled))
    (on, on_cpu), (off, off_cpu) = ([statistics.median(column) for column in zip(*rates[kind], strict=True)] for kind in (True, False))
    ratios = [round(one[0] / other[0], 3) for one, other in zip(rates[True], rates[False], strict=True)]
    figures = {"with_index": round(on), "without": round(off), "ratio": round(on / off, 3), "ratios": ratios}
    return figures | {
        "node_cpu_us_with": round(on_cpu, 2),
        "node_cpu_us_without": round(off_cpu, 2),
        "cpu_ratio": round(on_cpu / off_cpu, 3),
    }


def query_cluster(folder: Path, keys: int, queries: int) -> dict[str, Any]:
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin, Message, Producer

    cluster = PrivateCluster(folder / "data")
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            admin.create_topic("t", queues=4)
            for number in range(keys):
                producer.send_oneway(Message("t", bytes(100), keys=f"key-{number}"))
            producer.flush()
            start = time.perf_counter()
            admin.query_by_key("t", f"key-{keys - 1}")
            first = time.perf_counter() - start
            took = []
            for number in np.random.default_rng(1).integers(0, keys, queries).tolist():
                start = time.perf_counter()
                (message,) = admin.query_by_key("t", f"key-{number}").messages
                took.append(time.perf_counter() - start)
                if message.keys != f"key-{number}":
                    raise SystemExit(f"asked for key-{number}, found {message.keys}")
        return {"messages": keys, "first_ms": round(first * 1000, 1), "p50_ms": _percentile(took, 50), "p99_ms": _percentile(took, 99)}
    finally:
        cluster.kill_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--produce", action="store_true")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--count", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dledger-index-bench-", dir=arguments.folder))
    try:
        if arguments.produce:
            figures = produce_ratio(folder, arguments.count, arguments.rounds)
        elif arguments.cluster:
            figures = query_cluster(folder, arguments.keys, arguments.queries)
        else:
            figures = asyncio.run(build_and_query(folder, arguments.keys, arguments.queries))
        print(json.dumps(figures))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
