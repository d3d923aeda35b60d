"""What one task does with the ranges of many queues: one consumer, rows of each queue in order, few record batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dledger_client.fetch.records import Chunk
from dledger_wire.errors import OffsetOutOfRangeError
from pyspark_dledger.options.model import parse_read_options
from pyspark_dledger.per_process import PerProcess
from pyspark_dledger.planning import cluster_queries
from pyspark_dledger.planning.cluster_view import ClusterView
from pyspark_dledger.planning.queue_offsets import QueueId
from pyspark_dledger.read import batch as reader
from pyspark_dledger.read.batch import BatchReader
from tests.unit.client.test_arrow_chunks import chunk_of, frame
from tests.unit.spark.views import bounds_of


class Consumer:
    """Has every message asked for; counts how many there are of it."""

    made = 0

    def __init__(self, *_rest: Any, **_how: Any) -> None:
        Consumer.made += 1

    def close(self) -> None:
        Consumer.made -= 1

    def read_chunks(self, topic: str, queue_id: int, offset: int, upto: int, **how: Any) -> Iterator[Chunk]:
        assert how["topic_epoch"] == "7"
        made = chunk_of([frame(b"%d/%d" % (queue_id, number), {}) for number in range(offset, upto)])
        yield Chunk(topic, "g0", queue_id, "n0", np.arange(offset, upto), made.sizes, made.frames, upto, upto)


def test_a_task_reads_many_small_queues_with_one_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = bounds_of({QueueId("t", "g0", number): (2, 22) for number in range(200)})
    monkeypatch.setattr(cluster_queries, "read_cluster_view", lambda _options: ClusterView(bounds, {"t": "g0:7"}))
    monkeypatch.setattr(reader, "PullConsumer", Consumer)
    monkeypatch.setattr(reader, "_consumers", PerProcess())
    batch_reader = BatchReader(parse_read_options({"bootstrap": "h:1", "topic": "t"}, ("queue_id", "body")))
    partitions = pickle.loads(pickle.dumps(batch_reader.partitions()))  # noqa: S301 - as Spark sends them
    assert [sum(piece.end - piece.start for piece in each.pieces) for each in partitions] == [1000] * 4
    batches = [list(batch_reader.read(partition)) for partition in partitions]
    assert Consumer.made == 1  # for all tasks of the process
    assert [len(each) for each in batches] == [1] * 4
    found = [(row["queue_id"], row["body"]) for each in batches for batch in each for row in batch.to_pylist()]
    assert found == [(queue, b"%d/%d" % (queue, number)) for queue in range(200) for number in range(2, 22)]


def test_a_task_that_fails_leaves_no_consumer_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    view = ClusterView(bounds_of({QueueId("t", "g0", 0): (0, 9)}), {"t": "g0:8"})
    monkeypatch.setattr(cluster_queries, "read_cluster_view", lambda _options: view)
    monkeypatch.setattr(reader, "PullConsumer", Consumer)
    monkeypatch.setattr(reader, "_consumers", PerProcess())
    monkeypatch.setattr(Consumer, "made", 0)
    batch_reader = BatchReader(parse_read_options({"bootstrap": "h:1", "topic": "t"}, ("queue_id", "body")))
    (partition,) = batch_reader.partitions()
    for _ in range(2):
        with pytest.raises(AssertionError):
            list(batch_reader.read(partition))
        assert Consumer.made == 0


class Expiring(Consumer):
    """Deleted what is before offset 5 after the read was planned."""

    def read_chunks(self, topic: str, queue_id: int, offset: int, upto: int, **how: Any) -> Iterator[Chunk]:
        if offset < 5:
            raise OffsetOutOfRangeError(f"{topic}/{queue_id}: offset {offset} is outside 5 to 9", min_offset=5, max_offset=9)
        yield from super().read_chunks(topic, queue_id, offset, upto, **how)


def test_messages_that_expire_after_the_plan_are_named_with_what_to_do_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    view = ClusterView(bounds_of({QueueId("t", "g0", 0): (2, 9)}), {"t": "g0:7"})
    monkeypatch.setattr(cluster_queries, "read_cluster_view", lambda _options: view)
    monkeypatch.setattr(reader, "PullConsumer", Expiring)
    monkeypatch.setattr(reader, "_consumers", PerProcess())

    def rows(**options: str) -> list[bytes]:
        batch_reader = BatchReader(parse_read_options({"bootstrap": "h:1", "topic": "t", **options}, ("body",)))
        return [row["body"] for each in batch_reader.partitions() for batch in batch_reader.read(each) for row in batch.to_pylist()]

    with pytest.raises(
        OffsetOutOfRangeError, match="topic t queue g0:0: messages 2 to 5 no longer exist; set failOnDataLoss to false to skip"
    ):
        rows()
    assert rows(failOnDataLoss="false") == [b"0/%d" % number for number in range(5, 9)]
