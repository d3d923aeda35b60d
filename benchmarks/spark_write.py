"""Spark's exactly-once batch writes, by turns with an older checkout: rows a second, CPU a row of every part.

    python -m benchmarks.spark_write [--rounds 5] [--rows 300000] [--size 1024] [--groups 1] [--queues 4]
                                    [--direct] [--before FOLDER]

Each side has a session of its own, local[2], which stays; the nodes are those of this checkout.  The rows come from a Parquet file with
numbered, incompressible bodies; ``--size 512-1536``: of every size between two.  Each round has a topic of its own, from which every
number is read back once after the clock has stopped.  ``--direct``: also with ``writeMode=direct``.  ``--before``: also the checkout in
that folder.
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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bodies import Bodies
from benchmarks.many_at_once import ROOT, cpu_of, mark

TASKS = 4  # of a write


# The side with Spark: a process for each checkout, which writes one topic for each line that it is given


def serve(bootstrap: str, file: str, mode: str) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from spark_bench import session  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(prefix="dledger-spark-write-") as work, session(Path(work)) as spark:
        rows = spark.read.parquet(file)
        print("ready", flush=True)
        for line in sys.stdin:
            writer = rows.write.format("dledger").option("bootstrap", bootstrap).option("topic", line.strip()).mode("append")
            if mode:  # a checkout of before the option does not know it
                writer = writer.option("writeMode", mode)
            before, began_s = parts_cpu(), time.perf_counter()
            writer.save()
            took_s = time.perf_counter() - began_s
            after = parts_cpu()
            print(json.dumps({"took_s": took_s} | {part: after[part] - before.get(part, 0) for part in after}), flush=True)


def parts_cpu() -> dict[str, float]:
    """Seconds of CPU of this session's JVM, of its tasks in Python, and of what else is Python: the commit, and the checks before."""
    import psutil

    found = {"jvm": 0.0, "tasks": 0.0, "commit": 0.0}
    for process in psutil.Process().children(recursive=True):
        try:
            times, words = process.cpu_times(), process.cmdline()
        except psutil.Error:  # it has ended, and its parent has it
            continue
        part = "jvm" if "java" in process.name() else "tasks" if words and words[-1] == "pyspark.worker" else "commit"
        # A worker that has ended is among what its parent counts of its children.
        found[part] += times.user + times.system + (times.children_user + times.children_system if part != "jvm" else 0)
    return found


# The side that compares


class Session:
    """A child process with a session of one checkout."""

    def __init__(self, folder: Path, bootstrap: str, file: Path, mode: str = "") -> None:
        line = [sys.executable, str(ROOT / "benchmarks" / "spark_write.py"), "--serve", bootstrap, str(file), mode]
        path = os.pathsep.join([str(folder), str(ROOT)])
        self._process = subprocess.Popen(
            line, cwd=folder, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the session of a checkout has ended")
        return line

    def write(self, topic: str) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic}\n")
        self._process.stdin.flush()
        figures: dict[str, float] = json.loads(self._answer())
        return figures

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def make_rows(file: Path, count: int, size: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"body": pa.array(Bodies(size).many(0, count), pa.binary())})
    pq.write_table(table, file, row_group_size=-(-count // TASKS), compression="none", use_dictionary=False)


def check(bootstrap: str, topic: str, count: int) -> None:
    """Every number is there once."""
    from dledger_client import PullConsumer

    seen = np.zeros(count, np.uint8)
    with PullConsumer(bootstrap) as consumer:
        for (group, queue_id), held in consumer.offsets(topic).items():
            offset = held.min_offset
            while offset < held.max_offset:
                table = consumer.fetch_arrow(topic, queue_id, offset, columns=["body"], replica_group=group)
                offset = int(table.schema.metadata[b"next_offset"])
                mark(seen, table["body"])
    if not (seen == 1).all():
        sys.exit(f"{topic}: {int((seen == 0).sum())} of {count} rows are missing, {int((seen > 1).sum())} are there more than once")


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--size", default="1024")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--before")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        compare(stack, arguments)


def compare(stack: ExitStack, arguments: argparse.Namespace) -> None:
    from dledger_cli.local.private_cluster import PrivateCluster

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dledger-spark-write-")))
    cluster = stack.enter_context(PrivateCluster(folder / "data", groups=arguments.groups))
    cluster.start()
    file = folder / "rows.parquet"
    make_rows(file, arguments.rows, arguments.size)
    folders = {"now": ROOT} | ({"before": Path(arguments.before).resolve()} if arguments.before else {})
    sessions = {name: Session(each, cluster.bootstrap, file) for name, each in folders.items()}
    if arguments.direct:
        sessions["direct"] = Session(ROOT, cluster.bootstrap, file, "direct")
    for each in sessions.values():
        stack.callback(each.close)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sessions}
    for number in range(-1, arguments.rounds):  # the first round warms up
        for name in sessions if number % 2 == 0 else reversed(sessions):
            figures = one_write(cluster, sessions[name], f"write-{name}-{number + 1}", arguments)
            if number >= 0:
                found[name].append(figures)
                print(json.dumps({"side": name} | figures), flush=True)
    for name, turns in found.items():
        line = {what: round(statistics.median(each[what] for each in turns), 2) for what in turns[0]}
        print(json.dumps({"side": name, "rows": arguments.rows, "size": arguments.size, "median of": len(turns)} | line), flush=True)
    for name in sorted(found.keys() - {"now"}):
        ratios = [other["took_s"] / now["took_s"] for other, now in zip(found[name], found["now"], strict=True)]
        print(json.dumps({f"rate by {name}": [round(ratio, 2) for ratio in ratios], "median": round(statistics.median(ratios), 2)}))


def one_write(cluster: Any, session: Session, topic: str, arguments: argparse.Namespace) -> dict[str, float]:
    from dledger_client import Admin

    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, queues=arguments.queues)
    cluster.wait_equal()
    pids = [process.pid for process in cluster.processes.values()]
    before_s = cpu_of(pids)
    figures = session.write(topic)
    us = {"nodes_us": 1e6 * (cpu_of(pids) - before_s)} | {f"{part}_us": 1e6 * figures[part] for part in ("jvm", "tasks", "commit")}
    check(cluster.bootstrap, topic, arguments.rows)
    rate = {"took_s": round(figures["took_s"], 3), "k_rows_per_s": round(arguments.rows / figures["took_s"] / 1000, 1)}
    return rate | {name: round(value / arguments.rows, 2) for name, value in us.items()}


if __name__ == "__main__":
    main()
