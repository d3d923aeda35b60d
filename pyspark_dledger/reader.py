"""The batch read, and what one task does: a range of one queue from a replica, as Arrow record batches.

Owns the task.  It chooses its replica when it runs, goes on at another one when that goes away, and hands out every offset of its range
once; what the range no longer holds is an error, or left out, as ``failOnDataLoss`` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from dledger_client import PullConsumer
from dledger_client.subscription import parse_tags
from dledger_wire.errors import OffsetOutOfRangeError
from pyspark_dledger import cluster
from pyspark_dledger.options import ReadOptions
from pyspark_dledger.plan import OffsetRange, resolve, split

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """What one task reads; None is nothing at all (Spark wants at least one partition)."""

    def __init__(self, piece: OffsetRange | None) -> None:
        super().__init__(0)
        self.piece = piece


def partitions_of(pieces: Sequence[OffsetRange]) -> list[InputPartition]:
    """A partition for each piece, never none."""
    return [RangePartition(piece) for piece in pieces] or [RangePartition(None)]


class BatchReader(DataSourceReader):
    """One batch query: the bounds are fixed when it is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        view = cluster.describe(options)
        ranges = resolve(view.bounds, options.start, options.end, fail_on_data_loss=options.fail_on_data_loss)
        return partitions_of(split(ranges, options.min_partitions, options.max_records_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


def read_range(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The messages of a partition's range, a record batch a chunk."""
    from pyspark_dledger.arrow import record_batch

    piece = partition.piece if isinstance(partition, RangePartition) else None
    if piece is None:
        return
    tags = frozenset(parse_tags(options.tags)) or None
    queue, at = piece.queue, piece.start
    with PullConsumer(options.bootstrap, read_from=options.read_from, timeout_ms=options.read_timeout_ms) as consumer:
        while at < piece.end:
            chunks = consumer.read_chunks(
                queue.topic, queue.queue_id, at, piece.end, group_name=queue.group, tags=options.tags, chunk_bytes=options.fetch_bytes
            )
            try:
                for chunk in chunks:
                    at = chunk.next_offset
                    yield record_batch(chunk, options.columns, tags)
                return
            except OffsetOutOfRangeError as error:
                if options.fail_on_data_loss or error.min_offset <= at:
                    raise
                at = error.min_offset  # deleted meanwhile
