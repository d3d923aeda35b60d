"""``spark.read.format("dledger")`` against real nodes: every column, followers, ranges, splits, and one clear error for each mistake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dledger_client import PullConsumer
from pyspark_dledger.per_process import is_spark_worker
from tests.cluster.harness import Cluster
from tests.spark.conftest import COUNT, TOPIC
from tests.waiting import wait_until


def reader(spark: Any, cluster: Cluster, **options: Any) -> Any:
    found = spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC)
    for name, value in options.items():
        found = found.option(name, value)
    return found


def number_of(body: bytes) -> int:
    return int(body.partition(b"|")[0])


def test_every_row_is_there_once_with_every_column(spark: Any, cluster: Cluster) -> None:
    frame = reader(spark, cluster).load()
    assert frame.schema.simpleString() == (
        "struct<topic:string,queue_id:int,queue_offset:bigint,msg_id:string,keys:string,tags:string,body:binary,born_timestamp:timestamp,"
        "store_timestamp:timestamp,properties:map<string,string>,group:string,replica:string>"
    )
    rows = frame.collect()
    assert len(rows) == COUNT
    assert len({(row.queue_id, row.queue_offset) for row in rows}) == COUNT
    assert sorted(number_of(bytes(row.body)) for row in rows) == list(range(COUNT))
    with PullConsumer(cluster.bootstrap) as consumer:
        stored = {(queue, m.queue_offset): m for queue in range(3) for m in consumer.fetch(TOPIC, queue, 0, COUNT)}
    for row in rows:
        message = stored[row.queue_id, row.queue_offset]
        assert (bytes(row.body), row.msg_id, row.keys, row.tags) == (message.body, message.msg_id, message.keys, message.tags)
        assert row.properties == message.properties
        assert (row.topic, row.group) == (TOPIC, "g0")
        assert row.store_timestamp.timestamp() == pytest.approx(message.store_timestamp / 1000, abs=0.001)


def test_rows_come_from_followers_unless_the_leader_is_asked_for(spark: Any, cluster: Cluster) -> None:
    def read_as_asked() -> bool:
        leader = cluster.leader()
        for read_from, expected in (("follower", {"n0", "n1", "n2"} - {leader}), ("leader", {leader})):
            found = {row.replica for row in reader(spark, cluster, readFrom=read_from).load().select("replica").distinct().collect()}
            assert found
            if not found <= expected:
                return False
        return True

    # Another replica answers when another leader is elected, or when this machine holds up the wanted ones: then the next jobs count.
    wait_until(read_as_asked, "rows come from the replicas that were asked for")


@pytest.mark.parametrize("columns", ["", "queue_offset,keys,tags"])
def test_log_files_on_this_host_give_the_same_rows(spark: Any, cluster: Cluster, columns: str) -> None:
    options = {"columns": columns} if columns else {"columns": "queue_id,queue_offset,msg_id,keys,tags,body,born_timestamp,store_timestamp"}
    wire, files = (sorted(map(str, reader(spark, cluster, localFiles=local, **options).load().collect())) for local in ("false", "true"))
    assert len(files) == COUNT
    assert files == wire


class WhereTasksRun(DataSource):
    """A row for each of four tasks: whether its process is taken for one of Spark's workers."""

    @classmethod
    def name(cls) -> str:
        return "where"

    def schema(self) -> str:
        return "is_worker boolean"

    def reader(self, schema: Any) -> DataSourceReader:
        return WhereTasksRunReader()


class WhereTasksRunReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(4)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bool]]:
        yield (is_spark_worker(),)


def test_tasks_know_that_their_process_is_a_worker(spark: Any) -> None:
    """In those, what is loaded is kept out of garbage collection (tests/unit/spark/test_per_process.py)."""
    spark.dataSource.register(WhereTasksRun)
    assert [row.is_worker for row in spark.read.format("where").load().collect()] == [True] * 4
    assert not is_spark_worker()


def test_tags_ranges_and_splits(spark: Any, cluster: Cluster) -> None:
    odd = reader(spark, cluster, tags="odd").load().select("tags", "keys").collect()
    assert len(odd) == COUNT // 2
    assert {row.tags for row in odd} == {"odd"}
    with PullConsumer(cluster.bootstrap) as consumer:
        held = {queue: offsets.max_offset for (_, queue), offsets in consumer.offsets(TOPIC).items()}
    queue = max(held, key=lambda each: held[each])
    starts = {TOPIC: {f"g0:{each}": 5 if each == queue else -1 for each in held}}
    ends = {TOPIC: {f"g0:{queue}": 17}}
    rows = reader(spark, cluster, startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends)).load().collect()
    assert sorted(row.queue_offset for row in rows if row.queue_id == queue) == list(range(5, 17))
    split = reader(spark, cluster, minPartitions=12).load()
    assert split.rdd.getNumPartitions() >= 12
    assert split.count() == COUNT


