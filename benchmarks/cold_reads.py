"""Reads of old data, from the disk, beside new writes: what they cost those who write, and what a slow reader costs in memory.

    python -m benchmarks.cold_reads [--gigabytes 4] [--seconds 15]

Starts a private cluster and fills it; then messages of 1 KiB are sent one at a time, at a steady pace, and their latency is told: alone,
beside a reader that reads the backlog from the leader's disk as fast as it can (the log's pages are dropped from the page cache first), and
beside one that takes a chunk and then sleeps.  Anonymous memory of the leader is told for each.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.processes import anonymous_mb
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer, PullConsumer

BODY = bytes(1024)
PACE_S = 0.004
SLOW_PAUSE_S = 0.5


def latencies(bootstrap: str, seconds: float) -> dict[str, float]:
    """Milliseconds from send to acknowledgement of single messages, one every ``PACE_S``."""
    found: list[float] = []
    with Producer(bootstrap) as producer:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begin = time.perf_counter()
            producer.send(Message("live", BODY))
            found.append((time.perf_counter() - begin) * 1000)
            time.sleep(max(0.0, PACE_S - (time.perf_counter() - begin)))
    found.sort()
    return {"p50_ms": round(found[len(found) // 2], 2), "p99_ms": round(found[len(found) * 99 // 100], 2), "worst_ms": round(found[-1], 2)}


def drop_pages(folder: Path) -> None:
    for path in folder.glob("*/commitlog/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class Reader(threading.Thread):
    """Reads the backlog again and again until it is told to stop."""

    def __init__(self, bootstrap: str, folder: Path, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._address, self._folder, self._pause_s = bootstrap, folder, pause_s
        self.stopping = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        with PullConsumer(self._address, read_from="leader") as consumer:
            ends = {queue: held.max_offset for (_, queue), held in consumer.offsets("old").items()}
            while not self.stopping.is_set():
                drop_pages(self._folder)
                for queue, end in ends.items():
                    for chunk in consumer.read_chunks("old", queue, 0, end):
                        self.bytes += len(chunk.frames)
                        if self.stopping.wait(self._pause_s):
                            return


def measure(cluster: PrivateCluster, seconds: float, pause_s: float | None) -> dict[str, float]:
    leader = cluster.processes[cluster.leader()].pid
    reader = None if pause_s is None else Reader(cluster.bootstrap, cluster.data, pause_s)
    if reader is not None:
        reader.start()
    begin = time.monotonic()
    found = latencies(cluster.bootstrap, seconds)
    if reader is not None:
        found["read_mb_per_s"] = round(reader.bytes / (1 << 20) / (time.monotonic() - begin), 1)
    found["leader_anonymous_mb"] = anonymous_mb(leader)
    if reader is not None:
        reader.stopping.set()
        reader.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--seconds", type=float, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-cold-") as folder, PrivateCluster(Path(folder) / "data") as cluster:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("old", queues=4)
            admin.create_topic("live", queues=1)
        with Producer(cluster.bootstrap) as producer:
            for _ in range(int(arguments.gigabytes * (1 << 20))):
                producer.send_oneway(Message("old", BODY))
            producer.flush()
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "alone": lambda: measure(cluster, arguments.seconds, None),
            "beside cold reads": lambda: measure(cluster, arguments.seconds, 0.0),
            "beside a slow reader": lambda: measure(cluster, arguments.seconds, SLOW_PAUSE_S),
        }
        for name, run in runs.items():
            print(json.dumps({"what": name, **run()}), flush=True)


if __name__ == "__main__":
    main()
