"""Prunes offset ranges with the replicas' key index: a query for a few keys reads only the parts that hold them.

An index response is used only if it is complete and comes from a replica that has applied at least what the leader had
applied when the ranges were fixed.  Otherwise the ranges stay as they are.  Rows are filtered by key in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from dledger_client.admin.message_query import MAX_PAGE, PAGE_BYTES, Replicas, pages
from dledger_client.cluster.router import Router
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire._pb import broker_pb2, query_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from pyspark_dledger.options.model import ReadOptions
from pyspark_dledger.planning.partitions import OffsetRange
from pyspark_dledger.planning.queue_offsets import QueueId

MAX_MATCHES = 10_000  # above this, a full scan is faster
MAX_GAP = 256  # two matches at most this far apart are read as one range
TIMEOUT_MS = 10_000

_logger = logging.getLogger(__name__)


def pruned_by_keys(options: ReadOptions, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
    """The parts of ``ranges`` that hold the wanted keys, or ``ranges`` unchanged if the index cannot be used."""
    if not options.filters.keys or not ranges:
        return ranges

    async def work() -> dict[QueueId, list[int]] | None:
        environment = environment_for(options.bootstrap, **options.access.client())
        router = environment.open_router(options.bootstrap)
        try:
            return await keyed_offsets(router, ranges, options.filters.keys)
        finally:
            await router.close()

    try:
        found = LoopThread.shared().run(work())
    except DledgerError as error:
        _logger.info("key index not used, reading the whole range: %s", error.message)
        return ranges
    return ranges if found is None else cut_to(ranges, found)


async def keyed_offsets(router: Router, ranges: Sequence[OffsetRange], keys: Sequence[str]) -> dict[QueueId, list[int]] | None:
    """Offsets of the messages with one of ``keys``, by queue; None if the index is incomplete or there are too many
    matches.
    """
    deadline_ms = router.clock.monotonic_ms() + TIMEOUT_MS
    found: dict[QueueId, list[int]] = {}
    left = MAX_MATCHES
    for topic, group in sorted({(piece.queue.topic, piece.queue.group) for piece in ranges}):
        await router.ensure_group(group, deadline_ms)
        applied = await _applied(router, topic, group, deadline_ms)
        for key in keys:
            request = query_pb2.QueryMessagesRequest(topic=topic, key=key, max_messages=MAX_PAGE, max_bytes=PAGE_BYTES, places_only=True)
            async with aclosing(pages(Replicas(router), group, request, deadline_ms)) as answers:
                async for reply, _, _ in answers:
                    left -= len(reply.messages)
                    if not reply.complete or reply.applied_index < applied or left < 0:
                        return None
                    for message in reply.messages:
                        found.setdefault(QueueId(topic, group, message.queue_id), []).append(message.queue_offset)
    return found


async def _applied(router: Router, topic: str, group: str, deadline_ms: int) -> int:
    """The leader's applied index; it is at least what it was when the ranges were fixed."""
    request = broker_pb2.OffsetsRequest(queues=[broker_pb2.QueueRef(topic=topic, queue_id=0, timestamp_ms=-1)])
    answer = await router.call_leader(group, methods.QUEUE_OFFSETS, request, deadline_ms=deadline_ms)
    return int(answer.applied_index)


def cut_to(ranges: Sequence[OffsetRange], found: Mapping[QueueId, Sequence[int]]) -> list[OffsetRange]:
    """The parts of ``ranges`` around ``found``; offsets close to each other share a part."""
    parts: list[OffsetRange] = []
    for piece in ranges:
        offsets = sorted({offset for offset in found.get(piece.queue, ()) if piece.start <= offset < piece.end})
        first = last = -1
        for offset in offsets:
            if first >= 0 and offset - last > MAX_GAP:
                parts.append(OffsetRange(piece.queue, first, last + 1))
                first = offset
            first, last = (offset if first < 0 else first), offset
        if first >= 0:
            parts.append(OffsetRange(piece.queue, first, last + 1))
    return parts