def test_filters_by_option_and_by_condition(spark: Any, cluster: Cluster, request: pytest.FixtureRequest) -> None:
    rows = reader(spark, cluster, keys="k-7,k-8,k-2999", columns="keys,queue_id").load().collect()
    assert sorted(row.keys for row in rows) == ["k-2999", "k-7", "k-8"]
    whole = reader(spark, cluster).load().select("queue_id", "queue_offset", "tags", "store_timestamp").collect()
    only = reader(spark, cluster, queues="g0:1", tags="odd").load().select("queue_id", "queue_offset", "tags").collect()
    assert sorted(row.queue_offset for row in only) == sorted(r.queue_offset for r in whole if (r.queue_id, r.tags) == (1, "odd"))
    # By then both queues have some behind offset 10; which of them was filled first is chance.
    middle = max(row.store_timestamp for row in whole if row.queue_id in (0, 2) and row.queue_offset == 20).isoformat()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.python.filterPushdown.enabled"))
    condition = f"queue_id IN (0, 2) AND tags = 'even' AND queue_offset >= 10 AND store_timestamp <= TIMESTAMP'{middle}Z' AND keys <> 'k-0'"
    pushed = reader(spark, cluster, filterPushdown="true").load().where(condition)
    expected = reader(spark, cluster).load().where(condition)
    places = [sorted((row.queue_id, row.queue_offset) for row in frame.collect()) for frame in (pushed, expected)]
    assert places[0] == places[1] != []
    assert reader(spark, cluster, filterPushdown="true").load().where("queue_id = 9").count() == 0


def test_several_topics_and_a_pattern(spark: Any, cluster: Cluster) -> None:
    for name in ("orders-eu", "orders-us"):
        cluster.cli_ok("topic", "create", name, "--queues", "1")
        cluster.produce(name, [b"x"] * 3)
    both = spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "orders-eu,orders-us").load()
    assert both.groupBy("topic").count().orderBy("topic").collect() == [("orders-eu", 3), ("orders-us", 3)]
    matched = spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topicPattern", "orders-.*").load()
    assert matched.count() == 6
    nothing = spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topicPattern", "nope.*")
    with pytest.raises(Exception, match="no topic matches 'nope"):
        nothing.load().count()


def test_one_replica_only_and_none_that_lags(spark: Any, cluster: Cluster) -> None:
    for node in ("n0", "n1", "n2"):
        assert {row.replica for row in reader(spark, cluster, replica=node).load().select("replica").distinct().collect()} == {node}
    assert reader(spark, cluster, maxLagMessages=0, linearizable="true").load().count() == COUNT


def test_bodies_that_nobody_wants_are_not_fetched(spark: Any, cluster: Cluster) -> None:
    columns = "queue_id, queue_offset, keys, tags, msg_id, properties, body_size, physical_offset"
    bare = reader(spark, cluster, columns=columns.replace(" ", "")).load().collect()
    whole = reader(spark, cluster, columns=f"{columns},body".replace(" ", "")).load().collect()
    assert sorted(bare) == sorted(row[:-1] for row in whole)
    assert all(row.body_size == len(row.body) for row in whole)


def test_time_ranges(spark: Any, cluster: Cluster) -> None:
    times = [row.store_timestamp for row in reader(spark, cluster).load().select("store_timestamp").collect()]
    middle = sorted(times)[COUNT // 2]
    stamp = int(middle.timestamp() * 1000)
    later = reader(spark, cluster, startingTimestamp=stamp).load().count()
    earlier = reader(spark, cluster, endingTimestamp=stamp).load().count()
    assert later == sum(time >= middle for time in times)
    assert earlier + later == COUNT


def test_columns_are_built_only_when_wanted(spark: Any, cluster: Cluster) -> None:
    frame = reader(spark, cluster, columns="queue_offset,keys").load()
    assert frame.columns == ["queue_offset", "keys"]
    assert frame.count() == COUNT
    frame = (
        spark.read.schema("body binary, keys string").format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC).load()
    )
    assert frame.columns == ["body", "keys"]
    assert frame.count() == COUNT


def test_an_empty_topic_has_no_rows(spark: Any, cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "empty", "--queues", "2")
    assert spark.read.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", "empty").load().count() == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topic": "nowhere"}, "topic nowhere does not exist"),
        ({"bootstrap": "127.0.0.1:1", "readTimeoutMs": "3s"}, "no node reachable at 127.0.0.1:1"),
        ({"readFrom": "moon"}, "option readFrom: 'moon'; expected one of follower, leader, any"),
        ({"colour": "red"}, "option colour: unknown"),
        ({"minPartitions": "many"}, "option minPartitions: 'many'; expected a whole number"),
        ({"startingOffsets": '{"orders":{"g0:0":999999}}'}, "set failOnDataLoss to false"),
        ({"startingOffsets": '{"orders":{"g0:99":0}}'}, "queue g0:99 of topic orders does not exist"),
    ],
)
def test_every_mistake_has_one_clear_error(spark: Any, cluster: Cluster, options: dict[str, str], expected: str) -> None:
    query = reader(spark, cluster, **options)
    with pytest.raises(Exception, match=r"(?s).*") as caught:
        query.load().collect()
    assert expected in str(caught.value)


def test_lost_offsets_may_be_left_out(spark: Any, cluster: Cluster) -> None:
    starts = '{"orders":{"g0:0":999999,"g0:1":-2,"g0:2":-2}}'
    with PullConsumer(cluster.bootstrap) as consumer:
        missing = consumer.offsets(TOPIC)["g0", 0].max_offset
    assert reader(spark, cluster, startingOffsets=starts, failOnDataLoss="false").load().count() == COUNT - missing


def test_a_dead_follower_is_gone_around(spark: Any, cluster: Cluster) -> None:
    leader = cluster.leader()
    victim = next(node for node in ("n0", "n1", "n2") if node != leader)
    cluster.kill(victim)
    try:
        rows = reader(spark, cluster).load().select("replica").collect()
        assert len(rows) == COUNT
        assert victim not in {row.replica for row in rows}
    finally:
        cluster.start(victim)
