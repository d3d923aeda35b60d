"""A queue between two offsets, however long that is: each offset once, from one replica after the other.

Owns going on at another replica where the last one stopped.  ``fetcher.py`` asks one replica; ``replica_attempts.py`` says what its errors
mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from dledger_client.cluster.retry import JitteredBackoff, is_retriable, until
from dledger_client.cluster.router import Router
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.records import Chunk
from dledger_client.fetch.replica_attempts import ReplicaFailover, Source
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, NotYetError, OffsetOutOfRangeError, UnreachableError

ANSWER_BYTES = 64 << 20  # of one request


class LongRead:
    """Reads of one consumer; each ends with an error after ``timeout_ms`` without progress."""

    def __init__(self, router: Router, fetcher: Fetcher, timeout_ms: int) -> None:
        self._router, self._fetcher, self._timeout_ms = router, fetcher, timeout_ms

    async def chunks(self, group: str, wanted: broker_pb2.FetchRequest, end: int, max_lag: int | None = None) -> AsyncGenerator[Chunk]:
        """From the offset that is ``wanted`` up to ``end``, chunks that have messages; what a filter leaves out has none.

        ``max_lag``: not from a follower that holds less than ``end - max_lag``.
        """
        pauses, failover = JitteredBackoff(self._router.random), ReplicaFailover(self._router.clock, self._timeout_ms)
        untried: list[Source] = []
        offset, is_filtered = wanted.offset, bool(wanted.tag_hashes or wanted.sql)
        topic_epoch = wanted.incarnation  # or that of what was read first
        while offset < end:
            if not untried:
                untried = await self._sources(failover, group, wanted)
            source = untried[0]
            request = broker_pb2.FetchRequest()
            request.CopyFrom(wanted)
            request.offset = offset
            request.incarnation = topic_epoch
            if not is_filtered:
                request.max_messages = min(end - offset, 0xFFFFFFFF)
            try:
                before = offset
                async with aclosing(self._fetcher.chunks(source, group, request, partial(failover.left_s, source))) as chunks:
                    async for chunk in chunks:
                        _check_lag(chunk, source, end, max_lag)
                        chunk.cut(end)
                        offset = chunk.next_offset
                        topic_epoch = chunk.topic_epoch
                        if chunk.count:
                            yield chunk
                        if offset > before:
                            failover.progress()
                if offset == before:
                    raise _nothing(wanted, offset, end, source)
            except DledgerError as error:
                untried.pop(0)
                problem = failover.failed(await self._fetcher.judged(error, source, group), source, offset, is_last=not untried)
                if not is_retriable(problem) or failover.is_over:
                    raise problem from None
                if not untried:
                    await self._fetcher.pause(group, pauses.pause_ms(failover.failures, busy=False))

    async def _sources(self, failover: ReplicaFailover, group: str, wanted: broker_pb2.FetchRequest) -> list[Source]:
        """A new round of replicas, as soon as one is known."""
        async for attempt in until(failover.deadline_ms, self._router.clock, self._router.random):
            with attempt:
                found = await self._fetcher.sources(group, failover.deadline_ms, (wanted.topic, wanted.queue_id))
                if not found:
                    raise UnreachableError(f"replica group {group} has no replica to read from")
                return failover.in_order(found)
        raise UnreachableError(f"replica group {group}: no attempt was made before the deadline")


def _check_lag(chunk: Chunk, source: Source, end: int, max_lag: int | None) -> None:
    if max_lag is not None and not source.is_leader and chunk.max_offset < end - max_lag:
        place = f"{chunk.topic}/{chunk.queue_id}"
        raise NotYetError(f"{source.node_id} holds {place} up to {chunk.max_offset}, wanted {end} - {max_lag}")


def _nothing(wanted: broker_pb2.FetchRequest, offset: int, end: int, source: Source) -> DledgerError:
    """For a replica that had nothing where there is to be something: a follower may lag."""
    text = f"{wanted.topic}/{wanted.queue_id}: nothing at {offset} on {source.node_id}, expected messages up to {end}"
    return OffsetOutOfRangeError(text, min_offset=0, max_offset=offset) if source.is_leader else NotYetError(text)
