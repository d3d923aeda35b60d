"""``df.writeStream.format("dledger")``: each row once through restarted batches, whatever order a shuffle gives rows in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dledger_client import Admin, Message, Producer
from tests.cluster.harness import Cluster
from tests.spark.conftest import ADMISSION_CONTROL, COUNT, TOPIC
from tests.spark.test_batch_write import messages_of
from tests.waiting import LIMIT_S


def copy_stream(spark: Any, cluster: Cluster, target: str, folder: Path, **options: Any) -> Any:
    """Read TOPIC, shuffle, write to ``target``; everything there is now."""
    stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC)
    for name, value in options.items():
        stream = stream.option(name, value)
    frame = stream.load().selectExpr("body", "keys", "tags", "rand() AS place").repartition(3, "place").drop("place")
    writer = frame.writeStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", target)
    query = writer.queryName(f"copy to {target}").option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    return query


def numbers(cluster: Cluster, topic: str) -> list[int]:
    return sorted(int(message.body.partition(b"|")[0]) for message in messages_of(cluster, topic))


def make(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, queues=2)


def test_a_restarted_batch_stores_every_row_once(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Spark's own note that a batch is done is lost: the batch is run again, its rows come in another order."""
    make(cluster, "copied")
    query = copy_stream(spark, cluster, "copied", tmp_path, maxMessagesPerTrigger=COUNT // 3)
    assert query.exception() is None
    assert numbers(cluster, "copied") == list(range(COUNT))
    done = sorted(int(file.name) for file in (tmp_path / "commits").iterdir() if file.name.isdecimal())
    assert len(done) >= (3 if ADMISSION_CONTROL else 1)
    for name in (str(done[-1]), f".{done[-1]}.crc"):
        (tmp_path / "commits" / name).unlink()
    query = copy_stream(spark, cluster, "copied", tmp_path, maxMessagesPerTrigger=COUNT // 3)
    assert query.exception() is None
    assert any(progress.batchId == done[-1] for progress in query.recentProgress)
    assert numbers(cluster, "copied") == list(range(COUNT))
    messages = {message.body: message for message in messages_of(cluster, "copied")}
    assert messages[b"7|text"].keys == "k-7"
    assert messages[b"7|text"].tags == "odd"


def test_a_batch_that_cannot_be_stored_is_stored_once_when_it_can(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """One of two target topics takes nothing: the query fails, nothing of its batch is to be seen, and it goes on later."""
    for name in ("in", "out-a", "out-b"):
        make(cluster, name)
    with Producer(cluster.bootstrap) as producer:
        for number in range(400):
            producer.send_oneway(Message("in", b"%d|" % number, tags="a" if number < 200 else "b"))
        producer.flush()

    def run() -> Any:
        stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "in").load()
        frame = stream.selectExpr("body", "concat('out-', tags) AS topic").repartition(2)
        writer = frame.writeStream.format("dledger").option("bootstrap", cluster.bootstrap)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        try:
            query.awaitTermination(LIMIT_S)
        except Exception:
            return query
        return query

    with Admin(cluster.bootstrap) as admin:
        admin.update_topic("out-b", perm=4)
        assert "writing is not permitted" in str(run().exception())
        assert messages_of(cluster, "out-a") == []
        admin.update_topic("out-b", perm=6)
    assert run().exception() is None
    assert numbers(cluster, "out-a") == list(range(200))
    assert numbers(cluster, "out-b") == list(range(200, 400))


@pytest.mark.parametrize(
    ("columns", "options", "mode", "expected"),
    [
        ("keys", {}, "append", "column 'body' is missing"),
        ("body", {"txnAppId": "a", "txnVersion": "1"}, "append", "not allowed in a streaming query, which has its own id"),
        ("body", {"topic": "nowhere"}, "append", "topic nowhere does not exist"),
    ],
)
def test_mistakes_end_the_query_before_its_first_job(
    spark: Any, cluster: Cluster, tmp_path: Path, columns: str, options: dict[str, str], mode: str, expected: str
) -> None:
    stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC).load()
    writer = stream.selectExpr(columns).writeStream.format("dledger").outputMode(mode).option("bootstrap", cluster.bootstrap)
    for name, value in ({"topic": "orders"} | options).items():
        writer = writer.option(name, value)
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(60)
    assert expected in str(caught.value)
    offsets = tmp_path / "commits"
    assert not offsets.exists() or json.dumps([file.name for file in offsets.iterdir()]) == "[]"
