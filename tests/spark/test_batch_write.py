"""``df.write.format("dledger")``: a message a row, each once across retried tasks and repeated writes, one clear error for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from dledger_client import Admin, PullConsumer
from dledger_client.producer.idempotent_writer import IdempotentWriter
from pyspark_dledger.options.model import parse_write_options
from pyspark_dledger.write import staged_batches as packs
from pyspark_dledger.write import writer
from tests.cluster.harness import Cluster
from tests.waiting import wait_until


def messages_of(cluster: Cluster, topic: str) -> list[Any]:
    """Everything the topic holds."""
    with PullConsumer(cluster.bootstrap) as consumer:
        held = {queue: offsets.max_offset for (_, queue), offsets in consumer.offsets(topic).items()}
        chunks = [chunk for queue, end in held.items() for chunk in consumer.read_chunks(topic, queue, 0, end)]
        return [message for chunk in chunks for message in chunk.messages()]


def make(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, queues=2)


def write(frame: Any, cluster: Cluster, topic: str, **options: Any) -> None:
    writer = frame.write.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode("append").save()


def dying_once(folder: Path, behind: int, *, shuffled: bool) -> Callable[[Any], Iterator[Any]]:
    """For ``mapPartitions``: the first attempt of each partition fails behind so many rows; ``shuffled``: each has its own order."""
    marks = str(folder)

    def rows_of(rows: Any) -> Iterator[Any]:
        import random

        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        mark = Path(marks) / f"{task.partitionId()}"
        first_time = not mark.exists()
        mark.touch()
        listed = list(rows)
        if shuffled:
            random.shuffle(listed)
        for place, row in enumerate(listed):
            if first_time and place == behind:
                raise OSError("the executor is gone")
            yield row

    return rows_of


def test_rows_become_messages_with_all_their_columns(spark: Any, cluster: Cluster) -> None:
    make(cluster, "written")
    rows = [(b"%d\xff" % n, f"tag{n % 2}", [f"k-{n}", "all"], f"q-{n % 3}", {"n": str(n), "none": None}) for n in range(500)]
    schema = "body binary, tags string, keys array<string>, queue_key string, properties map<string,string>"
    write(spark.createDataFrame(rows, schema).repartition(4), cluster, "written")
    found = messages_of(cluster, "written")
    assert sorted(message.body for message in found) == sorted(body for body, *_ in rows)
    for message in found:
        number = int(message.keys.split()[0].removeprefix("k-"))
        assert (message.tags, message.properties["n"]) == (f"tag{number % 2}", str(number))
        assert "none" not in message.properties
    places = {(int(message.keys.split()[0].removeprefix("k-")) % 3, message.queue_id) for message in found}
    assert len(places) == 3  # one queue a key


def test_a_trace_goes_through_a_job(spark: Any, cluster: Cluster) -> None:
    make(cluster, "traced")
    make(cluster, "passed_on")
    parent, state = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1"
    rows = [(b"one", parent, state), (b"two", None, None)]
    write(spark.createDataFrame(rows, "body binary, traceparent string, tracestate string"), cluster, "traced")
    read = spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "traced")
    write(read.option("columns", "body,traceparent,tracestate").load(), cluster, "passed_on")
    for topic in ("traced", "passed_on"):
        found = {message.body: message.trace_context for message in messages_of(cluster, topic)}
        assert found[b"two"] is None
        context = found[b"one"]
        assert context is not None
        assert context.properties() == {"traceparent": parent, "tracestate": state}


def test_rows_name_their_topics_and_when_they_are_delivered(spark: Any, cluster: Cluster) -> None:
    make(cluster, "now")
    make(cluster, "later")
    soon = datetime.now(UTC) + timedelta(seconds=2)
    rows = [("a", "now", None, None), ("b", "later", 1, None), ("c", "later", None, soon)]
    frame = spark.createDataFrame(rows, "body string, topic string, delay_level int, deliver_timestamp timestamp")
    frame.write.format("dledger").option("bootstrap", cluster.bootstrap).mode("append").save()
    assert [message.body for message in messages_of(cluster, "now")] == [b"a"]
    wait_until(lambda: len(messages_of(cluster, "later")) == 2, "both are delivered")
    arrived = messages_of(cluster, "later")
    assert {message.body for message in arrived} == {b"b", b"c"}
    assert next(m.store_timestamp for m in arrived if m.body == b"c") >= int(soon.timestamp() * 1000)


def test_tasks_that_fail_and_are_tried_again_store_no_row_twice(
    spark: Any, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each partition's first attempt dies behind half of its rows; the second gives them in another order."""
    make(cluster, "retried")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch"))
    rows = spark.range(0, 4000, 1, 4).selectExpr("CAST(id AS STRING) AS body").rdd.mapPartitions(dying_once(tmp_path, 600, shuffled=True))
    frame = spark.createDataFrame(rows, "body string")
    write(frame, cluster, "retried")
    assert sorted(int(message.body) for message in messages_of(cluster, "retried")) == list(range(4000))


