"""Single writes beside readers of old messages: by turns alone and beside them, on a cluster of its own.

    python -m benchmarks.cold_reads [--readers 1] [--turns 5]

The readers are processes of their own, and read all that lies in a topic of 600 MB again and again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer, PullConsumer

MESSAGES, BODY_BYTES = 150_000, 4096
TURN_S = 3.0
SETTLE_S = 0.3  # after which the readers are at work
PAUSE_S = 0.005  # between two writes


def read(consumer: PullConsumer, until_s: float) -> int:
    """How many messages were read by then."""
    count = 0
    while True:
        for (group, queue), held in consumer.offsets("old").items():
            for chunk in consumer.read_chunks("old", queue, held.min_offset, held.max_offset, replica_group=group):
                count += chunk.count
                if time.monotonic() > until_s:
                    return count


def reader(bootstrap: str) -> None:
    """Read for one turn at each line that comes, and print how much that was."""
    with PullConsumer(bootstrap, read_from="leader") as consumer:
        for _ in sys.stdin:
            print(read(consumer, time.monotonic() + TURN_S), flush=True)


def write(producer: Producer, seconds: float) -> list[float]:
    """How many ms each write took."""
    took, until_s = [], time.monotonic() + seconds
    while (began_s := time.monotonic()) < until_s:
        producer.send(Message("light", bytes(1000)))
        took.append((time.monotonic() - began_s) * 1000)
        time.sleep(PAUSE_S)
    return took


def marks(took: list[float]) -> dict[str, float]:
    took = sorted(took)
    return {"p50": round(took[len(took) // 2], 1), "p99": round(took[len(took) * 99 // 100], 1), "most": round(took[-1], 1)}


def measure(bootstrap: str, readers: int, turns: int) -> dict[str, object]:
    with Admin(bootstrap) as admin:
        for topic in ("old", "light"):
            admin.create_topic(topic, queues=4)
    with Producer(bootstrap, compress_type="none") as producer:
        body = os.urandom(BODY_BYTES)
        for _ in range(MESSAGES):
            producer.send_async(Message("old", body))
        producer.flush()
    command = [sys.executable, "-m", "benchmarks.cold_reads", "--reader", bootstrap]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(readers)]
    alone, beside, count = list[float](), list[float](), 0
    with Producer(bootstrap, linger_ms=0) as producer:
        write(producer, 1.0)
        for _ in range(turns):
            alone += write(producer, TURN_S)
            for process in processes:
                print("read", file=process.stdin, flush=True)
            time.sleep(SETTLE_S)
            beside += write(producer, TURN_S - 2 * SETTLE_S)
            count += sum(int(process.stdout.readline()) for process in processes if process.stdout is not None)
    for process in processes:
        process.communicate()
    times = marks(beside)["p99"] / marks(alone)["p99"]
    rate = count * BODY_BYTES / TURN_S / turns / 1e6
    return {
        "readers": readers,
        "alone ms": marks(alone),
        "beside ms": marks(beside),
        "times p99": round(times, 2),
        "read MB/s": round(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        reader(options.reader)
        return
    with tempfile.TemporaryDirectory(prefix="cold-reads-") as folder, PrivateCluster(Path(folder)) as cluster:
        cluster.start()
        print(json.dumps(measure(cluster.bootstrap, options.readers, options.turns)))


if __name__ == "__main__":
    main()
