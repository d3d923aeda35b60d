"""Streaming reads: checkpointed offsets, rate limits, exact restarts.

The checkpoint holds a JSON object of offsets per topic and queue.  Spark writes the end of a micro-batch before it runs
it, so after a crash the same range is planned again.  Partitioning is a pure function of range and options, and a
committed range never changes, so the rows are the same.  Offsets belong to one topic epoch: offsets of a deleted topic
do not apply to a topic created again under its name.

PySpark 4.1 has no admission control: it calls ``latestOffset`` without arguments, and a micro-batch reads everything.
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
from pyspark_dledger.planning import cluster_queries
from pyspark_dledger.planning.cluster_view import ClusterView
from pyspark_dledger.planning.partitions import OffsetRange, QueueBounds, QueueId, check_named_queues, named_offsets, offset_of
from pyspark_dledger.planning.rate_limit import Offsets, cut_to_bytes, cut_to_messages, waiting
from pyspark_dledger.planning.topic_epochs import by_group, check_same, groups_of, joined, merged, recreated
from pyspark_dledger.read.batch import partitions_of, read_range
from pyspark_dledger.user_errors import concise_errors

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for PySpark versions without this interface."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]

FORMAT_VERSION = 1

_logger = logging.getLogger(__name__)


def to_json(offsets: Mapping[QueueId, int], topic_epochs: Mapping[str, str]) -> dict[str, Any]:
    """The checkpoint's content: version, and per topic its epoch and the next offset of each queue."""
    topics: dict[str, Any] = {name: {"incarnation": incarnation, "queues": {}} for name, incarnation in sorted(topic_epochs.items())}
    for queue, offset in sorted(offsets.items()):
        topics[queue.topic]["queues"][f"{queue.group}:{queue.queue_id}"] = offset
    return {"version": FORMAT_VERSION, "topics": topics}


def from_json(stored: Mapping[str, Any]) -> tuple[Offsets, dict[str, str]]:
    """Offsets and topic epochs of a checkpoint.  Raises InvalidArgumentError if it is not one of this source."""
    try:
        if stored["version"] != FORMAT_VERSION:
            raise InvalidArgumentError(f"checkpoint: offsets of format {stored['version']}; expected {FORMAT_VERSION}")
        offsets, topic_epochs = {}, {}
        for topic, part in stored["topics"].items():
            topic_epochs[topic] = str(part["incarnation"])
            for key, offset in part["queues"].items():
                group, _, queue_id = key.rpartition(":")
                offsets[QueueId(topic, group, int(queue_id))] = int(offset)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise InvalidArgumentError(f"checkpoint: {json.dumps(stored)[:200]} are not offsets of this source") from None
    return offsets, topic_epochs


