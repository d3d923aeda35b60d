"""What the Spark benchmarks share: a private cluster, a session, messages, a clock, one JSON line a figure.

Owns the surroundings of a run; everything is removed at its end.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bodies import Bodies

ROOT = Path(__file__).resolve().parent.parent
BODIES_A_CALL = 10_000


class Surroundings:
    """A running cluster, a session and a folder for files."""

    def __init__(self, cluster: Any, spark: Any, work: Path) -> None:
        self.cluster, self.spark, self.work = cluster, spark, work

    @property
    def bootstrap(self) -> str:
        return str(self.cluster.bootstrap)

    def source(self, topic: str, **options: Any) -> Any:
        reader = self.spark.read.format("dledger").option("bootstrap", self.bootstrap).option("topic", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each node so far."""
        times = {node: psutil.Process(process.pid).cpu_times() for node, process in self.cluster.processes.items()}
        return {node: each.user + each.system for node, each in times.items()}


@contextmanager
def session(work: Path) -> Iterator[Any]:
    """A local[2] session that keeps its files in ``work``."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.local.dir", str(work / "spark")).getOrCreate()
    spark.range(10).count()
    yield spark
    spark.stop()


@contextmanager
def surroundings() -> Iterator[Surroundings]:
    """Three nodes and a session."""
    from dledger_cli.local.private_cluster import PrivateCluster

    work = Path(tempfile.mkdtemp(prefix="dledger-spark-bench-"))
    try:
        with PrivateCluster(work / "data") as cluster:
            cluster.start()
            with session(work) as spark:
                yield Surroundings(cluster, spark, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fill(around: Surroundings, topic: str, messages: int, size: str) -> None:
    """A topic of four queues with messages of one size, or of sizes between two."""
    from dledger_client import Admin, Producer

    bodies = Bodies(size)
    with Admin(around.bootstrap) as admin:
        admin.create_topic(topic, queues=4)
    with Producer(around.bootstrap) as producer:
        for first in range(0, messages, BODIES_A_CALL):
            producer.send_many(topic, bodies.many(first, min(messages, first + BODIES_A_CALL)), tags="bench")
    around.cluster.wait_equal()


def everything(frame: Any) -> None:
    """Every column of every row is made and handed to Spark; "noop" throws them away there."""
    frame.write.format("noop").mode("overwrite").save()


def best_of(action: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the quickest of some rounds, the first of which also warms everything up."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def tell(what: str, rows: int, took_s: float, **more: Any) -> None:
    print(json.dumps({"what": what, "rows": rows, "took_s": round(took_s, 3), "rows_per_s": round(rows / took_s)} | more), flush=True)
