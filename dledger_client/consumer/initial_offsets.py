"""Where a consumer group begins in a topic that it has no offsets in, by ``consume_from_where``.

Owns the choice, and when it is made.  ``last`` is chosen before ``start`` returns, from the ends of the queues, so that everything sent
from then on is received.  A replica group that does not answer in time is begun later at the time of the start, by this machine's clock:
its end has moved by then.

Two exceptions to ``consume_from_where``: a group's retry topic is always read from its first message, and ``last`` means the first message
of a topic that was created, or created again, while this consumer was running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from dledger_client.cluster.retry import until
from dledger_client.cluster.router import Router
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.settings import FIRST, LAST, TIMESTAMP, PushOptions
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, TopicNotFoundError
from dledger_wire.names import RETRY_PREFIX
from dledger_wire.rpc import methods
from dledger_wire.status import Perm
from dledger_wire.tasks import wait_up_to

TIMEOUT_MS = 5000
NO_TIME = -1

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed offset, its generation, which every reset raises, and the topic that it is of; empty: unknown."""

    offset: int
    generation: int = 0
    topic_epoch: str = ""


class InitialOffsets:
    """Initial offsets.  Remembers topics that had offsets (if one has none now, it was created again) and topics that were missing."""

    def __init__(self, router: Router, options: PushOptions) -> None:
        self._router, self._options = router, options
        self._known: set[tuple[str, str]] = set()
        self._missing: set[str] = set()
        self._begun_ms: int | None = None  # by the wall clock: when this consumer started, once it has

    async def fix(self, topics: Collection[str], find: Callable[[MessageQueue], Awaitable[object]], limit_s: float) -> None:
        """Before the consumer starts: let a group that begins at the end do so now.  ``find`` gives a queue's topic its initial offsets.

        Topics and replica groups of which nothing is to be had within ``limit_s`` are begun later.
        """
        if self._options.consume_from_where != LAST:
            return
        begun_ms, deadline_ms = self._router.clock.wall_ms(), self._router.clock.monotonic_ms() + int(limit_s * 1000)
        await wait_up_to(limit_s, asyncio.gather(*(self._fix(topic, find, deadline_ms) for topic in topics)))
        self._begun_ms = begun_ms

    async def _fix(self, topic: str, find: Callable[[MessageQueue], Awaitable[object]], deadline_ms: int) -> None:
        async def begin(replica_group: str) -> None:
            async for attempt in until(deadline_ms, self._router.clock, self._router.random):
                with attempt:
                    await find(MessageQueue(topic, replica_group, 0))

        try:
            parts = await self._router.topic(topic, deadline_ms)
        except TopicNotFoundError:
            self.topic_missing(topic)
            return
        except DledgerError as error:
            _logger.debug("topic %s: where it ends is found out later: %s", topic, error.message)
            return
        for failed in await asyncio.gather(*(begin(each.replica_group) for each in parts if each.perm & Perm.READ), return_exceptions=True):
            if isinstance(failed, DledgerError):
                _logger.debug("topic %s: where it ends is found out later: %s", topic, failed.message)
            elif isinstance(failed, BaseException):
                raise failed

    def had_offsets(self, queue: MessageQueue) -> None:
        """The queue's topic has committed offsets."""
        self._known.add((queue.topic, queue.replica_group))

    def topic_missing(self, topic: str) -> None:
        """The topic does not exist now."""
        self._missing.add(topic)

    async def groups_of(self, topic: str) -> set[str]:
        """The replica groups that have queues of a topic now."""
        return {routes.replica_group for routes in await self._router.topic(topic, self._deadline_ms(), fresh=True)}

    async def of_topic(self, queue: MessageQueue, *, is_added: bool = False) -> dict[MessageQueue, CommittedOffset]:
        """Of every queue of an uninitialized topic, in the replica group of ``queue``, which ``is_added`` to those of the topic."""
        count = queue.queue_id + 1
        for routes in await self._router.topic(queue.topic, self._deadline_ms(), fresh=True):
            if routes.replica_group == queue.replica_group:
                count = routes.read_queues
        where = self._options.consume_from_where
        is_new = queue.topic in self._missing or (queue.topic, queue.replica_group) in self._known
        if queue.topic.startswith(RETRY_PREFIX) or is_added or (where == LAST and is_new):
            where = FIRST
        return await self._look_up([MessageQueue(queue.topic, queue.replica_group, number) for number in range(count)], where)

    async def of_added(self, queue: MessageQueue) -> CommittedOffset:
        """Of a queue that was added after the topic was initialized."""
        return (await self._look_up([queue], FIRST))[queue]

    async def _look_up(self, queues: list[MessageQueue], where: str) -> dict[MessageQueue, CommittedOffset]:
        """With the generation of a topic that no member reads yet: it is recreated with another one, where these offsets mean nothing."""
        group = queues[0].replica_group
        if where == LAST and self._begun_ms is not None:  # the end has moved since
            where, searched = TIMESTAMP, self._begun_ms
        else:
            searched = NO_TIME if where in (FIRST, LAST) else self._options.consume_timestamp
        refs = [broker_pb2.QueueRef(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=searched) for queue in queues]
        request = broker_pb2.OffsetsRequest(queues=refs)
        answer = await self._router.call_leader(group, methods.QUEUE_OFFSETS, request, deadline_ms=self._deadline_ms())
        return {
            MessageQueue(each.topic, group, each.queue_id): CommittedOffset(
                {FIRST: each.min_offset, LAST: each.max_offset}.get(where, each.offset_for_time), int(each.incarnation, 16)
            )
            for each in answer.queues
        }

    def _deadline_ms(self) -> int:
        return self._router.clock.monotonic_ms() + TIMEOUT_MS
