"""How fast Spark reads a topic from the followers: one million messages of 1 KiB in local[2], session start-up not counted.

    python benchmarks/spark_read.py [--messages 1000000] [--columns all]

Starts a private cluster, fills a topic, then reads it twice with each projection; prints one JSON line a read.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TOPIC = "bench"
PROJECTIONS = {"body": "queue_id,queue_offset,body", "all columns": ""}


def fill(bootstrap: str, messages: int) -> None:
    from dledger_client import Admin, Message, Producer

    body = bytes(range(256)) * 4
    with Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, queues=4)
    with Producer(bootstrap) as producer:
        for _ in range(messages):
            producer.send_oneway(Message(TOPIC, body, tags="bench"))
        producer.flush()


def read(spark: Any, bootstrap: str, columns: str) -> tuple[int, float]:
    source = spark.read.format("dledger").option("bootstrap", bootstrap).option("topic", TOPIC)
    if columns:
        source = source.option("columns", columns)
    start = time.perf_counter()
    # Every column of every row is made and handed to Spark; "noop" throws them away there.
    source.load().write.format("noop").mode("overwrite").save()
    took_s = time.perf_counter() - start
    return source.load().count(), took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=1_000_000)
    arguments = parser.parse_args()
    from broker.cli.private_cluster import PrivateCluster

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    from pyspark.sql import SparkSession

    work = Path(tempfile.mkdtemp(prefix="dledger-spark-bench-"))
    try:
        with PrivateCluster(work / "data") as cluster:
            cluster.start()
            fill(cluster.bootstrap, arguments.messages)
            cluster.wait_equal()
            builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
            spark = builder.config("spark.local.dir", str(work / "spark")).getOrCreate()
            spark.range(10).count()
            for name, columns in PROJECTIONS.items():
                for attempt in (1, 2):
                    rows, took_s = read(spark, cluster.bootstrap, columns)
                    figures = {
                        "columns": name,
                        "attempt": attempt,
                        "rows": rows,
                        "took_s": round(took_s, 2),
                        "rows_per_s": round(rows / took_s),
                    }
                    print(json.dumps(figures), flush=True)
            spark.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
