"""Ranges narrowed by the replicas' index of keys: a query for a few keys reads what has them, not the whole topic.

Owns the look into the index and when it may be trusted: the answer must be complete, and of a replica that has applied at least what the
leader had when the ranges were fixed.  Otherwise the ranges stay as they are; what is read is filtered by key in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from dledger_client.admin.message_query import MAX_PAGE, PAGE_BYTES, pages
from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire._pb import broker_pb2, query_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from pyspark_dledger.options.model import ReadOptions
from pyspark_dledger.planning.partitions import OffsetRange, QueueId

MOST_MATCHES = 10_000  # with more, reading along is quicker
NEIGHBOURS = 256  # messages between two matches that are read along
TIMEOUT_MS = 10_000

_logger = logging.getLogger(__name__)


def narrowed_by_keys(options: ReadOptions, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
    """The parts of ``ranges`` that hold messages with the wanted keys; ``ranges`` when the index cannot tell."""
    if not options.filters.keys or not ranges:
        return ranges

    async def work() -> dict[QueueId, list[int]] | None:
        environment = environment_for(options.bootstrap)
        router = environment.open_router(options.bootstrap)
        try:
            return await keyed_offsets(router, ranges, options.filters.keys)
        finally:
            await router.close()

    try:
        found = LoopThread.shared().run(work())
    except DledgerError as error:
        _logger.info("keys are looked for in the messages, the index gives no answer: %s", error.message)
        return ranges
    return ranges if found is None else cut_to(ranges, found)


async def keyed_offsets(router: Router, ranges: Sequence[OffsetRange], keys: Sequence[str]) -> dict[QueueId, list[int]] | None:
    """Where the messages with one of ``keys`` are, by queue; None when the index is not complete, or there are too many."""
    deadline_ms = router.clock.monotonic_ms() + TIMEOUT_MS
    await router.ensure_groups(deadline_ms)
    found: dict[QueueId, list[int]] = {}
    left = MOST_MATCHES
    for topic, group in sorted({(piece.queue.topic, piece.queue.group) for piece in ranges}):
        applied = await _applied(router, topic, group, deadline_ms)
        for key in keys:
            request = query_pb2.QueryMessagesRequest(topic=topic, key=key, max_messages=MAX_PAGE, max_bytes=PAGE_BYTES, places_only=True)
            async with aclosing(pages(router, group, request, deadline_ms)) as answers:
                async for reply, _, _ in answers:
                    left -= len(reply.messages)
                    if not reply.complete or reply.applied_index < applied or left < 0:
                        return None
                    for message in reply.messages:
                        found.setdefault(QueueId(topic, group, message.queue_id), []).append(message.queue_offset)
    return found


async def _applied(router: Router, topic: str, group: str, deadline_ms: int) -> int:
    """What the leader has applied: at least what it had when the ranges were fixed."""
    request = broker_pb2.OffsetsRequest(queues=[broker_pb2.QueueRef(topic=topic, queue_id=0, timestamp_ms=-1)])
    answer = await router.call_leader(group, methods.QUEUE_OFFSETS.path, request.SerializeToString(), deadline_ms=deadline_ms)
    return int(parse(broker_pb2.OffsetsResponse, answer, group).applied_index)


def cut_to(ranges: Sequence[OffsetRange], found: Mapping[QueueId, Sequence[int]]) -> list[OffsetRange]:
    """The parts of ``ranges`` around the offsets found; those close together are one part."""
    parts: list[OffsetRange] = []
    for piece in ranges:
        offsets = sorted({offset for offset in found.get(piece.queue, ()) if piece.start <= offset < piece.end})
        first = last = -1
        for offset in offsets:
            if first >= 0 and offset - last > NEIGHBOURS:
                parts.append(OffsetRange(piece.queue, first, last + 1))
                first = offset
            first, last = (offset if first < 0 else first), offset
        if first >= 0:
            parts.append(OffsetRange(piece.queue, first, last + 1))
    return parts
