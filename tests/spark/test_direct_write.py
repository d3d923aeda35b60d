"""``writeMode=direct`` from real tasks: rows are there at once, and once each although tasks fail and are tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dledger_client import Admin
from dledger_wire.errors import TopicNotFoundError
from pyspark_dledger.options.model import parse_write_options
from pyspark_dledger.write.direct_writer import DirectWriter
from tests.cluster.harness import Cluster
from tests.spark.test_batch_write import dying_once, make, messages_of, write

ROWS, TASKS = 4000, 4


@pytest.fixture(autouse=True)
def small_batches(spark: Any) -> Iterator[None]:
    """Of 100 rows, so that a task that fails has sent some."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def failing(spark: Any, folder: Path, *, shuffled: bool) -> Any:
    """Numbered rows with much body; the first attempt of each partition fails behind most of its rows."""
    numbered = spark.range(0, ROWS, 1, TASKS).selectExpr("CONCAT(CAST(id AS STRING), REPEAT(' ', 4000)) AS body")
    return spark.createDataFrame(numbered.rdd.mapPartitions(dying_once(folder, 900, shuffled=shuffled)), "body string")


def numbers_of(cluster: Cluster, topic: str) -> list[int]:
    return [int(message.body) for message in messages_of(cluster, topic)]


def test_tasks_that_are_tried_again_store_no_row_twice_and_keep_its_order(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "direct")
    write(failing(spark, tmp_path, shuffled=False), cluster, "direct", writeMode="direct")
    found = messages_of(cluster, "direct")
    assert sorted(int(message.body) for message in found) == list(range(ROWS))
    for queue in range(2):
        numbers = [int(message.body) for message in found if message.queue_id == queue]
        for task in range(TASKS):
            of_task = [number for number in numbers if number * TASKS // ROWS == task]
            assert of_task == sorted(of_task)
            assert of_task


def test_a_task_that_gives_other_rows_when_it_is_tried_again_fails_the_job(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "shuffled")
    with pytest.raises(Exception, match=r"was tried before, and .* expects the same rows in the same order from each attempt"):
        write(failing(spark, tmp_path, shuffled=True), cluster, "shuffled", writeMode="direct")
    stored = numbers_of(cluster, "shuffled")
    assert 0 < len(stored) == len(set(stored)) < ROWS


def test_rows_have_all_their_columns_and_need_no_staging_topic(spark: Any, cluster: Cluster) -> None:
    make(cluster, "whole")
    rows = [(b"%d\xff" % n, f"tag{n % 2}", [f"k-{n}", "all"], f"q-{n % 3}", {"n": str(n)}) for n in range(500)]
    schema = "body binary, tags string, keys array<string>, queue_key string, properties map<string,string>"
    write(spark.createDataFrame(rows, schema).repartition(4), cluster, "whole", writeMode="direct", stagingTopic="never-made")
    found = messages_of(cluster, "whole")
    assert sorted((m.body, m.tags, m.keys, m.properties["n"]) for m in found) == sorted(
        (body, tags, " ".join(keys), properties["n"]) for body, tags, keys, _, properties in rows
    )
    assert "never-made" not in cluster.cli_ok("topic", "list")


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_topic_that_was_deleted_during_the_write_fails_the_job(cluster: Cluster, is_made_anew: bool) -> None:
    topic = f"deleted-{is_made_anew}"
    make(cluster, topic)
    options = parse_write_options({"bootstrap": cluster.bootstrap, "topic": topic, "writeMode": "direct"})
    writer = DirectWriter(StructType([StructField("body", StringType())]), options, overwrite=False)
    writer.commit([])
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic(topic)
    if is_made_anew:
        make(cluster, topic)
    with pytest.raises(TopicNotFoundError, match=f"topic {topic} was deleted during the write, and rows with it"):
        writer.commit([])


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (["'orders' AS topic"], {}, "column 'topic': not with writeMode=direct; expected writeMode=staged"),
        (
            ["1 AS delay_level", "current_timestamp() AS deliver_timestamp"],
            {},
            "column 'delay_level', column 'deliver_timestamp': not with",
        ),
        ([], {"txnAppId": "a", "txnVersion": 1}, "option txnAppId: not with writeMode=direct"),
        ([], {"writeMode": "fast"}, "option writeMode: 'fast'; expected one of staged, direct"),
    ],
)
def test_what_is_only_for_staged_writes_is_refused(
    spark: Any, cluster: Cluster, columns: list[str], options: dict[str, Any], expected: str
) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS body", *columns)
    with pytest.raises(Exception, match="writeMode") as caught:
        write(frame, cluster, "orders", **({"writeMode": "direct"} | options))
    assert expected in str(caught.value)


def test_a_stream_does_not_write_directly(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    rates = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS body")
    query = rates.writeStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "orders")
    started = query.option("writeMode", "direct").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="option writeMode: direct is for batch writes; expected staged in a streaming query"):
        started.awaitTermination(120)
