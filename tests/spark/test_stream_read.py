"""``spark.readStream.format("dledger")``: every message once, in bounded triggers, across a restart from the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger_client import Admin, Message, Producer, PullConsumer
from pyspark_dledger.lag import LagListener, lag_of
from tests.cluster.harness import Cluster
from tests.spark.conftest import ADMISSION_CONTROL, COUNT, TOPIC, needs_admission_control, send
from tests.waiting import LIMIT_S, wait_until


def run_once(spark: Any, cluster: Cluster, folder: Path, topic: str = TOPIC, trigger: dict[str, Any] | None = None, **options: Any) -> Any:
    """Everything there is now, written to Parquet; the finished query."""
    stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", topic)
    for name, value in options.items():
        stream = stream.option(name, value)
    writer = stream.load().writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger or {"availableNow": True}).start()
    assert query.awaitTermination(LIMIT_S)
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


@needs_admission_control
def test_triggers_are_bounded(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    query = run_once(spark, cluster, tmp_path, maxMessagesPerTrigger=1000)
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(sizes) >= COUNT // 1000
    assert max(sizes) <= 1000
    assert sum(sizes) == len(set(read_back(spark, tmp_path)))


@needs_admission_control
@pytest.mark.parametrize("limit", [{"maxBytesPerTrigger": 20_000}, {"minMessagesPerTrigger": 10 * COUNT}])
def test_a_trigger_once_takes_all_that_there_is(spark: Any, cluster: Cluster, tmp_path: Path, limit: dict[str, Any]) -> None:
    query = run_once(spark, cluster, tmp_path, trigger={"once": True}, **limit)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == len(set(read_back(spark, tmp_path))) >= COUNT


@needs_admission_control
def test_limits_new_queues_lag_and_the_group(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """One topic through its life: bounded by bytes, a queue added, the position mirrored, the lag told."""
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("life", queues=1)
        with Producer(cluster.bootstrap) as producer:
            for number in range(300):
                producer.send_async(Message("life", b"%d|" % number + b"x" * 1000))
            producer.flush()
            listener = LagListener()
            spark.streams.addListener(listener)
            query = run_once(spark, cluster, tmp_path, "life", maxBytesPerTrigger=120_000, groupId="job")
            sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
            assert 3 <= len(sizes) <= 4
            lags = [lag.messages for lag in map(lag_of, query.recentProgress) if lag is not None]
            assert lags == sorted(lags, reverse=True)
            assert lags[-1] == 0
            with PullConsumer(cluster.bootstrap, group="job") as consumer:
                assert consumer.committed("life") == {("g0", 0): 300}
            admin.update_topic("life", read_queues=3, write_queues=3)
            with Producer(cluster.bootstrap) as producer:
                for number in range(300, 330):
                    producer.send(Message("life", b"%d|" % number), queue_id=number % 3)
            run_once(spark, cluster, tmp_path, "life", groupId="job")
    # Spark calls listeners behind the query, some time after its end.
    wait_until(lambda: listener.last and not any(lag.messages for lag in listener.last.values()), lambda: f"lags: {listener.last}")
    spark.streams.removeListener(listener)
    places = read_back(spark, tmp_path)
    assert len(places) == len(set(places)) == 330
    assert {queue for queue, _ in places} == {0, 1, 2}


def test_a_stream_starts_at_the_end_or_stops_where_it_is_told(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    run_once(spark, cluster, tmp_path / "a", startingOffsets="latest")
    assert read_back(spark, tmp_path / "a") == []
    run_once(spark, cluster, tmp_path / "b", endingOffsets='{"orders":{"g0:0":5,"g0:1":7,"g0:2":0}}')
    places = read_back(spark, tmp_path / "b")
    assert sorted(places) == [(0, offset) for offset in range(5)] + [(1, offset) for offset in range(7)]


def test_a_stream_that_starts_at_the_end_gets_what_is_sent_once_its_first_trigger_is_done(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("latest", queues=1)
    with Producer(cluster.bootstrap) as producer:
        producer.send(Message("latest", b"old"))
        stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "latest")
        stream = stream.option("startingOffsets", "latest").option("readFrom", "leader").load()
        query = stream.select("queue_id", "queue_offset").writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        producer.send_many("latest", [b"new"] * 20)
        query.processAllAvailable()
        query.stop()
    assert sorted(read_back(spark, tmp_path)) == [(0, offset) for offset in range(1, 21)]


@pytest.mark.parametrize("given", [{}, {"schema": "body binary"}])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("maxMessagesPerTrigger", "0", "expected a whole number of at least 1"), ("startingOffsets", "{bad", "option startingOffsets")],
)
def test_a_mistake_in_an_option_is_the_last_line(
    spark: Any, cluster: Cluster, tmp_path: Path, given: dict[str, str], name: str, value: str, expected: str
) -> None:
    reader = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC).option(name, value)

    def start() -> None:
        writer = reader.load(**given).writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(LIMIT_S)

    with pytest.raises(Exception, match=r"(?s).*") as caught:
        start()
    of_python = [line for line in str(caught.value).splitlines() if "Error: " in line]
    assert expected in of_python[-1]
    assert "UnboundLocalError" not in str(caught.value)


def test_a_topic_made_again_is_an_error_unless_it_may_be_lost(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """The new topic holds less than was read of the old one: all of it is read.  A topic that is gone is waited for."""
    loose: dict[str, Any] = {"failOnDataLoss": "false"}
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topic("lost", queues=1)
        for _ in range(3):
            producer.send(Message("lost", b"1|"), queue_id=0)
        run_once(spark, cluster, tmp_path, "lost")
        admin.delete_topic("lost")
        run_once(spark, cluster, tmp_path, "lost", **loose)
        admin.create_topic("lost", queues=1)
        for _ in range(2):
            producer.send(Message("lost", b"2|"), queue_id=0)
        if ADMISSION_CONTROL:  # PySpark 4.1 tells the source no start: what was read of the old topic is in the checkpoint no more
            with pytest.raises(Exception, match="topic lost was deleted and recreated since the checkpoint"):
                run_once(spark, cluster, tmp_path, "lost")
        run_once(spark, cluster, tmp_path, "lost", **loose)
    assert sorted(read_back(spark, tmp_path)) == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)]
