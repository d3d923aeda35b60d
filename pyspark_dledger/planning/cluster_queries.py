"""Requests that the driver sends to the cluster: queue bounds for planning, message sizes, and committed offsets.

Messages count as deleted only if no replica that tasks may read from has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from dledger_client import PullConsumer
from dledger_client.aio.consumer import PullConsumer as AsyncPullConsumer
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import OffsetOutOfRangeError
from pyspark_dledger.options.model import METADATA_TIMEOUT_MS, ReadOptions
from pyspark_dledger.planning.bounds_questions import ViewRequest
from pyspark_dledger.planning.cluster_view import ClusterInspector, ClusterView
from pyspark_dledger.planning.partitions import has_queue
from pyspark_dledger.planning.queue_offsets import QueueId

SAMPLE_MESSAGES, SAMPLE_BYTES = 200, 256 << 10
SAMPLES_AT_ONCE = 32


def read_cluster_view(options: ReadOptions, may_lack: Collection[str] = (), **how: Any) -> ClusterView:
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
    return LoopThread.shared().run(_mean_sizes(options, waiting))


async def _mean_sizes(options: ReadOptions, waiting: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, float]:
    slots = asyncio.Semaphore(SAMPLES_AT_ONCE)
    async with AsyncPullConsumer(
        options.bootstrap, read_from="follower", timeout_ms=METADATA_TIMEOUT_MS, **options.access.client()
    ) as consumer:

        async def sampled(queue: QueueId, start: int, end: int) -> float:
            async with slots:
                return await _mean_size(consumer, queue, start, end)

        found = await asyncio.gather(*(sampled(queue, *span) for queue, span in waiting.items()), return_exceptions=True)
    sizes = {}
    for queue, size in zip(waiting, found, strict=True):
        if isinstance(size, BaseException):
            raise size
        if size:
            sizes[queue] = size
    return sizes


async def _mean_size(consumer: AsyncPullConsumer, queue: QueueId, start: int, end: int) -> float:
    """Of the first messages of [start, end) that are not expired; 0 when there are none."""
    sample_end = min(end, start + SAMPLE_MESSAGES)
    how: dict[str, Any] = {"replica_group": queue.group, "chunk_bytes": SAMPLE_BYTES, "without_body": True}
    try:
        async with aclosing(consumer.read_chunks(queue.topic, queue.queue_id, start, sample_end, **how)) as chunks:
            async for chunk in chunks:
                return float(chunk.columns.heads["total_size"].mean()) if chunk.count else 0.0
            return 0.0
    except OffsetOutOfRangeError as error:
        begin = error.min_offset
    return await _mean_size(consumer, queue, begin, end) if start < begin < end else 0.0


def commit_progress(options: ReadOptions, offsets: Mapping[QueueId, int]) -> None:
    """Commit the query's offsets for its consumer group, so that ``dledger group describe`` shows them."""
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for queue, offset in offsets.items():
        by_group.setdefault(queue.group, {})[queue.topic, queue.queue_id] = offset
    with PullConsumer(options.bootstrap, group=options.group_id, timeout_ms=METADATA_TIMEOUT_MS, **options.access.client()) as consumer:
        for group, positions in by_group.items():
            consumer.commit(positions, replica_group=group)
