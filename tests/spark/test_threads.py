"""Reads, writes and queries that other threads than the one of the session start."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pyspark_dledger import register
from tests.cluster.harness import Cluster
from tests.spark.conftest import COUNT, TOPIC
from tests.spark.test_batch_write import make, messages_of, write
from tests.waiting import LIMIT_S


def in_a_thread(work: Callable[[], Any]) -> Any:
    """The result of ``work`` in a thread that ends."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # is looked at below
            found.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    assert found, "the thread has not ended"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


@pytest.fixture
def source(spark: Any, cluster: Cluster) -> Callable[[Any], Any]:
    return lambda reader: reader.format("dledger").option("bootstrap", cluster.bootstrap).option("topic", TOPIC).load()


def test_a_thread_that_registers_may_write(spark: Any, cluster: Cluster) -> None:
    make(cluster, "by-thread")

    def work() -> None:
        register(spark)
        write(spark.range(10).selectExpr("cast(id as string) as body"), cluster, "by-thread")

    in_a_thread(work)
    assert len(messages_of(cluster, "by-thread")) == 10


def test_threads_of_a_pool_that_registers_may_write_and_read(spark: Any, cluster: Cluster, source: Callable[[Any], Any]) -> None:
    make(cluster, "by-pool")

    def work(number: int) -> int:
        write(spark.range(number, number + 1).selectExpr("cast(id as string) as body"), cluster, "by-pool")
        return int(source(spark.read).count())

    with ThreadPoolExecutor(3, initializer=register, initargs=(spark,)) as pool:
        assert list(pool.map(work, range(6))) == [COUNT] * 6
    assert sorted(int(message.body) for message in messages_of(cluster, "by-pool")) == list(range(6))


def test_a_thread_that_registers_may_start_a_streaming_sink(
    spark: Any, cluster: Cluster, source: Callable[[Any], Any], tmp_path: Path
) -> None:
    make(cluster, "by-query")

    def work() -> Any:
        register(spark)
        writer = source(spark.readStream).select("body").writeStream.format("dledger").option("bootstrap", cluster.bootstrap)
        writer = writer.option("topic", "by-query").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        return query.exception()

    assert in_a_thread(work) is None
    assert len(messages_of(cluster, "by-query")) == COUNT


def test_foreach_batch_may_write_whatever_thread_started_the_query(
    spark: Any, cluster: Cluster, source: Callable[[Any], Any], tmp_path: Path
) -> None:
    make(cluster, "by-batch")

    def work() -> Any:
        writer = source(spark.readStream).select("body").writeStream.option("checkpointLocation", str(tmp_path))
        query = writer.foreachBatch(lambda frame, _: write(frame, cluster, "by-batch")).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S)
        return query.exception()

    assert in_a_thread(work) is None
    assert len(messages_of(cluster, "by-batch")) == COUNT
