"""``df.write.format("dledger")``: a message a row, each once across retried tasks, and one clear error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dledger_client import Admin, PullConsumer
from pyspark_dledger.options import WriteOptions
from pyspark_dledger.writer import MARK, write_partition
from tests.cluster.harness import Cluster


def messages_of(cluster: Cluster, topic: str) -> list[Any]:
    with PullConsumer(cluster.bootstrap) as consumer:
        held = consumer.offsets(topic)
        return [message for (_, queue), offsets in held.items() for message in consumer.fetch(topic, queue, 0, offsets.max_offset or 1)]


def make(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, queues=2)


def test_rows_become_messages_with_all_their_columns(spark: Any, cluster: Cluster) -> None:
    make(cluster, "written")
    rows = [(b"%d\xff" % n, f"tag{n % 2}", f"k-{n}", f"q-{n % 3}", {"n": str(n)}) for n in range(500)]
    schema = "body binary, tags string, keys string, queue_key string, properties map<string,string>"
    frame = spark.createDataFrame(rows, schema).repartition(4)
    frame.write.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "written").mode("append").save()
    found = messages_of(cluster, "written")
    assert sorted(message.body for message in found) == sorted(body for body, *_ in rows)
    for message in found:
        number = int(message.keys.removeprefix("k-"))
        assert (message.tags, message.properties["n"]) == (f"tag{number % 2}", str(number))
    places = {(int(message.keys.removeprefix("k-")) % 3, message.queue_id) for message in found}
    assert len(places) == 3  # one queue a key


def test_a_retried_task_stores_no_row_twice(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """The first attempt of a partition dies in the middle, after part of its rows are stored."""
    make(cluster, "retried")
    options = WriteOptions(cluster.bootstrap, "retried", 20_000)
    batches = [pa.RecordBatch.from_pylist([{"body": b"%d" % (n + 100 * b)} for n in range(100)]) for b in range(5)]

    def dying() -> Any:
        yield from batches[:3]
        raise OSError("the executor is gone")

    with pytest.raises(OSError, match="the executor is gone"):
        write_partition(options, dying(), "job/0/", 0, again=False)
    written = write_partition(options, iter(batches), "job/0/", 0, again=True)
    assert (written.rows, written.found) == (500, 300)
    assert sorted(int(message.body) for message in messages_of(cluster, "retried")) == list(range(500))
    other = write_partition(options, iter(batches[:1]), "job/1/", 0, again=True)
    assert (other.rows, other.found) == (100, 0)


def test_spark_retries_a_failed_task_through_the_writer(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    """local[2] gives a task one try only, so a retried job stands for it: marks of different jobs never meet."""
    make(cluster, "twice")
    frame = spark.range(50).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(2):
        frame.write.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "twice").mode("append").save()
    found = messages_of(cluster, "twice")
    assert len(found) == 100
    assert len({message.properties[MARK] for message in found}) == 100


@pytest.mark.parametrize(
    ("columns", "options", "mode", "expected"),
    [
        ("CAST(id AS STRING) AS text", {}, "append", "column 'text' is unknown; expected some of body, topic"),
        ("id AS body", {}, "append", "column 'body' is bigint; expected binary or string"),
        ("CAST(id AS STRING) AS tags", {}, "append", "column 'body' is missing"),
        ("CAST(id AS STRING) AS body", {"topic": ""}, "append", "no topic: expected option topic or a column topic"),
        (
            "CAST(id AS STRING) AS body",
            {"colour": "red"},
            "append",
            "option colour: unknown; expected one of bootstrap, topic",
        ),
        ("CAST(id AS STRING) AS body", {}, "overwrite", "messages cannot be overwritten; expected mode append"),
        ("CAST(id AS STRING) AS body", {"topic": "nowhere"}, "append", "topic nowhere does not exist"),
    ],
)
def test_mistakes_have_one_clear_error(
    spark: Any, cluster: Cluster, columns: str, options: dict[str, str], mode: str, expected: str
) -> None:
    writer = spark.range(3).selectExpr(columns).write.format("dledger").option("bootstrap", cluster.bootstrap)
    for name, value in ({"topic": "orders"} | options).items():
        writer = writer.option(name, value)
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        writer.mode(mode).save()
    assert expected in str(caught.value)
