"""Streaming reads: checkpointed offsets, rate limits, exact restarts.

Spark writes the end of a micro-batch into its checkpoint before it runs it, so after a crash the same range is planned
again.  Partitioning is a pure function of range and options, and a committed range never changes, so the rows are the
same.  Offsets belong to one topic epoch: offsets of a deleted topic do not apply to a topic created again under its name.

PySpark 4.1 has no admission control: it calls ``latestOffset`` without arguments, and a micro-batch reads everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dledger_client.cluster.retry import is_retriable
from dledger_wire.errors import DledgerError, NotReadyError, OffsetOutOfRangeError
from pyspark_dledger.options.model import ReadOptions
from pyspark_dledger.options.read_bounds import EARLIEST, check_order
from pyspark_dledger.planning import cluster_queries
from pyspark_dledger.planning.bounds_questions import ViewRequest
from pyspark_dledger.planning.checkpoint import NOWHERE, KnownOffsets, StreamOffsets
from pyspark_dledger.planning.cluster_view import ClusterView
from pyspark_dledger.planning.partitions import OffsetRange, check_named_queues, named_offsets, offsets_of
from pyspark_dledger.planning.queue_offsets import (
    Offsets,
    QueueId,
    TopicPart,
    by_queue,
    changed,
    ends_before,
    in_order,
    of_equal_size,
    same_offsets,
)
from pyspark_dledger.planning.rate_limit import cut_to_bytes, cut_to_messages, spans, total_of, waiting
from pyspark_dledger.planning.topic_epochs import by_group, check_same, groups_of, joined, merged, recreated
from pyspark_dledger.read.batch import partitions_of, read_range
from pyspark_dledger.user_errors import concise_errors

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for PySpark versions without this interface."""

    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = None  # type: ignore[assignment, misc]

_logger = logging.getLogger(__name__)


