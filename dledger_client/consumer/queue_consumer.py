"""One queue that a push consumer consumes, from getting hold of it to giving it up.

Owns the order of steps: the lock first (orderly), or until whoever had it has let go (concurrent); then the position; then reading ahead of
the listeners as far as the flow limits allow.  Whatever shakes this - the lock lost, the position reset, the topic made anew - ends it:
``over`` is set, and the consumer begins anew with a ``QueueConsumer`` of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from dledger_client.cluster.retry import JitteredBackoff
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.group_offsets import CommittedOffset, OffsetCommit, OffsetStore
from dledger_client.consumer.group_session import LockGrant
from dledger_client.consumer.process_queue import ConcurrentProcessQueue, ConsumerContext, OrderlyProcessQueue, ProcessQueue
from dledger_client.fetch.records import ReceivedMessage, RetriedMessage
from dledger_client.fetch.subscription import Subscription
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, OffsetOutOfRangeError, OffsetsResetError, StaleLockError, TopicNotFoundError
from dledger_wire.names import RETRY_PREFIX

LONG_POLL_MS = 5_000
FETCH_BYTES = 4 << 20
HANDOVER_S = 1.0  # how long whoever had the queue is waited for
LONGEST_PAUSE_S = 1.0

_logger = logging.getLogger(__name__)


class QueueOwner(Protocol):
    """What a queue needs of its consumer."""

    positions: OffsetStore
    workshop: ConsumerContext
    group: str

    async def fetch(self, request: broker_pb2.FetchRequest, group: str) -> list[tuple[list[ReceivedMessage], int, int]]: ...
    def grant_of(self, queue: MessageQueue) -> LockGrant | None:
        """The lock held, if any."""
        ...

    def wish(self, queue: MessageQueue) -> None: ...
    def is_held_by_another(self, queue: MessageQueue) -> bool: ...
    def queue_changed(self) -> None: ...
    def pauses(self) -> JitteredBackoff: ...


class QueueConsumer:
    """``locked``: an orderly consumer's in a clustering group."""

    def __init__(self, queue: MessageQueue, topic_epoch: str, subscription: Subscription, owner: QueueOwner, *, locked: bool) -> None:
        self.queue, self.topic_epoch = queue, topic_epoch
        self.buffer: ProcessQueue | None = None
        self.over: DledgerError | None = None
        self.epoch = 0
        self.generation = 0
        self.committed = -1
        self.news = asyncio.Event()  # locks or members changed
        self._subscription, self._owner, self._locked = subscription, owner, locked
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"consume {self.queue.topic}/{self.queue.queue_id}")

    # Life

    async def _run(self) -> None:
        try:
            place = await self._get_hold() or await self._find()
            self._begin(place)
            await self._read_on(place.offset)
        except DledgerError as error:
            self.end(error)
        except Exception as bug:
            _logger.critical("%s: stopped by a bug", self.queue, exc_info=bug)
            await asyncio.sleep(LONGEST_PAUSE_S)
            self.end(DledgerError(f"a bug: {type(bug).__name__}: {bug}"))

    def end(self, error: DledgerError) -> None:
        """Something ends it; the consumer takes it from here."""
        if self.over is None:
            self.over = error
            _logger.info("%s: begins anew: %s", self.queue, error.message)
        if self.buffer is not None:
            self.buffer.drop()
        self._owner.queue_changed()

    async def stop(self, timeout_s: float | None) -> bool:
        """Read nothing more, start no listener any more, wait for those at work; False when they were not done in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        buffer = self.buffer
        if buffer is None:
            return True
        buffer.drop()
        try:
            async with asyncio.timeout(timeout_s):
                await buffer.idle()
        except TimeoutError:
            return False
        return True

    def progress(self) -> OffsetCommit | None:
        """What there is to commit."""
        buffer = self.buffer
        if buffer is None or buffer.position == self.committed:
            return None
        return OffsetCommit(self.queue, buffer.position, self.generation, self.epoch)

    def check_lock(self) -> None:
        """The locks changed: go on with the one just got, or end without the one just lost."""
        self.news.set()
        grant = self._owner.grant_of(self.queue)
        if self.epoch and (grant is None or grant.epoch != self.epoch):
            self.end(StaleLockError(f"{self.queue}: the lock of epoch {self.epoch} is lost"))

    # Steps

    async def _get_hold(self) -> CommittedOffset | None:
        """A lock tells the position too: nobody else has moved it since."""
        if self._locked:
            self._owner.wish(self.queue)
            while (grant := self._owner.grant_of(self.queue)) is None:
                self.news.clear()
                await self.news.wait()
            self.epoch = grant.epoch
            return None if grant.offset is None else CommittedOffset(grant.offset, grant.generation)
        try:
            async with asyncio.timeout(HANDOVER_S):
                while self._owner.is_held_by_another(self.queue):
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            pass  # it is slow, or gone: some messages may come twice
        return None

    async def _find(self) -> CommittedOffset:
        pauses, attempt = self._owner.pauses(), 0
        while True:
            try:
                return await self._owner.positions.find(self.queue, self.epoch)
            except DledgerError as error:
                if not (error.retriable or error.refresh_route or error.outcome_unknown):
                    await asyncio.sleep(LONGEST_PAUSE_S)  # it begins anew at once
                    raise
                attempt += 1
                await asyncio.sleep(pauses.pause_ms(attempt, busy=True) / 1000)

    def _begin(self, place: CommittedOffset) -> None:
        self.generation, self.committed = place.generation, place.offset
        workshop = self._owner.workshop
        if workshop.options.orderly:
            self.buffer = OrderlyProcessQueue(self.queue, workshop, place.offset, self.epoch)
        else:
            self.buffer = ConcurrentProcessQueue(self.queue, workshop, place.offset)
        self._owner.queue_changed()

    async def _read_on(self, offset: int) -> None:
        buffer, failures = self.buffer, 0
        pauses = self._owner.pauses()
        while buffer is not None and not buffer.dropped:
            await buffer.room()
            try:
                found = await self._owner.fetch(self._request(offset, buffer), self.queue.replica_group)
            except OffsetOutOfRangeError as error:
                offset = await self._out_of_range(error, offset)
                buffer.add([], 0, offset)
            except (StaleLockError, TopicNotFoundError):
                raise
            except DledgerError as error:
                failures += 1
                if not (error.retriable or error.refresh_route):
                    _logger.warning("%s at %d: %s", self.queue, offset, error.message)
                    await asyncio.sleep(LONGEST_PAUSE_S)
                await asyncio.sleep(pauses.pause_ms(failures, busy=True) / 1000)
            else:
                failures = 0
                for messages, size_bytes, next_offset in found:
                    buffer.add(messages, size_bytes, next_offset)
                    offset = next_offset

    def _request(self, offset: int, buffer: ProcessQueue) -> broker_pb2.FetchRequest:
        options, subscription = self._owner.workshop.options, self._subscription
        return broker_pb2.FetchRequest(
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            offset=offset,
            max_messages=min(options.pull_batch_size, options.pull_threshold_for_queue - buffer.count),
            max_bytes=min(FETCH_BYTES, options.pull_threshold_size_for_queue - buffer.size_bytes),
            wait_ms=LONG_POLL_MS,
            group=self._owner.group,
            tag_hashes=subscription.tag_hashes,
            sql=subscription.sql,
            lock_epoch=self.epoch,
        )

    async def _out_of_range(self, error: OffsetOutOfRangeError, offset: int) -> int:
        """Messages that expired unread are passed over; a place behind the end belongs to another life of the topic."""
        if offset < error.min_offset:
            _logger.warning("%s: messages %d to %d expired before they were consumed", self.queue, offset, error.min_offset - 1)
            return error.min_offset
        await asyncio.sleep(LONGEST_PAUSE_S)
        await self._owner.positions.beyond_end(self.queue)
        raise OffsetsResetError(f"{self.queue}: position {offset}, the queue ends at {error.max_offset}")


def message_kind(topic: str) -> type[ReceivedMessage]:
    return RetriedMessage if topic.startswith(RETRY_PREFIX) else ReceivedMessage
