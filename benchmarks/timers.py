"""How exactly messages with a delivery time of their own come: late by how much, with many waiting and producers at work.

    python -m benchmarks.timers [--messages 100000] [--spread-s 20] [--load-rate 20000] [--pending 0]

Starts a private cluster, parks messages whose times are spread evenly, sends ordinary messages beside them, and compares each delivered
message's store time with the time it asked for.  ``--pending`` parks that many more, due in an hour, to see what they cost in memory.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.processes import anonymous_mb

TOPIC, LOAD = "timed", "load"


def park(bootstrap: str, messages: int, first_ms: int, spread_ms: int) -> None:
    from dledger_client import Message, Producer

    rng = random.Random(1)
    with Producer(bootstrap) as producer:
        for _ in range(messages):
            producer.send_oneway(Message(TOPIC, bytes(256), deliver_at_ms=first_ms + int(rng.random() * spread_ms)))
        producer.flush()


def load(bootstrap: str, rate: int, stop: threading.Event) -> None:
    from dledger_client import Message, Producer

    with Producer(bootstrap) as producer:
        start, sent = time.monotonic(), 0
        while not stop.is_set():
            for _ in range(max(1, rate // 100)):
                producer.send_oneway(Message(LOAD, bytes(1024)))
                sent += 1
            stop.wait(max(0.0, start + sent / rate - time.monotonic()))


def lateness(bootstrap: str, messages: int, timeout_s: float) -> np.ndarray:
    """Store time less wished time of every delivered message, ms."""
    from dledger_client import PullConsumer

    late: list[int] = []
    deadline = time.monotonic() + timeout_s
    with PullConsumer(bootstrap) as consumer:
        at = dict.fromkeys(range(4), 0)
        while len(late) < messages and time.monotonic() < deadline:
            for queue in at:
                for message in consumer.fetch(TOPIC, queue, at[queue], 2000, wait_ms=20):
                    at[queue] += 1
                    late.append(message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"]))
    return np.array(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--spread-s", type=float, default=20)
    parser.add_argument("--load-rate", type=int, default=20_000, help="ordinary messages of 1 KiB a second beside them; 0 is none")
    parser.add_argument("--pending", type=int, default=0)
    arguments = parser.parse_args()
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin

    work = Path(tempfile.mkdtemp(prefix="dledger-timer-bench-"))
    cluster = PrivateCluster(work / "data")
    try:
        cluster.start()
        bootstrap = cluster.bootstrap
        with Admin(bootstrap) as admin:
            admin.create_topic(TOPIC, queues=4)
            admin.create_topic(LOAD, queues=4)
        now_ms = time.time_ns() // 1_000_000
        if arguments.pending:
            park(bootstrap, arguments.pending, now_ms + 3_600_000, 3_600_000)
        lead_s = 3 + arguments.messages / 100_000
        park(bootstrap, arguments.messages, time.time_ns() // 1_000_000 + int(lead_s * 1000), int(arguments.spread_s * 1000))
        stop = threading.Event()
        loader = threading.Thread(target=load, args=(bootstrap, arguments.load_rate, stop))
        if arguments.load_rate:
            loader.start()
        late = lateness(bootstrap, arguments.messages, lead_s + arguments.spread_s + 60)
        stop.set()
        if arguments.load_rate:
            loader.join()
        figures = {
            "delivered": len(late),
            "wanted": arguments.messages,
            "early": int((late < 0).sum()),
            "p50_ms": float(np.percentile(late, 50)),
            "p99_ms": float(np.percentile(late, 99)),
            "worst_ms": int(late.max()),
            "within_200_ms": float((late <= 200).mean()),
            "anonymous_mb": {name: round(anonymous_mb(process.pid)) for name, process in cluster.processes.items()},
        }
        print(json.dumps(figures))
    finally:
        cluster.kill_all()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
