"""The messages of one queue between fetch and listener: flow limits, jobs for listeners, and the offset that may be committed.

That offset is the lowest message not yet consumed, whatever order listeners finish in, so a commit never skips a message.
``ConcurrentProcessQueue`` gives batches to many workers at once.  ``OrderlyProcessQueue`` gives the queue to one worker at a time, and
only while the lease of its lock holds.  Everything runs on the event loop except ``calls``, which runs in a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from itertools import islice
from typing import Any, Protocol

from dledger_client.admin.send_back import DEAD_LETTER
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import Calls, ListenerExecutor
from dledger_client.consumer.listener import ConsumeContext
from dledger_client.consumer.settings import BROADCAST_ATTEMPTS, PushOptions
from dledger_client.fetch.records import ReceivedMessage

ORDERLY_RUN = 256  # messages a worker takes of an orderly queue before another queue gets the worker
RETRY_S = 1.0  # before messages that could not be sent back are tried again here

Messages = list[ReceivedMessage]

_logger = logging.getLogger(__name__)


class ConsumerContext(Protocol):
    """What a process queue needs from its consumer."""

    options: PushOptions
    executor: ListenerExecutor

    async def send_back(self, queue: MessageQueue, messages: Messages, delay_level: int) -> Messages:
        """Send messages back to the group; those that no broker took."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...
    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether a listener may be called now.  Safe from any thread."""
        ...


class ProcessQueue:
    """The messages of one queue, fetched and not consumed yet: counts, flow limits, and waiting for room or for the last listener."""

    def __init__(self, queue: MessageQueue, consumer: ConsumerContext, consume_offset: int, epoch: int) -> None:
        self.queue, self.dropped, self.epoch = queue, False, epoch
        self.count = self.size_bytes = 0
        self._consumer, self._options = consumer, consumer.options
        self._consume_offset = consume_offset
        self._changed = asyncio.Event()

    @property
    def consume_offset(self) -> int:
        """The lowest message not yet consumed."""
        return self._consume_offset

    @property
    def is_idle(self) -> bool:
        """No listener is running; once dropped, none will be."""
        raise NotImplementedError

    def _count_in(self, messages: Messages, size_bytes: int) -> None:
        """Count fetched messages in.  A fetch whose messages were all filtered out counts nothing: no job would count its bytes out."""
        self.count += len(messages)
        self.size_bytes += size_bytes if messages else 0

    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None:
        """Take in what was fetched up to ``next_offset``."""
        raise NotImplementedError

    def has_room(self) -> bool:
        options = self._options
        return self.count < options.pull_threshold_for_queue and self.size_bytes < options.pull_threshold_size_for_queue

    async def wait_for_room(self) -> None:
        """Wait until there is room for more."""
        while not self.has_room():
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_idle(self) -> None:
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    def drop(self, *, is_lost: bool = False) -> None:
        """Start no further job.  ``is_lost``: another member may have the queue already, or its positions are not valid any more."""
        self.dropped = True

    def resume(self) -> None:
        """Continue after a pause or a renewed lease, where there is something to do."""

    def may_continue(self) -> bool:
        """Whether a message may be given to the application now.  Safe from any thread: checked right before each time."""
        return not self.dropped and self._consumer.may_consume(self.queue)

    @property
    def batch_size(self) -> int:
        return self._options.consume_message_batch_max_size

    def context(self, attempts: int) -> ConsumeContext:
        queue = self.queue
        return ConsumeContext(queue.topic, queue.replica_group, queue.queue_id, self.epoch, attempts)


class _ConcurrentJob:
    """One listener call: a batch, and the offset after it.  ``active`` from its start in a worker to its end on the loop, ``waits`` when
    it came to a worker, or would have, while the consumer was paused; ``share``: of the bytes of its fetch."""

    __slots__ = ("active", "attempts", "consumed", "context", "done", "messages", "next_offset", "process_queue", "share", "total", "waits")

    def __init__(self, process_queue: ConcurrentProcessQueue, messages: Messages, share: float) -> None:
        self.process_queue, self.messages, self.share = process_queue, messages, share
        self.next_offset = messages[-1].queue_offset + 1
        self.total = len(messages)
        self.attempts = self.consumed = 0
        self.active = self.done = self.waits = False
        self.context: ConsumeContext | None = None

    def calls(self) -> Calls:
        # Set ``active``, then read ``dropped``.  The loop does the reverse, so one of the two sees the other.
        self.active = True
        self.waits = not self.process_queue.may_continue()
        if self.waits:
            return
        self.context = self.process_queue.context(self.attempts)
        self.consumed = yield self.messages, self.context

    def ended(self) -> None:
        self.process_queue.job_ended(self)


class ConcurrentProcessQueue(ProcessQueue):
    """Batches of one queue, in any order and many at once."""

    def __init__(self, queue: MessageQueue, consumer: ConsumerContext, consume_offset: int, epoch: int = 0) -> None:
        super().__init__(queue, consumer, consume_offset, epoch)
        self._pending: deque[_ConcurrentJob] = deque()  # in the queue's order

    @property
    def is_idle(self) -> bool:
        return not any(job.active for job in self._pending)

    def has_room(self) -> bool:
        if not super().has_room():
            return False
        # One slow message must not let the others run too far ahead of the offset that can be committed.
        return not self._pending or self._pending[-1].next_offset - self._consume_offset < self._options.consume_concurrently_max_span

    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None:
        """Add a fetch; ``next_offset`` is the offset after it, filtered messages included."""
        if self.dropped:
            return
        self._count_in(messages, size_bytes)
        step = self._options.consume_message_batch_max_size
        for first in range(0, len(messages), step):
            batch = messages[first : first + step]
            job = _ConcurrentJob(self, batch, size_bytes / len(messages) * len(batch))
            self._pending.append(job)
            self._submit(job)
        if self._pending:
            self._pending[-1].next_offset = max(next_offset, self._pending[-1].next_offset)
        else:
            self._consume_offset = max(next_offset, self._consume_offset)

    def job_ended(self, job: _ConcurrentJob) -> None:
        if job.consumed == len(job.messages):
            self._finish(job)
        elif self.dropped:
            self._release(job)  # the next owner of the queue gets these messages
        elif job.waits:
            self._release(job)
            self._submit(job)
        else:
            self._consumer.spawn(self._redeliver(job), "redeliver")

    def _submit(self, job: _ConcurrentJob) -> None:
        """Give a job to a worker, or let it wait for ``resume``."""
        job.waits = not self.may_continue()
        if not job.waits:
            self._consumer.executor.submit(job)

    def resume(self) -> None:
        for job in self._pending:
            if job.waits and not job.active:  # else its end, which is on its way to the loop, submits it
                self._submit(job)

    async def _redeliver(self, job: _ConcurrentJob) -> None:
        """Redeliver messages that were not consumed: through the group's retry topic, or from here when no broker takes them."""
        job.messages, job.consumed = job.messages[job.consumed :], 0
        job.attempts += 1
        if self._options.broadcast:
            left = [] if self._is_skipped(job) else job.messages
        else:
            delay_level = job.context.delay_level if job.context is not None else 0
            left = await self._consumer.send_back(self.queue, job.messages, delay_level)
        job.messages = left  # what was taken comes again from the retry topic
        if not left:
            self._finish(job)
            return
        await asyncio.sleep(RETRY_S)
        self._release(job)
        self._submit(job)

    def _is_skipped(self, job: _ConcurrentJob) -> bool:
        """A broadcast has no retry topic: after enough attempts messages are skipped here."""
        limit = self._options.max_reconsume_times
        if job.attempts <= (BROADCAST_ATTEMPTS if limit < 0 else limit):
            return False
        _logger.warning(
            "%s: %d messages from offset %d skipped after %d attempts",
            self.queue,
            len(job.messages),
            job.messages[0].queue_offset,
            job.attempts,
        )
        return True

    def _finish(self, job: _ConcurrentJob) -> None:
        job.done = True
        self.count -= job.total
        pending = self._pending
        while pending and pending[0].done:
            self._consume_offset = max(self._consume_offset, pending.popleft().next_offset)
        self.size_bytes = round(self.size_bytes - job.share) if pending else 0
        self._release(job)

    def _release(self, job: _ConcurrentJob) -> None:
        job.active = False
        self._changed.set()


