"""Batch reads, and the task that reads queue ranges from replicas as Arrow record batches.

A task chooses its replica when it runs, prefers one on its own host, fails over to another one, and returns every
offset of its range once. Offsets that no longer exist raise an error, or are skipped if ``failOnDataLoss`` is false.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from dledger_client import PullConsumer
from dledger_client.runtime.environment import own_address
from dledger_wire.errors import OffsetOutOfRangeError, TopicNotFoundError
from pyspark_dledger.options.model import NO_LAG_LIMIT, ReadOptions
from pyspark_dledger.per_process import PerProcess, freeze_loaded
from pyspark_dledger.planning import cluster_queries
from pyspark_dledger.planning.key_lookup import pruned_by_keys
from pyspark_dledger.planning.partitions import OffsetRange, named_offsets, resolve, shared, split
from pyspark_dledger.planning.topic_epochs import by_group, groups_of
from pyspark_dledger.schema import NEEDS_BODY
from pyspark_dledger.user_errors import concise_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

_logger = logging.getLogger(__name__)
_consumers: PerProcess[Hashable, PullConsumer] = PerProcess()


class RangePartition(InputPartition):
    """The ranges that one task reads, and the topic epoch of each.  It may be empty: Spark needs at least one
    partition.
    """

    def __init__(self, pieces: Sequence[OffsetRange], topic_epochs: Sequence[str] = ()) -> None:
        super().__init__(0)
        self.pieces, self.topic_epochs = tuple(pieces), tuple(topic_epochs)


def partitions_of(ranges: Sequence[OffsetRange], options: ReadOptions, topic_epochs: Mapping[str, str]) -> list[InputPartition]:
    """Partitions for the ranges; at least one."""
    limits = (options.min_partitions, options.max_records_per_partition)
    made = {topic: by_group(text) for topic, text in topic_epochs.items()}
    tasks = shared(split(ranges, *limits), *limits)
    found: list[InputPartition] = [
        RangePartition(pieces, [made[piece.queue.topic].get(piece.queue.group, "") for piece in pieces]) for pieces in tasks
    ]
    return found or [RangePartition(())]


@concise_errors
class BatchReader(DataSourceReader):
    """Reader of one batch query; planning fixes its bounds."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = cluster_queries.read_cluster_view(options)
        groups = groups_of(view.topic_epochs)
        start, end = options.start.with_groups("startingOffsets", groups), options.end.with_groups("endingOffsets", groups)
        cluster_queries.widen_to_replicas(view, options, named_offsets(start))
        ranges = resolve(view.bounds, start, end, options.filters, fail_on_data_loss=options.fail_on_data_loss)
        wanted = pruned_by_keys(options, ranges)
        freeze_loaded()
        return partitions_of(wanted, options, view.topic_epochs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


@concise_errors
class PushdownReader(BatchReader):
    """A batch reader with filter push-down.  A separate class, because Spark rejects a reader with ``pushFilters`` if
    the session does not allow it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from pyspark_dledger.planning.pushdown import narrowed

        self._options, left = narrowed(self._options, filters)
        return left


def near_hosts(bootstrap: str) -> frozenset[str]:
    """Host names and addresses of this host."""
    return frozenset({own_address(bootstrap), socket.gethostname(), "localhost", "127.0.0.1"})


def read_range(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages of a partition as record batches; small batches are coalesced."""
    from pyspark_dledger.read.arrow_batches import coalesced

    if not isinstance(partition, RangePartition) or not partition.pieces:
        return
    with _consumer(options) as consumer:
        pieces = zip(partition.pieces, partition.topic_epochs, strict=True)
        yield from coalesced(batch for piece, incarnation in pieces for batch in _read_piece(options, consumer, piece, incarnation))
    freeze_loaded()


@contextmanager
def _consumer(options: ReadOptions) -> Iterator[PullConsumer]:
    """The consumer of this process that tasks with these options share; it is closed when one of them fails."""
    where = options.read_from, options.replica, options.local_files, options.repair
    key = (options.bootstrap, options.read_timeout_ms, options.access, *where)

    def make() -> PullConsumer:
        return PullConsumer(
            options.bootstrap,
            timeout_ms=options.read_timeout_ms,
            read_from=options.read_from,
            replica=options.replica or None,
            near=near_hosts(options.bootstrap),
            local_files=options.local_files,
            repair=options.repair,
            **options.access.client(),
        )

    consumer = _consumers.get(key, make)
    try:
        yield consumer
    except BaseException:
        _consumers.drop(key, consumer)
        consumer.close()
        raise


def _read_piece(options: ReadOptions, consumer: PullConsumer, piece: OffsetRange, incarnation: str) -> Iterator[pa.RecordBatch]:
    from dledger_client.fetch.arrow_chunks import record_batches

    queue, at = piece.queue, piece.start
    how: dict[str, Any] = {"tags": options.tag_expression, "chunk_bytes": options.fetch_bytes, "topic_epoch": incarnation}
    how["without_body"] = NEEDS_BODY.isdisjoint(options.columns)
    how["max_lag"] = None if options.max_lag == NO_LAG_LIMIT else options.max_lag
    while at < piece.end:
        try:
            for chunk in consumer.read_chunks(queue.topic, queue.queue_id, at, piece.end, replica_group=queue.group, **how):
                at = chunk.next_offset
                yield from record_batches(chunk, options.columns, options.filters.tags, options.filters.keys)
            return
        except TopicNotFoundError as error:
            gone = f"{_gone(piece, at, piece.end)}: {error.message}"
            if options.fail_on_data_loss:
                raise TopicNotFoundError(f"{gone}; set failOnDataLoss to false to continue without them", **error.details) from None
            _logger.warning("%s", gone)
            return
        except OffsetOutOfRangeError as error:
            if error.min_offset <= at:
                raise
            gone = _gone(piece, at, min(error.min_offset, piece.end))
            if options.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{gone}; set failOnDataLoss to false to skip them", **error.details) from None
            _logger.warning("%s", gone)
            at = error.min_offset  # deleted during the read


def _gone(piece: OffsetRange, first: int, end: int) -> str:
    queue = piece.queue
    return f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: messages {first} to {end} no longer exist"
