"""Requests that the driver sends to the cluster: queue bounds for planning, message sizes, and committed offsets.

Messages count as deleted only if no replica that tasks may read from has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from dledger_client import PullConsumer
from dledger_client.fetch.records import Chunk
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import OffsetOutOfRangeError
from pyspark_dledger.options.model import ReadOptions
from pyspark_dledger.planning.cluster_view import METADATA_TIMEOUT_MS, ClusterInspector, ClusterView
from pyspark_dledger.planning.partitions import has_queue
from pyspark_dledger.planning.queue_offsets import QueueId
from pyspark_dledger.planning.view_request import ViewRequest

SAMPLE_MESSAGES, SAMPLE_BYTES = 200, 256 << 10


def read_cluster_view(options: ReadOptions, may_lack: Collection[str] = (), **how: bool) -> ClusterView:
    """The cluster's topics and queues.  Topics of ``may_lack`` that do not exist are left out; ``how``: see ViewRequest."""
    inspector = ClusterInspector.of_this_process(options)
    return LoopThread.shared().run(inspector.read_view(ViewRequest(options, frozenset(may_lack), **how)))


def widen_to_replicas(view: ClusterView, options: ReadOptions, asked: Mapping[QueueId, int]) -> None:
    """Lower the minimum offsets of ``view`` to what any replica still has: replicas delete old segments independently."""
    for queue, offset in asked.items():
        if has_queue(view.bounds, queue):
            held = view.bounds[queue.part]
            least = int(held.min_offsets[queue.queue_id])
            if 0 <= offset < least:
                lowered = held.min_offsets.copy()
                lowered[queue.queue_id] = min(least, min_offset_on_replicas(options, queue, offset))
                view.bounds[queue.part] = replace(held, min_offsets=lowered)


def min_offset_on_replicas(options: ReadOptions, queue: QueueId, offset: int) -> int:
    """The first offset >= ``offset`` on the replicas that tasks may read from."""
    where: dict[str, Any] = {"read_from": options.read_from, "replica": options.replica or None}
    with PullConsumer(
        options.bootstrap, timeout_ms=min(METADATA_TIMEOUT_MS, options.read_timeout_ms), **options.access.client(), **where
    ) as consumer:
        return first_held(consumer, queue, offset)


def first_held(consumer: PullConsumer, queue: QueueId, offset: int) -> int:
    """``offset``, or the first one behind it on the replicas that ``consumer`` reads from when they have expired it."""
    try:
        consumer.fetch(queue.topic, queue.queue_id, offset, 1, replica_group=queue.group)
    except OffsetOutOfRangeError as error:
        return error.min_offset
    return offset


def mean_message_sizes(options: ReadOptions, waiting: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, float]:
    """Mean stored size of a message in bytes, sampled at the start of each range [start, end)."""
    found = {}
    with PullConsumer(options.bootstrap, read_from="follower", timeout_ms=METADATA_TIMEOUT_MS, **options.access.client()) as consumer:
        for queue, (start, end) in waiting.items():
            first = _sample(consumer, queue, start, end)
            if first is not None and first.count:
                found[queue] = len(first.frames) / first.count
    return found


def _sample(consumer: PullConsumer, queue: QueueId, start: int, end: int) -> Chunk | None:
    """The first messages of [start, end) that are not expired."""
    sample_end = min(end, start + SAMPLE_MESSAGES)
    how: dict[str, Any] = {"replica_group": queue.group, "chunk_bytes": SAMPLE_BYTES}
    with closing(consumer.read_chunks(queue.topic, queue.queue_id, start, sample_end, **how)) as chunks:
        try:
            return next(chunks, None)
        except OffsetOutOfRangeError as error:
            begin = error.min_offset
    return _sample(consumer, queue, begin, end) if start < begin < end else None


def commit_progress(options: ReadOptions, offsets: Mapping[QueueId, int]) -> None:
    """Commit the query's offsets for its consumer group, so that ``dledger group describe`` shows them."""
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for queue, offset in offsets.items():
        by_group.setdefault(queue.group, {})[queue.topic, queue.queue_id] = offset
    with PullConsumer(options.bootstrap, group=options.group_id, timeout_ms=METADATA_TIMEOUT_MS, **options.access.client()) as consumer:
        for group, positions in by_group.items():
            consumer.commit(positions, replica_group=group)
