"""What a trigger of a streaming query costs before its tasks start, with many topics and queues: seconds of each call of the source.

    python -m benchmarks.spark_planning [--topics 1000] [--queues 100] [--groups 1] [--messages 2000] [--rounds 5]

A private cluster, and the source's reader as Spark's driver has it, without Spark.  The messages are spread over the queues;
every trigger plans a part of them.  The figures are of the first look right after that, and of the triggers behind the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

SENT_AT_ONCE, SEND_TIMEOUT_MS = 5_000, 60_000

T = TypeVar("T")


class Stopwatch:
    """Seconds of each call by name."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}

    def __call__(self, name: str, call: Callable[[], T]) -> T:
        began_s = time.perf_counter()
        result = call()
        self.took_s[name] = round(time.perf_counter() - began_s, 3)
        return result


def fill(bootstrap: str, topics: list[str], queues: int, messages: int) -> None:
    from dledger_client import Admin, Message, Producer

    with Admin(bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, queues=queues)
    with Producer(bootstrap, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for first in range(0, messages, SENT_AT_ONCE):
            sent = [
                producer.send_async(Message(topics[number % len(topics)], b"%d" % number), queue_id=number // len(topics) % queues)
                for number in range(first, min(messages, first + SENT_AT_ONCE))
            ]
            for each in sent:
                each.result()


def trigger(reader: Any, start: dict[str, Any], most: int) -> tuple[dict[str, Any], dict[str, float]]:
    """(end of the micro-batch, seconds of each call) as Spark makes them, offsets through JSON as in a checkpoint."""
    from pyspark.sql.streaming.datasource import ReadMaxRows

    watch = Stopwatch()
    began_s = time.perf_counter()
    end = watch("latestOffset", lambda: reader.latestOffset(start, ReadMaxRows(most)))
    watch("reportLatestOffset", reader.reportLatestOffset)
    stored = watch("json", lambda: json.loads(json.dumps(end)))
    planned = watch("partitions", lambda: reader.partitions(start, end))
    watch("commit", lambda: reader.commit(stored))
    return stored, watch.took_s | {"trigger": round(time.perf_counter() - began_s, 3), "tasks": len(planned)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("topics", 1000), ("queues", 100), ("groups", 1), ("messages", 2_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    from dledger_cli.local.private_cluster import PrivateCluster
    from pyspark_dledger.options.model import parse_read_options
    from pyspark_dledger.read.stream import StreamReader

    topics = [f"plan-{number:05}" for number in range(arguments.topics)]
    with (
        tempfile.TemporaryDirectory(prefix="dledger-planning-") as folder,
        PrivateCluster(Path(folder) / "data", groups=arguments.groups) as cluster,
    ):
        cluster.start()
        fill(cluster.bootstrap, topics, arguments.queues, arguments.messages)
        reader = StreamReader(parse_read_options({"bootstrap": cluster.bootstrap, "topicPattern": "plan-.*"}, stream=True))
        watch = Stopwatch()
        start = watch("first look", reader.initialOffset)
        print(json.dumps(watch.took_s), flush=True)
        most = -(-arguments.messages // (arguments.rounds + 1))
        rounds = []
        for _ in range(arguments.rounds + 1):
            start, took_s = trigger(reader, start, most)
            rounds.append(took_s)
        for took_s in rounds[1:]:
            print(json.dumps(took_s), flush=True)
        medians = {name: round(statistics.median(each[name] for each in rounds[1:]), 3) for name in rounds[0]}
        print(json.dumps({"topics": arguments.topics, "queues": arguments.queues, "offsets_bytes": len(json.dumps(start))} | medians))


if __name__ == "__main__":
    main()
