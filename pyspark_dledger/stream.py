"""The streaming read: offsets in Spark's checkpoint, admission control, exact restarts.

Owns what Spark keeps (a JSON object of offsets per topic and queue) and how far one trigger goes.  Spark writes the end of a batch down
before it runs the batch, so after a crash the same range is planned again; the split is a pure function of the range and the options
(plan.py), and a range of a committed log never changes, so the rows are the same.

PySpark 4.1 knows no admission control: there ``latestOffset`` is called without arguments and takes everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dledger_wire.errors import InvalidArgumentError, OffsetOutOfRangeError
from pyspark_dledger import cluster
from pyspark_dledger.options import EARLIEST, ReadOptions
from pyspark_dledger.plan import OffsetRange, QueueBounds, QueueId, resolve, split
from pyspark_dledger.reader import partitions_of, read_range

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in where Spark has none."""

    ReadAllAvailable = ReadLimit = ReadMaxRows = None

FORMAT_VERSION = 1
Offsets = dict[QueueId, int]


def to_json(offsets: Mapping[QueueId, int], incarnations: Mapping[str, str]) -> dict[str, Any]:
    """What the checkpoint holds: version, and per topic its incarnation and the next offset of each queue."""
    topics: dict[str, Any] = {name: {"incarnation": incarnation, "queues": {}} for name, incarnation in sorted(incarnations.items())}
    for queue, offset in sorted(offsets.items()):
        topics[queue.topic]["queues"][f"{queue.group}:{queue.queue_id}"] = offset
    return {"version": FORMAT_VERSION, "topics": topics}


def from_json(stored: Mapping[str, Any]) -> tuple[Offsets, dict[str, str]]:
    """The offsets and incarnations of a checkpoint.  InvalidArgumentError when it is not one of ours."""
    try:
        if stored["version"] != FORMAT_VERSION:
            raise InvalidArgumentError(f"checkpoint: offsets of format {stored['version']}; expected {FORMAT_VERSION}")
        offsets, incarnations = {}, {}
        for topic, part in stored["topics"].items():
            incarnations[topic] = str(part["incarnation"])
            for key, offset in part["queues"].items():
                group, _, queue_id = key.rpartition(":")
                offsets[QueueId(topic, group, int(queue_id))] = int(offset)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidArgumentError(f"checkpoint: {json.dumps(stored)[:200]} are not offsets of this source") from None
    return offsets, incarnations


def capped(start: Mapping[QueueId, int], end: Mapping[QueueId, int], most: int) -> Offsets:
    """``end``, taken back so that at most ``most`` messages lie behind ``start``: each queue gives in proportion to what it has."""
    waiting = {queue: max(0, offset - start.get(queue, 0)) for queue, offset in sorted(end.items())}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    taken = {queue: count * most // total for queue, count in waiting.items()}
    spare = most - sum(taken.values())
    for queue, count in waiting.items():
        extra = min(spare, count - taken[queue])
        taken[queue] += extra
        spare -= extra
    return {queue: start.get(queue, 0) + taken[queue] for queue in waiting}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source."""

    def __init__(self, options: ReadOptions, max_messages_per_trigger: int) -> None:
        self._options = options
        self._most = max_messages_per_trigger
        self._target: dict[str, Any] | None = None  # frozen by an available-now trigger

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts; a restarted one starts where its checkpoint says."""
        view = cluster.describe(self._options)
        ranges = resolve(view.bounds, self._options.start, self._options.end, fail_on_data_loss=self._options.fail_on_data_loss)
        starts = {queue: bounds.max_offset for queue, bounds in view.bounds.items()}
        starts.update({piece.queue: piece.start for piece in ranges})
        return to_json(starts, view.incarnations)

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._most) if self._most and ReadMaxRows is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch.  It never goes back, whatever a lagging replica tells."""
        end, incarnations = from_json(self._target or self._committed_end())
        if start is None:
            return to_json(end, incarnations)
        begun, known = from_json(start)
        self._check_incarnations(known, incarnations)
        forward = {queue: max(offset, begun.get(queue, 0)) for queue, offset in end.items()}
        if limit is not None and ReadMaxRows is not None and isinstance(limit, ReadMaxRows):
            forward = capped(begun, forward, limit.max_rows)
        return to_json(forward, incarnations)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._committed_end()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._committed_end()

    def _committed_end(self) -> dict[str, Any]:
        view = cluster.describe(self._options)
        return to_json({queue: bounds.max_offset for queue, bounds in view.bounds.items()}, view.incarnations)

    def _check_incarnations(self, known: Mapping[str, str], now: Mapping[str, str]) -> None:
        for topic, incarnation in known.items():
            if self._options.fail_on_data_loss and now.get(topic, incarnation) != incarnation:
                raise OffsetOutOfRangeError(
                    f"topic {topic} was deleted and made again since the checkpoint; set failOnDataLoss to false to read the new one"
                )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, _ = from_json(start)
        until, _ = from_json(end)
        view = cluster.describe(self._options)
        ranges = [self._held(queue, begun.get(queue, EARLIEST), offset, view.bounds) for queue, offset in sorted(until.items())]
        filled = [piece for piece in ranges if piece.start < piece.end]
        return partitions_of(split(filled, self._options.min_partitions, self._options.max_records_per_partition))

    def _held(self, queue: QueueId, start: int, end: int, bounds: Mapping[QueueId, QueueBounds]) -> OffsetRange:
        """The range as far as it is still held; a queue new since the last batch starts at its earliest message."""
        least = bounds[queue].min_offset if queue in bounds else 0
        if start == EARLIEST:
            return OffsetRange(queue, min(least, end), end)
        if start < least and self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: messages {start} to {min(least, end)} are gone; "
                "set failOnDataLoss to false to go on behind them",
                min_offset=least,
                max_offset=end,
            )
        return OffsetRange(queue, min(max(start, least), end), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is Spark's."""
