"""What a query asks of the cluster beside its messages: what there is before it plans, sizes of what waits, a group's offsets.

Owns the asking, which is done on the driver.  That something is gone is the word of all replicas.
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
from pyspark_dledger.planning.cluster_view import LOOK_TIMEOUT_MS, Lookout, View, Wanted
from pyspark_dledger.planning.partitions import QueueId

SAMPLE_MESSAGES, SAMPLE_BYTES = 200, 256 << 10


def describe(options: ReadOptions, may_lack: Collection[str] = (), *, start_times: bool = True, whole: bool = True) -> View:
    """A look at the cluster (look.py).  Topics of ``may_lack`` that do not exist are left out."""
    lookout = Lookout.of_this_process(options)
    return LoopThread.shared().run(lookout.look(Wanted(options, frozenset(may_lack), start_times, whole)))


def widen(view: View, options: ReadOptions, asked: Mapping[QueueId, int]) -> None:
    """Before messages are said to be gone: nodes expire by themselves, so what a leader has not any more, another replica may hold."""
    for queue, offset in asked.items():
        held = view.bounds.get(queue)
        if held is not None and 0 <= offset < held.min_offset:
            view.bounds[queue] = replace(held, min_offset=min(held.min_offset, least_held(options, queue, offset)))


def least_held(options: ReadOptions, queue: QueueId, offset: int) -> int:
    """The first offset from ``offset`` on that a replica holds which tasks may read from."""
    where: dict[str, Any] = {"read_from": options.read_from, "replica": options.replica or None}
    with PullConsumer(options.bootstrap, timeout_ms=min(LOOK_TIMEOUT_MS, options.read_timeout_ms), **where) as consumer:
        try:
            consumer.fetch(queue.topic, queue.queue_id, offset, 1, replica_group=queue.group)
        except OffsetOutOfRangeError as error:
            return error.min_offset
    return offset


def mean_sizes(options: ReadOptions, waiting: Mapping[QueueId, tuple[int, int]]) -> dict[QueueId, float]:
    """Bytes of a message as it is stored, from the first ones of each [start, end) that waits."""
    found = {}
    with PullConsumer(options.bootstrap, read_from="follower", timeout_ms=LOOK_TIMEOUT_MS) as consumer:
        for queue, (start, end) in waiting.items():
            first = _sample(consumer, queue, start, end)
            if first is not None and first.count:
                found[queue] = len(first.frames) / first.count
    return found


def _sample(consumer: PullConsumer, queue: QueueId, start: int, end: int) -> Chunk | None:
    """A few messages of [start, end); from where they begin, when the first are expired."""
    upto = min(end, start + SAMPLE_MESSAGES)
    how: dict[str, Any] = {"replica_group": queue.group, "chunk_bytes": SAMPLE_BYTES}
    with closing(consumer.read_chunks(queue.topic, queue.queue_id, start, upto, **how)) as chunks:
        try:
            return next(chunks, None)
        except OffsetOutOfRangeError as error:
            begin = error.min_offset
    return _sample(consumer, queue, begin, end) if start < begin < end else None


def mirror(options: ReadOptions, offsets: Mapping[QueueId, int]) -> None:
    """Commit the query's offsets as those of its consumer group, for ``dledger group describe`` to show."""
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for queue, offset in offsets.items():
        by_group.setdefault(queue.group, {})[queue.topic, queue.queue_id] = offset
    with PullConsumer(options.bootstrap, group=options.group_id, timeout_ms=LOOK_TIMEOUT_MS) as consumer:
        for group, positions in by_group.items():
            consumer.commit(positions, replica_group=group)
