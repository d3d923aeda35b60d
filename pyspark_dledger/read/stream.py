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

from dledger_client.cluster.retry import is_retriable
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotReadyError, OffsetOutOfRangeError
from pyspark_dledger.options.model import ReadOptions
from pyspark_dledger.options.read_bounds import EARLIEST
from pyspark_dledger.planning import cluster_queries as cluster
from pyspark_dledger.planning.partitions import OffsetRange, QueueBounds, QueueId, check_named_queues, named_offsets, offset_of
from pyspark_dledger.planning.rate_limit import Offsets, cut_to_bytes, cut_to_messages, waiting
from pyspark_dledger.planning.topic_epochs import by_group, check_same, groups_of, is_remade, joined, merged
from pyspark_dledger.read.batch import partitions_of, read_range
from pyspark_dledger.user_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.planning.cluster_view import View

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


@plain_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source.  One object lives on the driver as long as the query; tasks have copies that only read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, Any] | None = None  # frozen by an available-now trigger
        self._last_progress_ms = self._last_look_ms = _now_ms()
        self._seen: View | None = None  # by this trigger, for what Spark asks next
        self._told: dict[str, Any] | None = None  # the end this trigger was given
        self._shown: Offsets = {}  # what the consumer group was told

    def __getstate__(self) -> dict[str, Any]:
        """For tasks, which only read."""
        return {**self.__dict__, "_seen": None, "_told": None, "_target": None, "_shown": {}}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts; a restarted one starts where its checkpoint says."""
        options = self._options
        view = cluster.describe(options)
        start = options.start.with_groups("startingOffsets", groups_of(view.incarnations))
        cluster.widen(view, options, named_offsets(start))
        check_named_queues(view.bounds, start, "startingOffsets", options.filters)
        starts = {queue: offset_of(queue, held, start, fail_on_data_loss=options.fail_on_data_loss) for queue, held in view.bounds.items()}
        return to_json(starts, view.incarnations)

    def getDefaultReadLimit(self) -> Any:
        most = self._options.limits.max_messages
        return ReadMaxRows(most) if most and ReadMaxRows is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next batch.  While the cluster does not answer it is the last one, for ``maxOutageMs``: the query waits."""
        try:
            self._told = self._next(start, limit)
        except DledgerError as error:
            last, waited_ms = start or self._told, _now_ms() - self._last_look_ms
            # An available-now query that ended then would say that it has read everything.
            if last is None or self._target is not None or not is_retriable(error) or waited_ms >= self._options.max_outage_ms:
                raise
            _logger.warning("no new messages are seen, for %d s now: %s", waited_ms // 1000, error.message)
            return last
        self._last_look_ms = _now_ms()
        return self._told

    def _next(self, start: dict[str, Any] | None, limit: Any) -> dict[str, Any]:
        """How far the next batch goes.  It never goes back, whatever a lagging replica tells; but a topic made again begins anew."""
        begun, known = from_json(start) if start is not None else ({}, {})
        view = self._seen = self._look(known)
        end, incarnations = from_json(self._target or self._end_of(view))
        if start is None:
            return self._without_start(view, end, incarnations)
        self._check_same(known, incarnations)
        self._show({queue: offset for queue, offset in begun.items() if queue.group not in view.silent.keys() | view.leaderless})
        held = {queue: bounds.min_offset for queue, bounds in view.bounds.items()}
        kept = {queue: offset for queue, offset in begun.items() if not is_remade(queue, known, incarnations)}
        # A queue new since the last batch is read from its first message; one that cannot be seen now waits where it is.
        begin = {queue: held.get(queue, 0) for queue in end} | kept
        forward = begin | {queue: max(offset, begin[queue]) for queue, offset in end.items()}
        taken = self._admitted(begin, forward, limit)
        if taken != begin:
            self._last_progress_ms = _now_ms()
        return to_json(taken, merged(known, incarnations))

    def _without_start(self, view: View, end: Offsets, incarnations: Mapping[str, str]) -> dict[str, Any]:
        """For PySpark 4.1, which tells no start: of groups without a leader nothing below the last end, which a new query does not know."""
        unsure = view.silent.keys() | view.leaderless
        if unsure and self._told is None:
            raise view.silent.get(min(unsure), NotReadyError(f"group {min(unsure)} has no leader now"))
        told, known = from_json(self._told) if self._told is not None else ({}, {})
        kept = {queue: max(offset, end.get(queue, 0)) for queue, offset in told.items() if queue.group in unsure}
        topics = {queue.topic for queue in kept}
        return to_json(end | kept, merged({topic: text for topic, text in known.items() if topic in topics}, incarnations))

    def _look(self, known: Mapping[str, str]) -> View:
        """The cluster now.  A topic may be gone that the checkpoint knows, or any, if loss is no error; what the checkpoint knows of groups
        that are silent, or whose followers are behind it, still holds."""
        options = self._options
        loose = () if options.fail_on_data_loss and known else options.topics
        view = cluster.describe(options, {*known, *loose}, start_times=False, whole=not known)
        for topic, text in known.items():
            seen = by_group(view.incarnations.get(topic, ""))
            silent = {group: made for group, made in by_group(text).items() if group in view.silent}
            # A follower that knows another topic of that name, or none, may not have come as far as the query has.
            behind = {group: made for group, made in by_group(text).items() if group in view.leaderless and seen.get(group) != made}
            if self._target is not None and (silent or behind):
                raise view.silent.get(min(silent | behind), NotReadyError(f"group {min(silent | behind)} has no leader now"))
            if silent or behind:
                view.incarnations[topic] = joined(seen | silent | behind)
                view.bounds = {queue: held for queue, held in view.bounds.items() if queue.topic != topic or queue.group not in behind}
        return view

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

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For progress reports; Spark asks right after ``latestOffset``, whose look serves."""
        return self._end_of(self._seen) if self._seen is not None else None

    def _end_of(self, view: View) -> dict[str, Any]:
        """What is committed now, or where the stream is to stop when options say so."""
        ends = {}
        end = self._options.end.with_groups("endingOffsets", groups_of(view.incarnations))
        for queue, held in view.bounds.items():
            asked = offset_of(queue, held, end, fail_on_data_loss=False)
            ends[queue] = min(asked, held.max_offset)
        return to_json(ends, view.incarnations)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The batch that was planned.  After a restart it may have been planned long ago."""
        begun, known = from_json(start)
        until, planned = from_json(end)
        # What was told of this very end is of this trigger: a restarted query looks again.
        view = self._seen if self._seen is not None and end == self._told else self._look(planned)
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
        return partitions_of(filled, self._options, planned)

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
        self._show(from_json(end)[0])

    def _show(self, done: Offsets) -> None:
        """Tell the consumer group how far the query is.  Spark asks for the next batch when all before it is done, and once more when there
        is none, so the group has the query's end then.  The checkpoint is Spark's: that the group cannot be told stops nothing."""
        if not self._options.group_id or done == self._shown:
            return
        try:
            cluster.mirror(self._options, {queue: offset for queue, offset in done.items() if self._shown.get(queue) != offset})
            self._shown = done
        except DledgerError as error:
            _logger.warning("group %s: offsets were not committed: %s", self._options.group_id, error.message)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
