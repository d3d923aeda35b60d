"""The streaming read: offsets in Spark's checkpoint, admission control, exact restarts.

Owns what Spark keeps (a JSON object of offsets per topic and queue); how far one trigger goes is admission.py's.  Spark writes the end of
a batch down before it runs the batch, so after a crash the same range is planned again; the split is a pure function of the range and the
options (plan.py), and a range of a committed log never changes, so the rows are the same.  Offsets count in one incarnation of a topic
(incarnations.py): those of a topic deleted since say nothing about the one made again.

PySpark 4.1 knows no admission control: there ``latestOffset`` is called without arguments and takes everything.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dledger_wire.errors import DledgerError, InvalidArgumentError, OffsetOutOfRangeError
from pyspark_dledger import cluster
from pyspark_dledger.admission import Offsets, cut_to_bytes, cut_to_messages, waiting
from pyspark_dledger.incarnations import check_same, is_remade, merged
from pyspark_dledger.options import EARLIEST, ReadOptions
from pyspark_dledger.plan import OffsetRange, QueueBounds, QueueId, check_named_queues, named_offsets, offset_of, split
from pyspark_dledger.reader import partitions_of, read_range

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in where Spark has none."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]

FORMAT_VERSION = 1

_logger = logging.getLogger(__name__)


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


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source.  One object lives on the driver as long as the query; tasks have copies that only read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, Any] | None = None  # frozen by an available-now trigger
        self._last_progress_ms = _now_ms()

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts; a restarted one starts where its checkpoint says."""
        options = self._options
        view = cluster.describe(options)
        cluster.widen(view, options, named_offsets(options.start))
        check_named_queues(view.bounds, options.start, "startingOffsets", options.filters)
        starts = {
            queue: offset_of(queue, held, options.start, fail_on_data_loss=options.fail_on_data_loss) for queue, held in view.bounds.items()
        }
        return to_json(starts, view.incarnations)

    def getDefaultReadLimit(self) -> Any:
        most = self._options.limits.max_messages
        return ReadMaxRows(most) if most and ReadMaxRows is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch.  It never goes back, whatever a lagging replica tells; but a topic made again begins anew."""
        begun, known = from_json(start) if start is not None else ({}, {})
        view = self._look(known)
        end, incarnations = from_json(self._target or self._end_of(view))
        if start is None:
            return to_json(end, incarnations)
        self._check_same(known, incarnations)
        held = {queue: bounds.min_offset for queue, bounds in view.bounds.items()}
        kept = {queue: offset for queue, offset in begun.items() if not is_remade(queue, known, incarnations)}
        # A queue new since the last batch is read from its first message; one that cannot be seen now waits where it is.
        begin = {queue: held.get(queue, 0) for queue in end} | kept
        forward = begin | {queue: max(offset, begin[queue]) for queue, offset in end.items()}
        taken = self._admitted(begin, forward, limit)
        if taken != begin:
            self._last_progress_ms = _now_ms()
        return to_json(taken, merged(known, incarnations))

    def _look(self, known: Mapping[str, str]) -> cluster.View:
        """The cluster now.  A topic may be gone that the checkpoint knows, or any, if loss is no error."""
        loose = () if self._options.fail_on_data_loss and known else self._options.topics
        return cluster.describe(self._options, {*known, *loose})

    def _check_same(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        if self._options.fail_on_data_loss:
            check_same(before, now)

    def _admitted(self, begin: Offsets, end: Offsets, limit: Any) -> Offsets:
        """How far this trigger goes."""
        limits = self._options.limits
        may_wait = self._target is None and _now_ms() - self._last_progress_ms < limits.max_delay_ms
        if may_wait and sum(waiting(begin, end).values()) < limits.min_messages:
            return begin
        most = limit.max_rows if ReadMaxRows is not None and isinstance(limit, ReadMaxRows) else 0
        if limit is not None and limits.max_bytes:
            spans = {queue: (begin[queue], end[queue]) for queue, count in waiting(begin, end).items() if count}
            end = cut_to_bytes(begin, end, cluster.mean_sizes(self._options, spans), limits.max_bytes)
        return cut_to_messages(begin, end, most) if most else end

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end_of(self._look({}))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._end_of(self._look({}))

    def _end_of(self, view: cluster.View) -> dict[str, Any]:
        """What is committed now, or where the stream is to stop when options say so."""
        ends = {}
        for queue, held in view.bounds.items():
            asked = offset_of(queue, held, self._options.end, fail_on_data_loss=False)
            ends[queue] = min(asked, held.max_offset)
        return to_json(ends, view.incarnations)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The batch that was planned.  After a restart it may have been planned long ago."""
        begun, known = from_json(start)
        until, planned = from_json(end)
        view = self._look(planned)
        self._check_same(known, planned)
        self._check_same(planned, view.incarnations)
        begins = {queue: offset for queue, offset in begun.items() if until.get(queue, 0) > offset}
        cluster.widen(view, self._options, {queue: begins[queue] for queue in begins if not is_remade(queue, known, view.incarnations)})
        ranges = []
        for queue, offset in sorted(until.items()):
            first = EARLIEST if is_remade(queue, known, planned) else begun.get(queue, EARLIEST)
            if queue.topic in view.incarnations and not is_remade(queue, planned, view.incarnations):
                ranges.append(self._held(queue, first, offset, view.bounds))
            elif first < offset:
                _logger.warning(
                    "topic %s queue %s:%d: messages up to %d are gone with it", queue.topic, queue.group, queue.queue_id, offset
                )
        filled = [piece for piece in ranges if piece.start < piece.end]
        pieces = split(filled, self._options.min_partitions, self._options.max_records_per_partition)
        return partitions_of(pieces, planned)

    def _held(self, queue: QueueId, start: int, end: int, bounds: Mapping[QueueId, QueueBounds]) -> OffsetRange:
        """The range as far as it is still held; a queue new since the last batch starts at its earliest message."""
        least = bounds[queue].min_offset if queue in bounds else 0
        if start == EARLIEST:
            return OffsetRange(queue, min(least, end), end)
        if start < least:
            gone = f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: messages {start} to {min(least, end)} are gone"
            if self._options.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{gone}; set failOnDataLoss to false to go on behind them", min_offset=least, max_offset=end)
            _logger.warning("%s", gone)
        return OffsetRange(queue, min(max(start, least), end), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint is Spark's; the consumer group only shows how far it is, so that it cannot be told stops nothing."""
        if not self._options.group_id:
            return
        try:
            cluster.mirror(self._options, from_json(end)[0])
        except DledgerError as error:
            _logger.warning("group %s: offsets were not committed: %s", self._options.group_id, error.message)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
