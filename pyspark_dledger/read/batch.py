"""The batch read, and what one task does: ranges of queues from replicas, as Arrow record batches.

Owns the task.  It chooses its replica when it runs, one on its own host first, goes on at another one when that goes away, and hands out
every offset of its range once; what the range no longer holds is an error, or left out, as ``failOnDataLoss`` says.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from dledger_client import PullConsumer
from dledger_client.runtime.environment import own_address
from dledger_wire.errors import OffsetOutOfRangeError, TopicNotFoundError
from pyspark_dledger.options.model import NO_LAG_LIMIT, ReadOptions
from pyspark_dledger.planning import cluster_queries as cluster
from pyspark_dledger.planning.key_lookup import narrowed_by_keys
from pyspark_dledger.planning.partitions import OffsetRange, named_offsets, resolve, shared, split
from pyspark_dledger.planning.topic_epochs import by_group, groups_of
from pyspark_dledger.schema import NEEDS_BODY
from pyspark_dledger.user_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

_logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What one task reads, and of which incarnations of the topics; no pieces are nothing at all (Spark wants at least one partition)."""

    def __init__(self, pieces: Sequence[OffsetRange], incarnations: Sequence[str] = ()) -> None:
        super().__init__(0)
        self.pieces, self.incarnations = tuple(pieces), tuple(incarnations)


def partitions_of(ranges: Sequence[OffsetRange], options: ReadOptions, incarnations: Mapping[str, str]) -> list[InputPartition]:
    """The ranges as tasks read them, never none."""
    limits = (options.min_partitions, options.max_records_per_partition)
    made = {topic: by_group(text) for topic, text in incarnations.items()}
    tasks = shared(split(ranges, *limits), *limits)
    found: list[InputPartition] = [
        RangePartition(pieces, [made[piece.queue.topic].get(piece.queue.group, "") for piece in pieces]) for pieces in tasks
    ]
    return found or [RangePartition(())]


@plain_errors
class BatchReader(DataSourceReader):
    """One batch query: the bounds are fixed when it is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = cluster.describe(options)
        groups = groups_of(view.incarnations)
        start, end = options.start.with_groups("startingOffsets", groups), options.end.with_groups("endingOffsets", groups)
        cluster.widen(view, options, named_offsets(start))
        ranges = resolve(view.bounds, start, end, options.filters, fail_on_data_loss=options.fail_on_data_loss)
        wanted = narrowed_by_keys(options, ranges)
        return partitions_of(wanted, options, view.incarnations)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


@plain_errors
class PushdownReader(BatchReader):
    """A batch query whose conditions narrow what is read.  A class of its own: where the session does not allow it, Spark refuses every
    reader that could."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from pyspark_dledger.planning.pushdown import narrowed

        self._options, left = narrowed(self._options, filters)
        return left


def near_hosts(bootstrap: str) -> frozenset[str]:
    """What addresses of replicas on this host may begin with."""
    return frozenset({own_address(bootstrap), socket.gethostname(), "localhost", "127.0.0.1"})


def read_range(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages of a partition's ranges, a record batch or more a chunk; small ones are put together."""
    from pyspark_dledger.read.arrow_batches import put_together

    if not isinstance(partition, RangePartition) or not partition.pieces:
        return
    where: dict[str, Any] = {
        "read_from": options.read_from,
        "replica": options.replica or None,
        "near": near_hosts(options.bootstrap),
        "local_files": options.local_files,
        "mend": options.mend,
    }
    with PullConsumer(options.bootstrap, timeout_ms=options.read_timeout_ms, **where) as consumer:
        pieces = zip(partition.pieces, partition.incarnations, strict=True)
        yield from put_together(batch for piece, incarnation in pieces for batch in _read_piece(options, consumer, piece, incarnation))


def _read_piece(options: ReadOptions, consumer: PullConsumer, piece: OffsetRange, incarnation: str) -> Iterator[pa.RecordBatch]:
    from pyspark_dledger.read.arrow_batches import record_batches

    queue, at = piece.queue, piece.start
    how: dict[str, Any] = {"tags": options.tag_expression, "chunk_bytes": options.fetch_bytes, "topic_epoch": incarnation}
    how["without_body"] = NEEDS_BODY.isdisjoint(options.columns)
    how["max_lag"] = None if options.max_lag == NO_LAG_LIMIT else options.max_lag
    while at < piece.end:
        try:
            for chunk in consumer.read_chunks(queue.topic, queue.queue_id, at, piece.end, replica_group=queue.group, **how):
                at = chunk.next_offset
                yield from record_batches(chunk, options.columns, options.filters)
            return
        except TopicNotFoundError as error:
            gone = f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: messages {at} to {piece.end} are gone: {error.message}"
            if options.fail_on_data_loss:
                raise TopicNotFoundError(f"{gone}; set failOnDataLoss to false to go on without them", **error.details) from None
            _logger.warning("%s", gone)
            return
        except OffsetOutOfRangeError as error:
            if options.fail_on_data_loss or error.min_offset <= at:
                raise
            lost = f"{at} to {min(error.min_offset, piece.end)}"
            _logger.warning("topic %s queue %s:%d: messages %s are gone", queue.topic, queue.group, queue.queue_id, lost)
            at = error.min_offset  # deleted meanwhile