def test_a_failed_job_leaves_nothing_to_be_seen(spark: Any, cluster: Cluster) -> None:
    make(cluster, "failed")
    frame = spark.range(0, 100, 1, 2).selectExpr("IF(id = 99, raise_error('stop'), CAST(id AS STRING)) AS body")
    with pytest.raises(Exception, match="stop"):
        write(frame, cluster, "failed")
    assert messages_of(cluster, "failed") == []


def test_a_job_without_a_name_whose_driver_died_in_its_commit_is_finished_by_a_command(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that dies sends no more: here its sender fails behind the manifest and a part of the rows."""
    make(cluster, "halved")
    left = [4]

    class Dying(IdempotentWriter):
        async def send(self, group: str, record: Any) -> None:
            if left[0] == 0:
                raise ConnectionAbortedError("killed")
            left[0] -= 1
            await super().send(group, record)
            await self.flush()

    monkeypatch.setattr(writer, "IdempotentWriter", Dying)
    monkeypatch.setattr(packs, "STAGED_BATCH_BYTES", 2_000)
    schema = StructType([StructField("body", StringType()), StructField("queue_key", StringType())])
    job = writer.BatchWriter(schema, parse_write_options({"bootstrap": cluster.bootstrap, "topic": "halved"}), overwrite=False)
    rows = pa.RecordBatch.from_pylist([{"body": str(number), "queue_key": str(number % 5)} for number in range(500)])
    with pytest.raises(ConnectionAbortedError):
        job.commit([job.write(iter([rows]))])
    assert 0 < len(messages_of(cluster, "halved")) < 500
    told = [json.loads(cluster.cli_ok("spark", "finish", "--json", *more)) for more in (["--look"], [], ["--look"])]
    assert [[(each["rows"], each["result"]) for each in report["writes"]] for report in told] == [
        [(500, "not finished")],
        [(500, "finished")],
        [],
    ]
    assert sorted(int(message.body) for message in messages_of(cluster, "halved")) == list(range(500))


def test_a_write_with_a_name_is_done_once(spark: Any, cluster: Cluster) -> None:
    make(cluster, "named")
    frame = spark.range(50).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(2):
        write(frame, cluster, "named", txnAppId="nightly", txnVersion=3)
    assert len(messages_of(cluster, "named")) == 50
    write(frame, cluster, "named", txnAppId="nightly", txnVersion=4)
    assert len(messages_of(cluster, "named")) == 100
    with pytest.raises(Exception, match="write 3 of txn:nightly is older than a committed write"):
        write(frame, cluster, "named", txnAppId="nightly", txnVersion=3)
    write(frame, cluster, "named")
    write(frame, cluster, "named")
    assert len(messages_of(cluster, "named")) == 200


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
        ("CAST(id AS STRING) AS body, 'SCHEDULE_TOPIC_XXXX' AS topic", {}, "append", "topic SCHEDULE_TOPIC_XXXX belongs to the system"),
        ("CAST(id AS STRING) AS body", {}, "overwrite", "messages cannot be overwritten; expected mode append"),
        ("CAST(id AS STRING) AS body", {"topic": "nowhere"}, "append", "topic nowhere does not exist"),
        ("CAST(id AS STRING) AS body", {"txnAppId": "a"}, "append", "options txnAppId and txnVersion are required together"),
        ("CAST(NULL AS STRING) AS body", {}, "append", "topic orders: row without a body"),
        ("CAST(id AS STRING) AS body, 77 AS queue_id", {}, "append", "queue 77 is not writable; expected one of 0, 1, 2"),
    ],
)
def test_mistakes_have_one_clear_error(
    spark: Any, cluster: Cluster, columns: str, options: dict[str, str], mode: str, expected: str
) -> None:
    writer = spark.range(3).selectExpr(*columns.split(", ")).write.format("dledger").option("bootstrap", cluster.bootstrap)
    for name, value in ({"topic": "orders"} | options).items():
        writer = writer.option(name, value)
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        writer.mode(mode).save()
    assert expected in str(caught.value)
