"""Bulk reads over the network from nodes of two checkouts, by turns: CPU of the nodes a GiB, messages a second, latency of small reads.

    python -m benchmarks.bulk_reads --before FOLDER [--rounds 7] [--megabytes 500] [--size 512-1536] [--client-before]

Each checkout has a private cluster of three nodes, filled alike; the other one idles during a turn.  Everything is read once before the
turns, so that it comes from the page cache.  Each turn is a process of its own, of this checkout; with ``--client-before`` that of the
nodes read from, which compares both sides at once.  Bodies start with their number, and each number is read once.

    chunks         frames as they come, with every body checked (what Spark and ``fetch_arrow`` start from)
    fetch_arrow    tables of queue offset and body
    fetch          messages
    small          one message a fetch: microseconds, median and p99
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.bodies import NUMBER_BYTES, Bodies, parse_size
from benchmarks.served_cluster import ServedCluster, served_cluster

ROOT = Path(__file__).resolve().parent.parent
QUEUES, BODIES_A_CALL, SMALL_READS = 4, 20_000, 2000
MODES = ("chunks", "fetch_arrow", "fetch", "small")
TOPIC = "bulk"


# A reader: a process for each turn


def read(mode: str, bootstrap: str, count: int) -> None:
    from dledger_client import PullConsumer

    seen = np.zeros(count, np.uint8)
    with PullConsumer(bootstrap) as consumer:
        if mode == "small":
            print(json.dumps(small_reads(consumer)))
            return
        began_s, cpu_s, looked_s = time.perf_counter(), time.process_time(), 0.0
        for found in batches(consumer, mode):
            looking_s = time.process_time()
            np.add.at(seen, np.array([int.from_bytes(number, "big") for number in found], np.int64), 1)
            looked_s += time.process_time() - looking_s
        wall_s, cpu_s = time.perf_counter() - began_s - looked_s, time.process_time() - cpu_s - looked_s
    if not (seen == 1).all():
        raise SystemExit(f"{int((seen == 0).sum())} of {count} messages were not read, {int((seen > 1).sum())} more than once")
    print(json.dumps({"k_messages_per_s": count / wall_s / 1000, "client_us": 1e6 * cpu_s / count}))


def batches(consumer: object, mode: str) -> Iterator[list[bytes]]:
    """The numbers that bodies start with."""
    from dledger_client import PullConsumer

    assert isinstance(consumer, PullConsumer)
    for (_, queue_id), held in consumer.offsets(TOPIC).items():
        offset = held.min_offset
        if mode == "chunks":
            for chunk in consumer.read_chunks(TOPIC, queue_id, offset, held.max_offset):
                frames = memoryview(chunk.frames)
                yield [bytes(frames[at : at + NUMBER_BYTES]) for at in chunk.columns.body_at.tolist()]
            continue
        while offset < held.max_offset:
            if mode == "fetch":
                messages = consumer.fetch(TOPIC, queue_id, offset, 50_000, max_bytes=32 << 20)
                offset = messages[-1].queue_offset + 1
                yield [message.body[:NUMBER_BYTES] for message in messages]
            else:
                import pyarrow.compute as pc

                table = consumer.fetch_arrow(TOPIC, queue_id, offset, columns=["queue_offset", "body"])
                offset = int(table.schema.metadata[b"next_offset"])
                yield pc.binary_slice(table["body"], 0, NUMBER_BYTES).to_pylist()


def small_reads(consumer: object) -> dict[str, float]:
    from dledger_client import PullConsumer

    assert isinstance(consumer, PullConsumer)
    took: list[float] = []
    for number in range(SMALL_READS):
        began_s = time.perf_counter()
        (message,) = consumer.fetch(TOPIC, number % QUEUES, number, 1)
        took.append(time.perf_counter() - began_s)
        assert message.queue_offset == number
    took.sort()
    return {"p50_us": 1e6 * took[len(took) // 2], "p99_us": 1e6 * took[len(took) * 99 // 100]}


# The side that compares


class Side:
    """The cluster of one checkout, filled."""

    def __init__(self, folder: Path, cluster: ServedCluster, count: int, size: str) -> None:
        from dledger_client import Producer

        self.folder, self.bootstrap, self.pids = folder, cluster.bootstrap, (cluster.leader, cluster.follower)
        bodies = Bodies(size)
        self._total_bytes = bodies.total_bytes(count)
        with Producer(self.bootstrap) as producer:
            for first in range(0, count, BODIES_A_CALL):
                producer.send_many(TOPIC, bodies.many(first, min(count, first + BODIES_A_CALL)))

    def turn(self, mode: str, count: int, client: Path) -> dict[str, float]:
        before_s = self.cpu_s()
        line = [sys.executable, str(ROOT / "benchmarks" / "bulk_reads.py"), "--child", mode, self.bootstrap, str(count)]
        path = {"PYTHONPATH": os.pathsep.join(map(str, (client, ROOT)))}
        done = subprocess.run(line, cwd=client, env=os.environ | path, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{mode}: {done.stderr}")
        found: dict[str, float] = json.loads(done.stdout)
        if mode != "small":
            found["nodes_s_per_gib"] = (self.cpu_s() - before_s) * (1 << 30) / self._total_bytes
        return found

    def cpu_s(self) -> float:
        """Of CPU that leader and one follower have used."""
        import psutil

        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--size", default="512-1536")
    parser.add_argument("--client-before", action="store_true")
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    arguments = parser.parse_args()
    count = arguments.megabytes * 2_000_000 // sum(parse_size(arguments.size))
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        folders = {"before": Path(arguments.before).resolve(), "now": ROOT}
        clusters = {name: stack.enter_context(served_cluster(folder, TOPIC, QUEUES)) for name, folder in folders.items()}
        sides = {name: Side(folders[name], cluster, count, arguments.size) for name, cluster in clusters.items()}
        for round_ in range(arguments.rounds + 1):
            for mode in arguments.modes:
                for name in sorted(sides, reverse=round_ % 2 == 1):
                    told = sides[name].turn(mode, count, sides[name].folder if arguments.client_before else ROOT)
                    if round_:  # the first one warms the page cache
                        found.setdefault((mode, name), []).append(told)
    for (mode, name), turns in found.items():
        line = {what: round(statistics.median(turn[what] for turn in turns), 3) for what in turns[0]}
        print(json.dumps({"mode": mode, "nodes": name} | line), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
