"""The Spark session of benchmarks/spark_kafka.py, in the environment that has the Kafka connector's Spark; prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.spark_bench import everything, session

TASKS = 4
BODY = {"kafka": "value", "dledger": "body"}
NAMES = tuple(BODY)


def frame(spark: Any, job: dict[str, Any], name: str, size: str, *, whole: bool) -> Any:
    topic = f"spark-{size}"
    if name == "kafka":
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", job["kafka"]).option("subscribe", topic)
        found = reader.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()
        return found if whole else found.select("value")
    reader = spark.read.format("dledger").option("bootstrap", job["dledger"]).option("topic", topic).option("minPartitions", TASKS)
    return reader.load() if whole else reader.option("columns", "body").load()


def check(spark: Any, job: dict[str, Any], name: str, size: str) -> None:
    """Every message is there once, with its length; this read also warms up."""
    body = BODY[name]
    asked = frame(spark, job, name, size, whole=False).selectExpr(
        "count(*)", f"count(distinct substring({body}, 1, 8))", f"sum(length({body}))"
    )
    found, wanted = tuple(asked.first()), (job["messages"], job["messages"], Bodies(size).total_bytes(job["messages"]))
    if found != wanted:
        sys.exit(f"{name}, {size} B: count, distinct numbers and bytes are {found}; expected {wanted}")


def by_turns(spark: Any, job: dict[str, Any], size: str, *, whole: bool) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in NAMES}
    for round_ in range(job["rounds"]):
        for name in NAMES if round_ % 2 == 0 else reversed(NAMES):
            began = time.perf_counter()
            everything(frame(spark, job, name, size, whole=whole))
            took[name].append(time.perf_counter() - began)
    return took


def main() -> None:
    job = json.loads(sys.argv[1])
    figures = []
    with session(Path(job["work"])) as spark:
        for size in job["sizes"]:
            for name in NAMES:
                check(spark, job, name, size)
            for whole in (False, True):
                what = f"{size} B, {'all columns' if whole else 'value or body only'}"
                figures.append({"what": what, "rows": job["messages"], "took_s": by_turns(spark, job, size, whole=whole)})
    checked = f"checked in both: {job['messages']} messages of each size, all numbers distinct, sums of lengths as sent"
    print(json.dumps({"figures": figures, "checked": checked}))


if __name__ == "__main__":
    main()
