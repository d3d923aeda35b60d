"""Many messages by one call beside one call a message, by turns: CPU of the client and of the nodes, messages a second.

    python -m benchmarks.many_at_once [--rounds 5] [--megabytes 300] [--sizes 100 1024 512-1536] [--before FOLDER]

Each turn is a process of its own at a private cluster of three nodes.  Bodies are incompressible and start with their number; the turn
checks that each acknowledged number is read back once.  ``--before``: the folder of an older checkout, whose client takes part in what it
can do (its nodes do not).

    send_async, send_many             a future a message; lists of 20,000 bodies a call
    fetch, fetch_arrow                messages; tables of queue offset and body
    fetch local, fetch_arrow local    the same out of the nodes' log files
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
QUEUES, BODIES_A_CALL = 4, 20_000
NUMBER_BYTES = 8  # what bodies begin with (bodies.py)
SENDING, READING = ("send_async", "send_many"), ("fetch", "fetch_arrow", "fetch local", "fetch_arrow local")
OLD = ("send_async", "fetch", "fetch local")


# The client's side: a process for each turn


def send(mode: str, bootstrap: str, topic: str, count: int, size: str) -> None:
    from bodies import Bodies  # type: ignore[import-not-found]  # beside this file: a checkout that is on the path may have none

    from dledger_client import Message, Producer

    given = Bodies(size).many(0, count)
    with Producer(bootstrap, group="bench") as producer:
        producer.send(Message(topic, b"warm"))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        if mode == "send_many":
            calls = [producer.send_many_async(topic, given[first : first + BODIES_A_CALL]) for first in range(0, count, BODIES_A_CALL)]
            stored = sum(call.result().count for call in calls)
        else:
            futures = [producer.send_async(Message(topic, body)) for body in given]
            producer.flush()
            stored = sum(future.exception() is None for future in futures)
        told(stored, began_s, cpu_s)
    if stored != count:
        raise SystemExit(f"{count - stored} of {count} messages failed")


def read(mode: str, bootstrap: str, topic: str, count: int) -> None:
    from dledger_client import PullConsumer

    kind, _, local = mode.partition(" ")
    where = {"local_files": True, "near": frozenset({"127.0.0.1"})} if local else {}
    seen = np.zeros(count, np.uint8)
    with PullConsumer(bootstrap, **where) as consumer:  # type: ignore[arg-type]
        began_s, cpu_s, looked_s = time.perf_counter(), time.process_time(), 0.0
        for (_, queue_id), held in consumer.offsets(topic).items():
            offset = held.min_offset
            while offset < held.max_offset:
                if kind == "fetch":
                    messages = consumer.fetch(topic, queue_id, offset, 50_000, max_bytes=32 << 20)
                    offset, found = messages[-1].queue_offset + 1, [message.body for message in messages]
                else:
                    table = consumer.fetch_arrow(topic, queue_id, offset, columns=["queue_offset", "body"])
                    offset, found = int(table.schema.metadata[b"next_offset"]), table["body"]
                looking_s = time.process_time()
                mark(seen, found)
                looked_s += time.process_time() - looking_s
        told(count, began_s + looked_s, cpu_s + looked_s)
    if not (seen == 1).all():
        raise SystemExit(f"{int((seen == 0).sum())} of {count} messages were not read, {int((seen > 1).sum())} more than once")


def mark(seen: np.ndarray[tuple[int], np.dtype[np.uint8]], found: Any) -> None:
    """Count the numbers that bodies start with."""
    if not isinstance(found, list):
        import pyarrow.compute as pc

        found = pc.binary_slice(found, 0, NUMBER_BYTES).to_pylist()
    numbers = np.array([int.from_bytes(body[:NUMBER_BYTES], "big") for body in found if body[:4] != b"warm"], np.int64)
    np.add.at(seen, numbers, 1)


def told(count: int, began_s: float, cpu_s: float) -> None:
    cpu_us = 1e6 * (time.process_time() - cpu_s) / count
    print(json.dumps({"client_us": cpu_us, "k_messages_per_s": count / (time.perf_counter() - began_s) / 1000}))


# The side that compares


def turn(mode: str, folder: Path, arguments: list[str], node_pids: list[int]) -> dict[str, float]:
    before_s = cpu_of(node_pids)
    line = [sys.executable, str(ROOT / "benchmarks" / "many_at_once.py"), "--child", mode, *arguments]
    done = subprocess.run(line, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{mode}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"nodes_us": 1e6 * (cpu_of(node_pids) - before_s) / int(arguments[2])}


def cpu_of(pids: list[int]) -> float:
    """Seconds of CPU that processes have used."""
    import psutil

    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def compare(size: str, bootstrap: str, pids: list[int], arguments: argparse.Namespace) -> None:
    from benchmarks.bodies import parse_size
    from dledger_client import Admin

    count = arguments.megabytes * 2_000_000 // sum(parse_size(size))
    before = [f"{mode} before" for mode in OLD] if arguments.before else []
    found: dict[str, list[dict[str, float]]] = {}
    for round_ in range(arguments.rounds):
        for kind in (SENDING, READING):
            modes = [*kind, *(mode for mode in before if mode.removesuffix(" before") in kind)]
            for mode in modes if round_ % 2 == 0 else reversed(modes):
                name = mode.removesuffix(" before")
                topic = f"many-{size}-{round_}-{name if kind == SENDING else 'send_many'}"
                if kind == SENDING:
                    topic += "-before" if name != mode else ""
                    with Admin(bootstrap) as admin:
                        admin.create_topic(topic, queues=QUEUES)
                folder = ROOT if name == mode else Path(arguments.before)
                found.setdefault(mode, []).append(turn(name, folder, [bootstrap, topic, str(count), size], pids))
    for mode, turns in found.items():
        line = {name: round(statistics.median(each[name] for each in turns), 3) for name in turns[0]}
        print(json.dumps({"size": size, "messages": count, "mode": mode} | line), flush=True)


def main() -> None:
    from dledger_cli.local.private_cluster import PrivateCluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=300, help="of bodies a turn")
    parser.add_argument("--sizes", nargs="+", default=["100", "1024", "512-1536"])
    parser.add_argument("--before", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-many-") as made, PrivateCluster(Path(made) / "cluster") as cluster:
        cluster.start()
        pids = [status.pid for status in cluster.statuses().values() if status.pid]
        for size in arguments.sizes:
            compare(size, cluster.bootstrap, pids, arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        mode, bootstrap, topic, count, size = sys.argv[2:]
        if mode in SENDING:
            send(mode, bootstrap, topic, int(count), size)
        else:
            read(mode, bootstrap, topic, int(count))
    else:
        main()