class OrderlyProcessQueue(ProcessQueue):
    """One queue, one worker at a time, in order.  It stops at a batch that is not consumed, and retries it after a pause."""

    def __init__(self, queue: MessageQueue, consumer: ConsumerContext, consume_offset: int, epoch: int) -> None:
        super().__init__(queue, consumer, consume_offset, epoch)
        self._waiting: deque[tuple[ReceivedMessage, float]] = deque()
        self._job: _OrderlyJob | None = None
        self._end = consume_offset  # offset after the last message here
        self._attempts = 0  # of the first batch
        self._again = 0  # messages of the first batch, once it was not consumed: those that came later have attempts of their own
        self._paused: asyncio.TimerHandle | None = None

    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None:
        if self.dropped:
            return
        self._count_in(messages, size_bytes)
        self._waiting.extend((message, size_bytes / len(messages)) for message in messages)
        self._end = max(self._end, next_offset)
        self._advance()
        self.resume()

    @property
    def consume_offset(self) -> int:
        """The lowest message not yet consumed, also while a worker goes through many."""
        return self._consume_offset if self._job is None else max(self._consume_offset, self._job.consume_offset)

    @property
    def is_idle(self) -> bool:
        return self._job is None or not self._job.active

    def _advance(self) -> None:
        if not self._waiting and self._job is None:
            self._consume_offset = max(self._consume_offset, self._end)

    def resume(self) -> None:
        """Give the queue to a worker, unless one has it, or it is paused, or its lock must not be used now."""
        if self._job is None and self._paused is None and self._waiting and self.may_continue():
            messages = [message for message, _ in islice(self._waiting, ORDERLY_RUN)]
            self._job = _OrderlyJob(self, messages, self._attempts, self._again)
            self._consumer.executor.submit(self._job)

    def job_ended(self, job: _OrderlyJob) -> None:
        self._remove_consumed(job.consumed)
        if job.failed:
            self._consumer.spawn(self._failed(job), "pause")
        else:
            self._end_job()
            self.resume()

    def _end_job(self) -> None:
        self._job = None
        self._advance()
        self._changed.set()

    def _remove_consumed(self, count: int) -> None:
        """Remove the first messages: they are consumed."""
        for _ in range(count):
            message, size = self._waiting.popleft()
            self.count -= 1
            self.size_bytes = round(self.size_bytes - size)
            self._consume_offset = message.queue_offset + 1
        if count:
            self._attempts = self._again = 0
        if not self._waiting:
            self.size_bytes = 0

    async def _failed(self, job: _OrderlyJob) -> None:
        """Retry the batch after a pause, or send it to the dead letters when its attempts are used up."""
        self._attempts, self._again = 1 if job.consumed else self._attempts + 1, len(job.failed)
        limit = self._options.max_reconsume_times
        exhausted = 0 <= limit < self._attempts or job.context.delay_level == DEAD_LETTER
        if exhausted and (self._options.broadcast or not await self._consumer.send_back(self.queue, job.failed, DEAD_LETTER)):
            what = "skipped" if self._options.broadcast else "sent to the dead letters"
            first = job.failed[0].queue_offset
            _logger.warning("%s: %d messages from offset %d %s after %d attempts", self.queue, len(job.failed), first, what, self._attempts)
            self._remove_consumed(len(job.failed))
        self._end_job()
        pause_ms = job.context.suspend_ms or self._options.suspend_current_queue_time_ms
        self._paused = asyncio.get_running_loop().call_later(pause_ms / 1000, self._unpause)

    def _unpause(self) -> None:
        self._paused = None
        self.resume()

    def drop(self, *, is_lost: bool = False) -> None:
        super().drop(is_lost=is_lost)
        if self._paused is not None:
            self._paused.cancel()


