"""One queue of a push consumer, from assignment to revocation.

Owns the order of steps: acquire the lock (orderly), or wait for the previous owner and claim the queue (concurrent); find the committed
offset; then fetch ahead of the listeners as far as the flow limits allow.  A lost lock, a reset offset or a topic created again ends it:
``end_reason`` is set, and the rebalancer starts another ``QueueConsumer``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from dledger_client.cluster.retry import JitteredBackoff
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.group_offsets import OffsetCommit, OffsetStore
from dledger_client.consumer.group_session import LockGrant
from dledger_client.consumer.initial_offsets import CommittedOffset
from dledger_client.consumer.process_queue import ConsumerContext, ProcessQueue
from dledger_client.fetch.records import ReceivedMessage, RetriedMessage
from dledger_client.fetch.subscription import Subscription
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, OffsetOutOfRangeError, OffsetsResetError, StaleLockError, TopicNotFoundError
from dledger_wire.names import RETRY_PREFIX

LONG_POLL_MS = 5_000
FETCH_BYTES = 4 << 20
HANDOVER_S = 1.0  # how long the previous owner may take to release a queue
MAX_PAUSE_S = 1.0

_logger = logging.getLogger(__name__)


OpenQueue = Callable[[MessageQueue, ConsumerContext, int, int], ProcessQueue]  # (queue, its consumer, first offset, epoch of its lock)


class QueueOwner(ConsumerContext, Protocol):
    """What a queue consumer needs from the push consumer."""

    offset_store: OffsetStore
    group: str
    open_queue: OpenQueue

    async def fetch(
        self, request: broker_pb2.FetchRequest, group: str, subscription: Subscription
    ) -> list[tuple[list[ReceivedMessage], int, int]]: ...
    async def in_turn(self) -> None:
        """Wait before the first fetch, or one after a failure: all queues may begin theirs at once."""
        ...

    def grant_of(self, queue: MessageQueue) -> LockGrant | None:
        """The lock that is held on a queue, if any."""
        ...

    def request_lock(self, queue: MessageQueue) -> None: ...
    def is_held_by_another(self, queue: MessageQueue) -> bool: ...
    def is_held_here(self, queue: MessageQueue) -> bool: ...
    def queue_changed(self) -> None: ...
    def backoff(self) -> JitteredBackoff: ...


class QueueConsumer:
    """Consumes one queue.  ``locked``: for an orderly consumer of a clustering group."""

    def __init__(self, queue: MessageQueue, topic_epoch: str, subscription: Subscription, owner: QueueOwner, *, locked: bool) -> None:
        self.queue, self.topic_epoch = queue, topic_epoch
        self._route_epoch = topic_epoch
        self.process_queue: ProcessQueue | None = None
        self.end_reason: DledgerError | None = None
        self.is_claimed = False  # the other members learn that it is consumed here, before it is
        self.epoch = 0
        self.generation = 0
        self.committed = -1
        self.changed = asyncio.Event()  # locks or members changed
        self.subscription, self._owner, self._locked = subscription, owner, locked
        self._task: asyncio.Task[None] | None = None

    def start(self, offset: int | None = None) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(offset), name=f"consume {self.queue.topic}/{self.queue.queue_id}")

    def fetch_from(self, offset: int) -> None:
        """Fetch from there on; what was fetched before is the process queue's to forget."""
        if self._task is not None:
            self._task.cancel()
        self.start(offset)

    # Life cycle

    async def _run(self, offset: int | None = None) -> None:
        """``offset``: where to read on, in a queue that is consumed already."""
        try:
            if offset is None:
                committed = await self._acquire() or await self._find_offset()
                self._create_process_queue(committed)
                offset = committed.offset
            await self._fetch_from(offset)
        except DledgerError as error:
            self.end(error)
        except Exception as bug:
            _logger.critical("%s: internal error", self.queue, exc_info=bug)
            await asyncio.sleep(MAX_PAUSE_S)
            self.end(DledgerError(f"internal error: {type(bug).__name__}: {bug}"))

    def end(self, error: DledgerError) -> None:
        """Stop consuming because of ``error``; the rebalancer starts over."""
        if self.end_reason is None:
            self.end_reason = error
            _logger.info("%s: restarting: %s", self.queue, error.message)
        if self.process_queue is not None:
            self.process_queue.drop(is_lost=True)
        self._owner.queue_changed()

    async def stop(self, timeout_s: float | None) -> bool:
        """Stop fetching, start no further listener, and wait for running ones; False when they did not finish in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process_queue = self.process_queue
        if process_queue is None:
            return True
        process_queue.drop()
        try:
            async with asyncio.timeout(timeout_s):
                await process_queue.wait_until_idle()
        except TimeoutError:
            return False
        return True

    def uncommitted(self) -> OffsetCommit | None:
        """The offset to commit; None when it is committed already."""
        process_queue = self.process_queue
        if process_queue is None or process_queue.consume_offset == self.committed:
            return None
        return OffsetCommit(self.queue, process_queue.consume_offset, self.generation, self.epoch)

    def is_of(self, topic_epoch: str | None) -> bool:
        """Whether a route with this epoch is of the topic that is consumed: a node that lags may return the one before."""
        return topic_epoch in (self.topic_epoch, self._route_epoch)

    def check_lock(self) -> None:
        """The locks changed: continue with one just granted, or stop without one just lost."""
        self.changed.set()
        grant = self._owner.grant_of(self.queue)
        if self.epoch and (grant is None or grant.epoch != self.epoch):
            self.end(StaleLockError(f"{self.queue}: lost the lock of epoch {self.epoch}"))

    # Steps

    async def _acquire(self) -> CommittedOffset | None:
        """Become the owner of the queue.  A lock carries the committed offset: no other member can have moved it since."""
        if self._locked:
            self._owner.request_lock(self.queue)
            while (grant := self._owner.grant_of(self.queue)) is None:
                self.changed.clear()
                await self.changed.wait()
            self.epoch = grant.epoch
            return None if grant.offset is None else CommittedOffset(grant.offset, grant.generation)
        try:
            async with asyncio.timeout(HANDOVER_S):
                await self._until(lambda: not self._owner.is_held_by_another(self.queue))
                self.is_claimed = True
                self._owner.queue_changed()
                # A member that joins just now may get the queue: one of the two has to see the other's claim.
                await self._until(lambda: self._owner.is_held_here(self.queue) and not self._owner.is_held_by_another(self.queue))
        except TimeoutError:
            pass  # the previous owner is slow or dead: some messages may be delivered twice
        return None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def _find_offset(self) -> CommittedOffset:
        backoff, attempt = self._owner.backoff(), 0
        while True:
            try:
                return await self._owner.offset_store.find(self.queue, self.epoch)
            except DledgerError as error:
                if not (error.retriable or error.refresh_route or error.outcome_unknown):
                    await asyncio.sleep(MAX_PAUSE_S)  # the rebalancer starts over at once
                    raise
                attempt += 1
                await asyncio.sleep(backoff.pause_ms(attempt, busy=True) / 1000)

    def _create_process_queue(self, committed: CommittedOffset) -> None:
        self.generation, self.committed = committed.generation, committed.offset
        # A lock is one of the topic that its leader has, whatever routes say.
        self.topic_epoch = committed.topic_epoch or ("" if self.epoch else self.topic_epoch)
        self.process_queue = self._owner.open_queue(self.queue, self._owner, committed.offset, self.epoch)
        self._owner.queue_changed()

    async def _fetch_from(self, offset: int) -> None:
        process_queue, failures, logged = self.process_queue, 0, ""
        backoff = self._owner.backoff()
        await self._owner.in_turn()
        while process_queue is not None and not process_queue.dropped:
            await process_queue.wait_for_room()
            try:
                found = await self._owner.fetch(self._request(offset, process_queue), self.queue.replica_group, self.subscription)
            except OffsetOutOfRangeError as error:
                offset = await self._out_of_range(error, offset)
                process_queue.add([], 0, offset)
            except StaleLockError:
                raise
            except TopicNotFoundError:
                await asyncio.sleep(MAX_PAUSE_S)  # the rebalancer starts over at once, by the route that it has
                raise
            except DledgerError as error:
                failures += 1
                if not (error.retriable or error.refresh_route):
                    if error.message != logged:  # a right that was taken away is logged once, not every second
                        logged = error.message
                        _logger.warning("%s at %d: %s", self.queue, offset, logged)
                    await asyncio.sleep(MAX_PAUSE_S)
                await asyncio.sleep(backoff.pause_ms(failures, busy=True) / 1000)
                await self._owner.in_turn()
            else:
                failures, logged = 0, ""
                for messages, size_bytes, next_offset in found:
                    process_queue.add(messages, size_bytes, next_offset)
                    offset = next_offset

    def _request(self, offset: int, process_queue: ProcessQueue) -> broker_pb2.FetchRequest:
        options, subscription = self._owner.options, self.subscription
        return broker_pb2.FetchRequest(
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            offset=offset,
            max_messages=min(options.pull_batch_size, options.pull_threshold_for_queue - process_queue.count),
            max_bytes=min(FETCH_BYTES, options.pull_threshold_size_for_queue - process_queue.size_bytes),
            wait_ms=LONG_POLL_MS,
            group=self._owner.group,
            tag_hashes=subscription.tag_hashes,
            sql=subscription.sql,
            lock_epoch=self.epoch,
            incarnation=self.topic_epoch,
        )

    async def _out_of_range(self, error: OffsetOutOfRangeError, offset: int) -> int:
        """Where to continue.  Messages that expired unread are skipped; an offset beyond the end belongs to a topic that was deleted."""
        if offset < error.min_offset:
            _logger.warning("%s: messages %d to %d expired before they were consumed", self.queue, offset, error.min_offset - 1)
            return error.min_offset
        await asyncio.sleep(MAX_PAUSE_S)
        await self._owner.offset_store.handle_shortened(self.queue)
        raise OffsetsResetError(f"{self.queue}: committed offset {offset} is beyond the end of the queue, {error.max_offset}")


def message_kind(topic: str) -> type[ReceivedMessage]:
    return RetriedMessage if topic.startswith(RETRY_PREFIX) else ReceivedMessage
