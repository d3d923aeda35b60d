"""``spark.readStream.format("dledger")``: every message once, in bounded triggers, across a restart from the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dledger_client import Producer
from tests.cluster.harness import Cluster
from tests.spark.conftest import COUNT, TOPIC, send


def run_once(spark: Any, cluster: Cluster, folder: Path, **options: Any) -> Any:
    """Everything there is now, written to Parquet; the finished query."""
    stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC)
    for name, value in options.items():
        stream = stream.option(name, value)
    writer = stream.load().writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    return query


def read_back(spark: Any, folder: Path) -> list[tuple[int, int]]:
    return [
        (row.queue_id, row.queue_offset) for row in spark.read.parquet(str(folder / "out")).select("queue_id", "queue_offset").collect()
    ]


def test_a_restarted_stream_goes_on_where_its_checkpoint_says(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    run_once(spark, cluster, tmp_path)
    places = read_back(spark, tmp_path)
    assert len(places) == len(set(places)) == COUNT
    with Producer(cluster.bootstrap) as producer:
        send(producer, COUNT, COUNT + 500)
    run_once(spark, cluster, tmp_path)
    places = read_back(spark, tmp_path)
    assert len(places) == len(set(places)) == COUNT + 500


def test_triggers_are_bounded(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    query = run_once(spark, cluster, tmp_path, maxMessagesPerTrigger=1000)
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(sizes) >= COUNT // 1000
    assert max(sizes) <= 1000
    assert sum(sizes) == len(set(read_back(spark, tmp_path)))