@concise_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Source of one streaming query.  The driver keeps one object per query; tasks get copies that only read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, Any] | None = None  # end offsets fixed by an available-now trigger
        self._last_progress_ms = self._last_view_ms = _now_ms()
        self._last_view: ClusterView | None = None  # of this trigger, reused by the calls that follow
        self._last_end: dict[str, Any] | None = None  # the end offsets returned for this trigger
        self._committed_progress: Offsets = {}  # offsets committed for the consumer group

    def __getstate__(self) -> dict[str, Any]:
        """State for tasks, which only read."""
        return {**self.__dict__, "_last_view": None, "_last_end": None, "_target": None, "_committed_progress": {}}

    def initialOffset(self) -> dict[str, Any]:
        """Start of a new query; a restarted query starts at its checkpoint."""
        options = self._options
        view = cluster_queries.read_cluster_view(options)
        start = options.start.with_groups("startingOffsets", groups_of(view.topic_epochs))
        cluster_queries.widen_to_replicas(view, options, named_offsets(start))
        check_named_queues(view.bounds, start, "startingOffsets", options.filters)
        starts = {queue: offset_of(queue, held, start, fail_on_data_loss=options.fail_on_data_loss) for queue, held in view.bounds.items()}
        return to_json(starts, view.topic_epochs)

    def getDefaultReadLimit(self) -> Any:
        most = self._options.limits.max_messages
        return ReadMaxRows(most) if most and ReadMaxRows is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """End of the next micro-batch.  While the cluster does not respond, the last end is returned for up to
        ``maxOutageMs``.
        """
        try:
            self._last_end = self._next(start, limit)
        except DledgerError as error:
            last, waited_ms = start or self._last_end, _now_ms() - self._last_view_ms
            # An available-now query must not finish as if it had read everything.
            if last is None or self._target is not None or not is_retriable(error) or waited_ms >= self._options.max_outage_ms:
                raise
            _logger.warning("cluster not reachable for %d s, waiting: %s", waited_ms // 1000, error.message)
            return last
        self._last_view_ms = _now_ms()
        return self._last_end

    def _next(self, start: dict[str, Any] | None, limit: Any) -> dict[str, Any]:
        """End of the next micro-batch.  It never moves back, even if a lagging replica responds; a recreated topic
        restarts at 0.
        """
        begun, known = from_json(start) if start is not None else ({}, {})
        view = self._last_view = self._look(known)
        end, topic_epochs = from_json(self._target) if self._target else (self._ends(view), view.topic_epochs)
        if start is None:
            return self._without_start(view, end, topic_epochs)
        self._check_same(known, topic_epochs)
        self._commit_progress(
            {queue: offset for queue, offset in begun.items() if queue.group not in view.unreachable.keys() | view.leaderless}
        )
        held = {queue: bounds.min_offset for queue, bounds in view.bounds.items()}
        remade = recreated(known, topic_epochs)
        kept = {queue: offset for queue, offset in begun.items() if (queue.topic, queue.group) not in remade} if remade else begun
        # A new queue is read from its first message; a queue that is unreachable now keeps its offset.
        begin = {queue: held.get(queue, 0) for queue in end} | kept
        forward = begin | {queue: max(offset, begin[queue]) for queue, offset in end.items()}
        taken = self._admitted(begin, forward, limit)
        if taken != begin:
            self._last_progress_ms = _now_ms()
        return to_json(taken, merged(known, topic_epochs))

    def _without_start(self, view: ClusterView, end: Offsets, topic_epochs: Mapping[str, str]) -> dict[str, Any]:
        """PySpark 4.1 passes no start: for groups without a leader the last end is the minimum; a new query has none
        and fails.
        """
        unsure = view.unreachable.keys() | view.leaderless
        if unsure and self._last_end is None:
            raise view.unreachable.get(min(unsure), NotReadyError(f"replica group {min(unsure)} has no leader now"))
        told, known = from_json(self._last_end) if self._last_end is not None else ({}, {})
        kept = {queue: max(offset, end.get(queue, 0)) for queue, offset in told.items() if queue.group in unsure}
        topics = {queue.topic for queue in kept}
        return to_json(end | kept, merged({topic: text for topic, text in known.items() if topic in topics}, topic_epochs))

    def _look(self, known: Mapping[str, str]) -> ClusterView:
        """A view of the cluster.  Topics of the checkpoint may be missing, or any topic if data loss is allowed.
        Groups that are unreachable, or whose followers are behind the checkpoint, keep the epochs of the checkpoint.
        """
        options = self._options
        loose = () if options.fail_on_data_loss and known else options.topics
        view = cluster_queries.read_cluster_view(options, {*known, *loose}, start_times=False, whole=not known)
        for topic, text in known.items():
            seen = by_group(view.topic_epochs.get(topic, ""))
            unreachable = {group: made for group, made in by_group(text).items() if group in view.unreachable}
            # A follower with another epoch of the topic, or without it, may be behind the query.
            behind = {group: made for group, made in by_group(text).items() if group in view.leaderless and seen.get(group) != made}
            if self._target is not None and (unreachable or behind):
                unsure = min(unreachable | behind)
                raise view.unreachable.get(unsure, NotReadyError(f"replica group {unsure} has no leader now"))
            if unreachable or behind:
                view.topic_epochs[topic] = joined(seen | unreachable | behind)
                view.bounds = {queue: held for queue, held in view.bounds.items() if queue.topic != topic or queue.group not in behind}
        return view

    def _check_same(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        if self._options.fail_on_data_loss:
            check_same(before, now)

    def _admitted(self, begin: Offsets, end: Offsets, limit: Any) -> Offsets:
        """End offsets after rate limits."""
        limits = self._options.limits
        may_wait = self._target is None and _now_ms() - self._last_progress_ms < limits.max_delay_ms
        if may_wait and sum(waiting(begin, end).values()) < limits.min_messages:
            return begin
        most = limit.max_rows if ReadMaxRows is not None and isinstance(limit, ReadMaxRows) else 0
        if limit is not None and limits.max_bytes:
            spans = {queue: (begin[queue], end[queue]) for queue, count in waiting(begin, end).items() if count}
            end = cut_to_bytes(begin, end, cluster_queries.mean_message_sizes(self._options, spans), limits.max_bytes)
        return cut_to_messages(begin, end, most) if most else end

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end_of(self._look({}))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For progress reports; Spark calls it right after ``latestOffset``, so its view is reused."""
        return self._end_of(self._last_view) if self._last_view is not None else None

    def _end_of(self, view: ClusterView) -> dict[str, Any]:
        return to_json(self._ends(view), view.topic_epochs)

    def _ends(self, view: ClusterView) -> Offsets:
        """The committed end, or the end that the options set."""
        ends = {}
        end = self._options.end.with_groups("endingOffsets", groups_of(view.topic_epochs))
        for queue, held in view.bounds.items():
            asked = offset_of(queue, held, end, fail_on_data_loss=False)
            ends[queue] = min(asked, held.max_offset)
        return ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Partitions of a planned micro-batch, which may be from before a restart."""
        begun, known = from_json(start)
        until, planned = from_json(end)
        # The view of this trigger is valid only for the end it returned; a restarted query reads a new one.
        view = self._last_view if self._last_view is not None and end == self._last_end else self._look(planned)
        self._check_same(known, planned)
        self._check_same(planned, view.topic_epochs)
        begins = {queue: offset for queue, offset in begun.items() if until.get(queue, 0) > offset}
        remade_since, remade, gone = (
            recreated(*each) for each in ((known, view.topic_epochs), (known, planned), (planned, view.topic_epochs))
        )
        kept = {queue: begins[queue] for queue in begins if (queue.topic, queue.group) not in remade_since}
        cluster_queries.widen_to_replicas(view, self._options, kept)
        ranges = []
        for queue, offset in sorted(until.items()):
            part = (queue.topic, queue.group)
            first = EARLIEST if part in remade else begun.get(queue, EARLIEST)
            if first == offset:  # as in most of many queues
                continue
            if queue.topic in view.topic_epochs and part not in gone:
                ranges.append(self._held(queue, first, offset, view.bounds))
            elif first < offset:
                _logger.warning(
                    "topic %s queue %s:%d: deleted with its topic; messages before offset %d are lost",
                    queue.topic,
                    queue.group,
                    queue.queue_id,
                    offset,
                )
        filled = [piece for piece in ranges if piece.start < piece.end]
        return partitions_of(filled, self._options, planned)

    def _held(self, queue: QueueId, start: int, end: int, bounds: Mapping[QueueId, QueueBounds]) -> OffsetRange:
        """The part of the range that still exists; a new queue starts at its earliest message."""
        least = bounds[queue].min_offset if queue in bounds else 0
        if start == EARLIEST:
            return OffsetRange(queue, min(least, end), end)
        if start < least:
            gone = f"topic {queue.topic} queue {queue.group}:{queue.queue_id}: messages {start} to {min(least, end)} no longer exist"
            if self._options.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{gone}; set failOnDataLoss to false to skip them", min_offset=least, max_offset=end)
            _logger.warning("%s", gone)
        return OffsetRange(queue, min(max(start, least), end), end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group_id:
            self._commit_progress(from_json(end)[0])

    def _commit_progress(self, done: Offsets) -> None:
        """Commit the query's offsets for its consumer group.

        Spark asks for the next micro-batch when the previous one is done, and again when there is none, so the group
        reaches the query's end.  The checkpoint is the source of truth: a failed commit is only logged.
        """
        if not self._options.group_id or done == self._committed_progress:
            return
        try:
            cluster_queries.commit_progress(
                self._options, {queue: offset for queue, offset in done.items() if self._committed_progress.get(queue) != offset}
            )
            self._committed_progress = done
        except DledgerError as error:
            _logger.warning("group %s: committing offsets failed: %s", self._options.group_id, error.message)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
