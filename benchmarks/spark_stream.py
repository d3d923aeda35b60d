"""How fast Spark streams from a topic, and writes to one: rows a second with available-now, smallest triggers, writes of both kinds.

    python -m benchmarks.spark_stream [--messages 200000] [--size 512-1536]

One JSON line a figure; start-up is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks.spark_bench import Surroundings, fill, surroundings, tell

SOURCE, TARGET = "bench", "copied"


def run(around: Surroundings, name: str, frame: Any, **writer_options: Any) -> tuple[float, list[Any]]:
    """(seconds, reports) of an available-now query to its end."""
    writer = frame.writeStream.option("checkpointLocation", str(around.work / name)).trigger(availableNow=True)
    for key, value in writer_options.items():
        writer = writer.format(value) if key == "format" else writer.option(key, value)
    start = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    return time.perf_counter() - start, query.recentProgress


def stream(around: Surroundings, **options: Any) -> Any:
    reader = around.spark.readStream.format("dledger").option("bootstrap", around.bootstrap).option("topic", SOURCE)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", default="512-1536")
    arguments = parser.parse_args()
    count = arguments.messages
    from dledger_client import Admin

    with surroundings() as around:
        fill(around, SOURCE, count, arguments.size)
        with Admin(around.bootstrap) as admin:
            admin.create_topic(TARGET, queues=4)
        run(around, "warm", stream(around), format="noop")
        took_s, _ = run(around, "one", stream(around), format="noop")
        tell("available-now, one batch, all columns", count, took_s)
        took_s, reports = run(around, "ten", stream(around, maxMessagesPerTrigger=-(-count // 10)), format="noop")
        tell("available-now, ten batches, all columns", count, took_s, batches=len(reports))
        _, reports = run(around, "small", stream(around, maxMessagesPerTrigger=-(-count // 50), columns="queue_offset"), format="noop")
        triggers = [report.batchDuration for report in reports if report.numInputRows]
        tell("smallest triggers", len(triggers), sum(triggers) / 1000, median_ms=statistics.median(triggers), min_ms=min(triggers))
        sink = {"format": "dledger", "bootstrap": around.bootstrap, "topic": TARGET}
        took_s, _ = run(around, "copy", stream(around, maxMessagesPerTrigger=-(-count // 4)).select("body", "tags"), **sink)
        tell("stream from topic to topic, exactly once, four batches", count, took_s)


if __name__ == "__main__":
    main()