@concise_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Source of one streaming query.  The driver keeps one object per query; tasks get copies that only read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._known = KnownOffsets()
        self._target: StreamOffsets | None = None  # end offsets fixed by an available-now trigger
        self._last_progress_ms = self._last_view_ms = _now_ms()
        self._last_view: ClusterView | None = None  # of this trigger, reused by the calls that follow
        self._last_end: dict[str, Any] | None = None  # the end offsets returned for this trigger
        self._committed_progress: Offsets = {}  # offsets committed for the consumer group

    def __getstate__(self) -> dict[str, Any]:
        """State for tasks, which only read."""
        own: dict[str, Any] = {"_known": KnownOffsets(), "_target": None, "_last_view": None, "_last_end": None, "_committed_progress": {}}
        return self.__dict__ | own

    def initialOffset(self) -> dict[str, Any]:
        """Start of a new query; a restarted query starts at its checkpoint."""
        options = self._options
        view = cluster_queries.read_cluster_view(options)
        groups = groups_of(view.topic_epochs)
        start = options.start.with_groups("startingOffsets", groups)
        cluster_queries.widen_to_replicas(view, options, named_offsets(start))
        check_named_queues(view.bounds, start, "startingOffsets", options.filters)
        end = options.end.with_groups("endingOffsets", groups)
        check_order(start, end)
        check_named_queues(view.bounds, end, "endingOffsets", options.filters)
        starts = {part: offsets_of(part, held, start, fail_on_data_loss=options.fail_on_data_loss) for part, held in view.bounds.items()}
        return self._known.write(starts, view.topic_epochs)

    def getDefaultReadLimit(self) -> Any:
        limits = self._options.limits
        if limits.max_messages:
            return ReadMaxRows(limits.max_messages)
        if limits.max_bytes:
            return ReadMaxBytes(limits.max_bytes)
        return ReadMinRows(limits.min_messages) if limits.min_messages else ReadAllAvailable()

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
        """End of the next micro-batch.  It never moves back because a lagging replica responds; a recreated topic
        restarts at 0, a queue of a restored cluster at its end.
        """
        begun, known = self._known.read(start) if start is not None else NOWHERE
        # Nothing is known yet that an end could be before: a leader that has lost its lead must not plan one before the checkpoint.
        is_blind = start is None and self._last_end is None
        view = self._last_view = self._look(known, confirmed=is_blind)
        end, topic_epochs = self._target or self._end_of(view)
        if start is None:
            return self._without_start(view, end, topic_epochs)
        self._check_same(known, topic_epochs)
        silent = view.unreachable.keys() | view.leaderless
        self._commit_progress({part: offsets for part, offsets in begun.items() if part.group not in silent})
        remade = recreated(known, topic_epochs)
        kept = {part: offsets for part, offsets in begun.items() if part not in remade} if remade else begun
        begin: Offsets = {}
        forward: Offsets = {}
        for part in end.keys() | kept.keys():
            held = view.bounds.get(part)
            own, upto, least = of_equal_size(kept.get(part), end.get(part), held.min_offsets if held else None)
            # A new queue is read from its first message; a queue that is unreachable now keeps its offset.
            begin[part] = np.where((own < 0) & (upto >= 0), np.maximum(least, 0), own)
            forward[part] = np.maximum(begin[part], upto)
        for part, ends in self._shortened(view, kept, known).items():
            back, _ = of_equal_size(ends, begin[part])
            begin[part], forward[part] = (np.where(back >= 0, back, offsets[part]) for offsets in (begin, forward))
        taken = self._admitted(begin, forward, limit)
        if not same_offsets(taken, begin):
            self._last_progress_ms = _now_ms()
        return self._known.write(taken, merged(known, topic_epochs))

    def _without_start(self, view: ClusterView, end: Offsets, topic_epochs: Mapping[str, str]) -> dict[str, Any]:
        """PySpark 4.1 passes no start: for groups without a leader the last end is the minimum; a new query has none
        and fails.
        """
        unsure = view.unreachable.keys() | view.leaderless
        if unsure and self._last_end is None:
            raise view.unreachable.get(min(unsure), NotReadyError(f"replica group {min(unsure)} has no leader now"))
        returned, known = self._known.read(self._last_end) if self._last_end is not None else NOWHERE
        same = {part: offsets for part, offsets in returned.items() if part in end and part not in recreated(known, topic_epochs)}
        sure = same.keys() - self._shortened(view, same, known).keys()
        least = {part: offsets for part, offsets in returned.items() if part.group in unsure or part in sure}
        kept = {part: np.maximum(*of_equal_size(offsets, end.get(part))) for part, offsets in least.items()}
        topics = {part.topic for part in kept}
        epochs = merged({topic: text for topic, text in known.items() if topic in topics}, topic_epochs)
        return self._known.write(end | kept, epochs)

    def _look(self, known: Mapping[str, str], *, from_leaders: bool = False, confirmed: bool = False) -> ClusterView:
        """A view of the cluster.  Topics of the checkpoint may be missing, or any topic if data loss is allowed.
        Groups that are unreachable, or whose followers are behind the checkpoint, keep the epochs of the checkpoint.
        ``confirmed``: leaders make sure that they lead.
        """
        options = replace(self._options, linearizable=True) if confirmed else self._options
        loose = () if options.fail_on_data_loss and known else options.topics
        how = {"start_times": False, "whole": not known, "from_leaders": from_leaders}
        view = cluster_queries.read_cluster_view(options, {*known, *loose}, **how)
        for topic, text in known.items() if view.unreachable or view.leaderless else ():
            seen = by_group(view.topic_epochs.get(topic, ""))
            unreachable = {group: made for group, made in by_group(text).items() if group in view.unreachable}
            # A follower with another epoch of the topic, or without it, may be behind the query.
            behind = {group: made for group, made in by_group(text).items() if group in view.leaderless and seen.get(group) != made}
            if self._target is not None and (unreachable or behind):
                unsure = min(unreachable | behind)
                raise view.unreachable.get(unsure, NotReadyError(f"replica group {unsure} has no leader now"))
            if unreachable or behind:
                view.topic_epochs[topic] = joined(seen | unreachable | behind)
                for group in behind:
                    view.bounds.pop(TopicPart(topic, group), None)
        return view

    def _shortened(self, view: ClusterView, begun: Offsets, known: Mapping[str, str]) -> Offsets:
        """The ends of queues that end before the query's offsets, as those of a restored cluster do.  A leader may have lost its lead and
        not know yet: leadership is confirmed first.
        """
        options = self._options
        silent = view.unreachable.keys() | view.leaderless
        lost = ends_before({part: offsets for part, offsets in begun.items() if part.group not in silent}, view.bounds)
        if not lost:
            return {}
        topics = tuple(sorted({part.topic for part in lost}))
        asked = replace(options, topics=topics, topic_pattern="", linearizable=True)
        concerned = frozenset(part.group for part in lost)
        confirmed = cluster_queries.read_cluster_view(asked, topics, start_times=False, whole=False, groups=concerned)
        remade = recreated(known, confirmed.topic_epochs)
        lost = ends_before({part: begun[part] for part in lost if part not in remade}, confirmed.bounds)
        for queue, end in by_queue(lost).items():
            self._lost(OffsetRange(queue, int(begun[queue.part][queue.queue_id]), end))
        return lost

    def _lost(self, piece: OffsetRange) -> None:
        """A queue ends at ``piece.end``, before its offset in the checkpoint: what was read is gone, and its offsets are used again."""
        queue = piece.queue
        gone = (
            f"topic {queue.topic} queue {queue.group}:{queue.queue_id} ends at {piece.end}, before offset {piece.start} of the checkpoint"
        )
        if self._options.fail_on_data_loss:
            hint = "was the cluster restored from a backup? set failOnDataLoss to false to read what comes after its end"
            raise OffsetOutOfRangeError(f"{gone}; {hint}", max_offset=piece.end)
        _logger.warning("%s: reading what comes after its end", gone)

    def _check_same(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        if self._options.fail_on_data_loss:
            check_same(before, now, ViewRequest(self._options).asks_for)

    def _admitted(self, begin: Offsets, end: Offsets, limit: Any) -> Offsets:
        """End offsets after rate limits."""
        if limit is None or isinstance(limit, ReadAllAvailable):  # without limits, or for trigger(once=True), which asks only once
            return end
        limits = self._options.limits
        may_wait = self._target is None and _now_ms() - self._last_progress_ms < limits.max_delay_ms
        if may_wait and total_of(waiting(begin, end)) < limits.min_messages:
            return begin
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if limits.max_bytes:
            sizes = cluster_queries.mean_message_sizes(self._options, spans(begin, end))
            end = cut_to_bytes(begin, end, sizes, limits.max_bytes)
        return cut_to_messages(begin, end, most) if most else end

    def prepareForTriggerAvailableNow(self) -> None:
        # Followers of a group without a leader may have restarted: the query would end with less than was acknowledged.
        self._target = self._end_of(self._look({}, from_leaders=True))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For progress reports; Spark calls it right after ``latestOffset``, so its view is reused."""
        return self._known.write(*self._end_of(self._last_view)) if self._last_view is not None else None

    def _end_of(self, view: ClusterView) -> StreamOffsets:
        """The committed end, or the end that the options set."""
        end = self._options.end
        if end.queues or end.times:
            end = end.with_groups("endingOffsets", groups_of(view.topic_epochs))
        ends = {
            part: np.minimum(offsets_of(part, held, end, fail_on_data_loss=False), held.max_offsets) for part, held in view.bounds.items()
        }
        return StreamOffsets(ends, view.topic_epochs)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Partitions of a planned micro-batch, which may be from before a restart."""
        begun, known = self._known.read(start)
        until, planned = self._known.read(end)
        # The view of this trigger is valid only for the end it returned; a restarted query reads a new one.
        is_last = self._last_end is not None and self._known.read(self._last_end).offsets is until
        view = self._last_view if self._last_view is not None and is_last else self._look(planned)
        self._check_same(known, planned)
        self._check_same(planned, view.topic_epochs)
        remade_since, remade, gone = (
            recreated(*each) for each in ((known, view.topic_epochs), (known, planned), (planned, view.topic_epochs))
        )
        self._widen(view, {part: offsets for part, offsets in begun.items() if part not in remade_since}, until)
        ranges: list[OffsetRange] = []
        for part, upto in in_order(until):
            held = view.bounds.get(part)
            first, last, least = of_equal_size(None if part in remade else begun.get(part), upto, held.min_offsets if held else None)
            first = np.where(first < 0, EARLIEST, first)
            is_gone = part in gone or part.topic not in view.topic_epochs
            # Most of many queues have nothing new.
            for number in np.flatnonzero((last >= 0) & (first != last)).tolist():
                piece = OffsetRange(QueueId(*part, number), int(first[number]), int(last[number]))
                if is_gone:
                    _log_gone(piece)
                elif piece.end < piece.start:
                    self._lost(piece)
                else:
                    ranges.append(self._held(piece, max(0, int(least[number]))))
        filled = [piece for piece in ranges if piece.start < piece.end]
        return partitions_of(filled, self._options, planned)

    def _widen(self, view: ClusterView, begun: Offsets, until: Offsets) -> None:
        """Look for messages that will be read and that the leader has deleted on other replicas."""
        wanted: dict[QueueId, int] = {}
        for part, offsets in begun.items():
            if part in view.bounds:
                first, last, least = of_equal_size(offsets, until.get(part), view.bounds[part].min_offsets)
                expired = np.flatnonzero((first >= 0) & (first < last) & (first < least)).tolist()
                wanted.update({QueueId(*part, number): int(first[number]) for number in expired})
        cluster_queries.widen_to_replicas(view, self._options, wanted)

    def _held(self, piece: OffsetRange, least: int) -> OffsetRange:
        """The part of the range that still exists, from offset ``least``; a new queue starts at its earliest message."""
        queue, start, end = piece.queue, piece.start, piece.end
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
            self._commit_progress(self._known.read(end).offsets)

    def _commit_progress(self, done: Offsets) -> None:
        """Commit the query's offsets for its consumer group.

        Spark asks for the next micro-batch when the previous one is done, and again when there is none, so the group
        reaches the query's end.  The checkpoint is the source of truth: a failed commit is only logged.
        """
        if not self._options.group_id:
            return
        moved = changed(done, self._committed_progress)
        try:
            if moved:
                cluster_queries.commit_progress(self._options, by_queue(moved))
            self._committed_progress = done
        except DledgerError as error:
            _logger.warning("group %s: committing offsets failed: %s", self._options.group_id, error.message)


def _log_gone(piece: OffsetRange) -> None:
    if piece.start < piece.end:
        _logger.warning("topic %s queue %s:%d: deleted with its topic; messages before offset %d are lost", *piece.queue, piece.end)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