class _OrderlyJob:
    """Several listener calls in sequence.  ``active`` as in ``_ConcurrentJob``.  ``again``: how many messages the first of them has."""

    __slots__ = ("_again", "_attempts", "_messages", "active", "consumed", "context", "failed", "process_queue")

    def __init__(self, process_queue: OrderlyProcessQueue, messages: Messages, attempts: int, again: int) -> None:
        self.process_queue, self._messages, self._attempts, self._again = process_queue, messages, attempts, again
        self.consumed = 0
        self.active = False
        self.failed: Messages = []
        self.context = process_queue.context(attempts)

    @property
    def consume_offset(self) -> int:
        """The offset after what was consumed up to now; 0 before that.  Safe from any thread."""
        consumed = self.consumed
        return self._messages[consumed - 1].queue_offset + 1 if consumed else 0

    def calls(self) -> Calls:
        self.active = True
        first, size = 0, self._again or self.process_queue.batch_size
        while first < len(self._messages):
            if not self.process_queue.may_continue():
                return
            batch = self._messages[first : first + size]
            self.context = self.process_queue.context(0 if first else self._attempts)
            consumed = yield batch, self.context
            self.consumed += consumed
            if consumed < len(batch):
                self.failed = batch[consumed:]
                return
            first, size = first + size, self.process_queue.batch_size

    def ended(self) -> None:
        self.process_queue.job_ended(self)
