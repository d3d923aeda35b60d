"""Topics over two replica groups with a real session: reads, a stream across the growth of its topic, writes, and one group dead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dledger_client import Admin, Message, Producer, PullConsumer
from pyspark_dledger.jobs import audit as audit_job
from pyspark_dledger.options.model import parse_write_options
from pyspark_dledger.write import writer
from tests.cluster.harness import Cluster
from tests.waiting import LIMIT_S

COUNT = 400
Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def two(module_folder: Path) -> Iterator[Cluster]:
    """Two groups of one node each; ``both`` is spread over them, ``first`` is in g0."""
    made = Cluster(module_folder / "cluster", groups=2, nodes=1)
    made.start()
    with Admin(made.bootstrap) as admin:
        admin.create_topic("both", queues=4)
        admin.create_topic("first", queues=2, replica_group="g0")
        admin.create_topic("spark-staging", queues=12)
    for topic in ("both", "first"):
        send(made, topic, range(COUNT))
    yield made
    made.kill_all()


def send(cluster: Cluster, topic: str, numbers: range) -> None:
    with Producer(cluster.bootstrap) as producer:
        futures = [producer.send_async(Message(topic, b"%d|%s" % (n, topic.encode()), keys=f"k-{n}")) for n in numbers]
        producer.flush()
    assert all(future.exception() is None for future in futures)


def held(cluster: Cluster, topic: str) -> dict[Place, int]:
    """(group, queue id, offset) -> number, of everything the topic holds in any group."""
    found: dict[Place, int] = {}
    with PullConsumer(cluster.bootstrap) as consumer:
        for (group, queue), offsets in consumer.offsets(topic).items():
            for chunk in consumer.read_chunks(topic, queue, 0, offsets.max_offset, replica_group=group):
                found |= {(group, queue, message.queue_offset): number_of(message.body) for message in chunk.messages()}
    return found


def number_of(body: bytes) -> int:
    return int(bytes(body).partition(b"|")[0])


def rows_of(frame: Any) -> dict[Place, int]:
    """The same of a frame.  A row that is there twice fails."""
    rows = frame.select("group", "queue_id", "queue_offset", "body").collect()
    found = {(row.group, row.queue_id, row.queue_offset): number_of(row.body) for row in rows}
    assert len(found) == len(rows)
    return found


def read(spark: Any, cluster: Cluster, topic: str, **options: Any) -> Any:
    found = spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", topic)
    for name, value in options.items():
        found = found.option(name, value)
    return found.load()


def copy(spark: Any, cluster: Cluster, source: str, target: str, folder: Path, **options: Any) -> Any:
    """Store what there is now of ``source`` in ``target``, through a shuffle; the query, ended."""
    stream = spark.readStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", source)
    for name, value in options.items():
        stream = stream.option(name, value)
    frame = stream.load().select("body", "keys").repartition(3)
    writer = frame.writeStream.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", target)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(LIMIT_S)
    except Exception:
        assert query.exception() is not None
    return query


def test_every_row_of_both_groups_is_read_once(spark: Any, two: Cluster) -> None:
    truth = held(two, "both")
    assert sorted(truth.values()) == list(range(COUNT))
    assert {group for group, _, _ in truth} == {"g0", "g1"}
    assert rows_of(read(spark, two, "both")) == truth
    starts = json.dumps({"both": {"g0:0": 5, "g0:1": -1, "g1:0": -2, "g1:1": 7}})
    ends = json.dumps({"both": {"g0:0": 9}})
    expected = {
        (group, queue, offset): number
        for (group, queue, offset), number in truth.items()
        if (group, queue) == ("g1", 0) or ((group, queue) == ("g1", 1) and offset >= 7) or ((group, queue) == ("g0", 0) and 5 <= offset < 9)
    }
    assert rows_of(read(spark, two, "both", startingOffsets=starts, endingOffsets=ends)) == expected
    with pytest.raises(Exception, match="queue g2:0 of topic both does not exist"):
        read(spark, two, "both", startingOffsets=json.dumps({"both": {"g2:0": 1}})).count()
    with pytest.raises(Exception, match='queues in the replica groups g0, g1; expected "group:0" for "0"'):
        read(spark, two, "both", startingOffsets=json.dumps({"both": {"0": 1}})).count()
    assert rows_of(read(spark, two, "both", queues="g1:0,g1:1")) == {place: n for place, n in truth.items() if place[0] == "g1"}
    assert rows_of(read(spark, two, "both", keys="k-7,k-8,k-9")) == {place: n for place, n in truth.items() if n in (7, 8, 9)}


def test_a_stream_goes_on_while_its_topic_grows_into_another_group(spark: Any, two: Cluster, tmp_path: Path) -> None:
    """Rows are stored over both groups, and so are those that wait in the staging topic; a repeated batch stores none twice."""
    with Admin(two.bootstrap) as admin:
        admin.create_topic("grows", queues=2, replica_group="g0")
        admin.create_topic("copied", queues=4)
        send(two, "grows", range(COUNT))
        assert copy(spark, two, "grows", "copied", tmp_path).exception() is None
        two.cli_ok("topic", "update", "grows", "--replica-groups", "g0,g1")
        send(two, "grows", range(COUNT, 2 * COUNT))
        assert {group for group, _, _ in held(two, "grows")} == {"g0", "g1"}
        assert copy(spark, two, "grows", "copied", tmp_path).exception() is None
        done = max(int(file.name) for file in (tmp_path / "commits").iterdir() if file.name.isdecimal())
        offsets = json.loads((tmp_path / "offsets" / str(done)).read_text().splitlines()[-1])
        assert set(offsets["topics"]["grows"]["queues"]) == {"g0:0", "g0:1", "g1:0", "g1:1"}
        for name in (str(done), f".{done}.crc"):
            (tmp_path / "commits" / name).unlink()
        assert copy(spark, two, "grows", "copied", tmp_path).exception() is None
        copied = held(two, "copied")
        assert sorted(copied.values()) == list(range(2 * COUNT))
        assert {group for group, _, _ in copied} == {"g0", "g1"}
        with PullConsumer(two.bootstrap) as consumer:
            staged = consumer.offsets("spark-staging")
        assert {group for (group, _), offsets in staged.items() if offsets.max_offset} == {"g0", "g1"}


def test_a_running_stream_reads_a_group_that_its_topic_is_given(spark: Any, two: Cluster, tmp_path: Path) -> None:
    with Admin(two.bootstrap) as admin:
        admin.create_topic("live", queues=1, replica_group="g0")
    send(two, "live", range(50))
    frame = spark.readStream.format("dledger").option("bootstrap", two.bootstrap).option("topic", "live").load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        two.cli_ok("topic", "update", "live", "--replica-groups", "g0,g1")
        send(two, "live", range(50, 150))
        query.processAllAvailable()
    finally:
        query.stop()
    assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == held(two, "live")


def test_the_replicas_of_each_group_are_audited(spark: Any, two: Cluster) -> None:
    results, problems = audit_job.audit(spark, two.bootstrap, ["both"], [])
    assert problems == []
    assert {(row.group, row.replica) for row in results} == {("g0", "n0"), ("g1", "n1")}
    assert sum(row.count for row in results) == COUNT


def test_a_task_stages_a_stream_for_each_group_in_both_groups_and_nothing_is_compressed(two: Cluster) -> None:
    with Admin(two.bootstrap) as admin:
        admin.create_topic("staged", queues=2)
    job = writer.BatchWriter(
        StructType([StructField("body", BinaryType()), StructField("queue_key", StringType())]),
        parse_write_options({"bootstrap": two.bootstrap, "topic": "staged"}),
        overwrite=False,
    )
    places = {"queue_key": [f"k{number % 9}" for number in range(COUNT)], "body": [b"%d|" % n + bytes(4000) for n in range(COUNT)]}
    told = job.write(iter([pa.RecordBatch.from_pydict(places)]))
    assert isinstance(told, writer.StagedTask)
    assert {part.target for part in told.staged} == {part.group for part in told.staged} == {"g0", "g1"}
    assert sum(part.rows for part in told.staged) == COUNT
    with PullConsumer(two.bootstrap) as consumer:
        for part in told.staged:
            for chunk in consumer.read_chunks("spark-staging", part.queue_id, part.first, part.end, replica_group=part.group):
                assert not chunk.columns.heads["sys_flag"].any()
                assert chunk.columns.body_length.max() >= 256 << 10
    job.commit([told])
    assert sorted(held(two, "staged").values()) == list(range(COUNT))


def test_a_dead_group_stops_only_queries_over_its_topics(spark: Any, two: Cluster, tmp_path: Path) -> None:
    """docs/reference/spark.md, failOnDataLoss."""
    truth = held(two, "both")
    with Admin(two.bootstrap) as admin:
        admin.create_topic("alone", queues=2, replica_group="g0")
    two.kill("n1")
    try:
        assert sorted(rows_of(read(spark, two, "first")).values()) == list(range(COUNT))
        query = copy(spark, two, "first", "alone", tmp_path)
        assert query.exception() is None, str(query.exception())[-3000:]
        assert sorted(held(two, "alone").values()) == list(range(COUNT))
        with pytest.raises(Exception, match=r"replica group g1 did not respond and may have queues of both .*; set failOnDataLoss"):
            read(spark, two, "both").count()
        rest = rows_of(read(spark, two, "both", failOnDataLoss="false"))
        assert rest == {place: number for place, number in truth.items() if place[0] == "g0"}
    finally:
        two.start("n1")
    assert rows_of(read(spark, two, "both")) == truth
