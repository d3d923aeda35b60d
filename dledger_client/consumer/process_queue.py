"""The messages of one queue between fetch and listener: flow limits, jobs for listeners, and the offset that may be committed.

That offset is the lowest message not yet consumed, whatever order listeners finish in, so a commit never skips a message.
``ConcurrentProcessQueue`` gives batches to many workers at once.  ``OrderlyProcessQueue`` gives the queue to one worker at a time, and
only while the lease of its lock holds.  Everything runs on the event loop except ``calls``, which runs in a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from dledger_client.admin.send_back import DEAD_LETTER
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import Calls, ListenerExecutor
from dledger_client.consumer.listener import ConsumeContext
from dledger_client.consumer.settings import BROADCAST_ATTEMPTS, PushOptions
from dledger_client.fetch.records import ReceivedMessage

ORDERLY_RUN = 256  # messages a worker takes of an orderly queue before others have their turn
RETRY_S = 1.0  # before messages that could not be sent back are tried again here

Messages = list[ReceivedMessage]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What buffers need of their consumer.  ``send_back`` returns False when nobody took the messages; ``spawn`` runs it."""

    options: PushOptions
    runner: ListenerExecutor
    send_back: Callable[[MessageQueue, Messages, int], Coroutine[Any, Any, bool]]
    spawn: Callable[[Coroutine[Any, Any, None], str], object]
    may_start: Callable[[MessageQueue], bool]  # may be asked from any thread


class ProcessQueue(Protocol):
    """Either kind."""

    dropped: bool
    count: int
    size_bytes: int

    @property
    def position(self) -> int: ...
    @property
    def is_idle(self) -> bool: ...
    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None: ...
    def has_room(self) -> bool: ...
    async def room(self) -> None: ...
    async def idle(self) -> None: ...
    def drop(self) -> None: ...
    def kick(self) -> None: ...


class _ProcessQueue:
    """What both kinds share: sums, and waiting for room or for the last listener."""

    def __init__(self, queue: MessageQueue, workshop: ConsumerContext, position: int, epoch: int) -> None:
        self.queue, self.dropped, self.epoch = queue, False, epoch
        self.count = self.size_bytes = 0
        self._workshop, self._options = workshop, workshop.options
        self._position = position
        self._changed = asyncio.Event()

    @property
    def position(self) -> int:
        """The lowest message not yet consumed."""
        return self._position

    @property
    def is_idle(self) -> bool:
        """No listener is at work; once dropped, none will be."""
        raise NotImplementedError

    def _count_in(self, messages: Messages, size_bytes: int) -> None:
        """What is held here.  Of a fetch whose messages were all sorted out nothing is: no listener's end would count its bytes out."""
        self.count += len(messages)
        self.size_bytes += size_bytes if messages else 0

    def has_room(self) -> bool:
        options = self._options
        return self.count < options.pull_threshold_for_queue and self.size_bytes < options.pull_threshold_size_for_queue

    async def room(self) -> None:
        """Wait until there is room for more."""
        while not self.has_room():
            self._changed.clear()
            await self._changed.wait()

    async def idle(self) -> None:
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    def drop(self) -> None:
        """Start nothing any more."""
        self.dropped = True

    def kick(self) -> None:
        """Something may go on."""

    @property
    def batch_size(self) -> int:
        return self._options.consume_message_batch_max_size

    def context(self, attempts: int) -> ConsumeContext:
        queue = self.queue
        return ConsumeContext(queue.topic, queue.replica_group, queue.queue_id, self.epoch, attempts)


class _ConcurrentJob:
    """One listener call: a batch, and where the queue goes on behind it.  ``active`` from its start in a worker to its end on the loop."""

    __slots__ = ("active", "attempts", "buffer", "consumed", "context", "done", "messages", "next_offset", "share_bytes", "total")

    def __init__(self, buffer: ConcurrentProcessQueue, messages: Messages, share_bytes: float) -> None:
        self.buffer, self.messages, self.share_bytes = buffer, messages, share_bytes
        self.next_offset = messages[-1].queue_offset + 1
        self.total = len(messages)
        self.attempts = self.consumed = 0
        self.active = self.done = False
        self.context: ConsumeContext | None = None

    def calls(self) -> Calls:
        # First said, then looked: the loop does it the other way round, so that one of both sees the other.
        self.active = True
        if self.buffer.dropped:
            return
        self.context = self.buffer.context(self.attempts)
        self.consumed = yield self.messages, self.context

    def ended(self) -> None:
        self.buffer.job_ended(self)


class ConcurrentProcessQueue(_ProcessQueue):
    """Batches of one queue, in any order and many at once."""

    def __init__(self, queue: MessageQueue, workshop: ConsumerContext, position: int) -> None:
        super().__init__(queue, workshop, position, 0)
        self._pending: deque[_ConcurrentJob] = deque()  # in the queue's order

    @property
    def is_idle(self) -> bool:
        return not any(job.active for job in self._pending)

    def has_room(self) -> bool:
        if not super().has_room():
            return False
        # One slow message must not let the rest run away from the position that could be committed.
        return not self._pending or self._pending[-1].next_offset - self._position < self._options.consume_concurrently_max_span

    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None:
        """Take what was fetched; ``next_offset`` is where the queue goes on, behind filtered messages too."""
        if self.dropped:
            return
        self._count_in(messages, size_bytes)
        step = self._options.consume_message_batch_max_size
        for first in range(0, len(messages), step):
            batch = messages[first : first + step]
            job = _ConcurrentJob(self, batch, size_bytes / len(messages) * len(batch))
            self._pending.append(job)
            self._workshop.runner.submit(job)
        if self._pending:
            self._pending[-1].next_offset = max(next_offset, self._pending[-1].next_offset)
        else:
            self._position = max(next_offset, self._position)

    def job_ended(self, job: _ConcurrentJob) -> None:
        if job.consumed == len(job.messages):
            self._finish(job)
        elif self.dropped:
            self._release(job)  # whoever has the queue next gets these messages
        else:
            self._workshop.spawn(self._again(job), "messages that come again")

    async def _again(self, job: _ConcurrentJob) -> None:
        """Messages a listener did not take: sent back to the group, or kept here when nobody takes them."""
        job.messages, job.consumed = job.messages[job.consumed :], 0
        job.attempts += 1
        if self._options.broadcast:
            gone = self._given_up(job)
        else:
            delay_level = job.context.delay_level if job.context is not None else 0
            gone = await self._workshop.send_back(self.queue, job.messages, delay_level)
        if gone:
            self._finish(job)
            return
        await asyncio.sleep(RETRY_S)
        self._release(job)
        if not self.dropped:
            self._workshop.runner.submit(job)

    def _given_up(self, job: _ConcurrentJob) -> bool:
        """A broadcast has nobody to send messages back to: after enough attempts they are left out here."""
        limit = self._options.max_reconsume_times
        if job.attempts <= (BROADCAST_ATTEMPTS if limit < 0 else limit):
            return False
        _logger.warning("%s: %d messages at %d left out", self.queue, len(job.messages), job.messages[0].queue_offset)
        return True

    def _finish(self, job: _ConcurrentJob) -> None:
        job.done = True
        self.count -= job.total
        pending = self._pending
        while pending and pending[0].done:
            self._position = max(self._position, pending.popleft().next_offset)
        self.size_bytes = round(self.size_bytes - job.share_bytes) if pending else 0
        self._release(job)

    def _release(self, job: _ConcurrentJob) -> None:
        job.active = False
        self._changed.set()


class OrderlyProcessQueue(_ProcessQueue):
    """One queue, one worker at a time, in order; it stops where a listener does not commit, and goes on there after a pause."""

    def __init__(self, queue: MessageQueue, workshop: ConsumerContext, position: int, epoch: int) -> None:
        super().__init__(queue, workshop, position, epoch)
        self._waiting: deque[tuple[ReceivedMessage, float]] = deque()
        self._job: _OrderlyJob | None = None
        self._end = position  # where the queue goes on behind what is waiting
        self._attempts = 0  # of the first batch
        self._paused: asyncio.TimerHandle | None = None

    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None:
        if self.dropped:
            return
        self._count_in(messages, size_bytes)
        self._waiting.extend((message, size_bytes / len(messages)) for message in messages)
        self._end = max(self._end, next_offset)
        self._settle()
        self.kick()

    @property
    def is_idle(self) -> bool:
        return self._job is None or not self._job.active

    def _settle(self) -> None:
        if not self._waiting and self._job is None:
            self._position = max(self._position, self._end)

    def kick(self) -> None:
        """Give the queue to a worker, unless one has it, or it pauses, or its lock must not be used now."""
        if self._job is None and self._paused is None and self._waiting and self.may_go_on():
            messages = [message for message, _ in islice(self._waiting, ORDERLY_RUN)]
            self._job = _OrderlyJob(self, messages, self._attempts)
            self._workshop.runner.submit(self._job)

    def may_go_on(self) -> bool:
        """Asked by the worker right before each listener call."""
        return not self.dropped and self._workshop.may_start(self.queue)

    def job_ended(self, job: _OrderlyJob) -> None:
        self._take(job.consumed)
        if job.failed:
            self._workshop.spawn(self._failed(job), "an orderly queue pauses")
        else:
            self._job_over()
            self.kick()

    def _job_over(self) -> None:
        self._job = None
        self._settle()
        self._changed.set()

    def _take(self, count: int) -> None:
        """The first messages are consumed."""
        for _ in range(count):
            message, size = self._waiting.popleft()
            self.count -= 1
            self.size_bytes = round(self.size_bytes - size)
            self._position = message.queue_offset + 1
        if count:
            self._attempts = 0
        if not self._waiting:
            self.size_bytes = 0

    async def _failed(self, job: _OrderlyJob) -> None:
        """The batch comes again here, after a pause; when its attempts are used up it goes to the dead letters."""
        self._attempts = 1 if job.consumed else self._attempts + 1
        limit = self._options.max_reconsume_times
        given_up = 0 <= limit < self._attempts or job.context.delay_level == DEAD_LETTER
        if given_up and (self._options.broadcast or await self._workshop.send_back(self.queue, job.failed, DEAD_LETTER)):
            _logger.warning("%s: %d messages at %d given up", self.queue, len(job.failed), job.failed[0].queue_offset)
            self._take(len(job.failed))
        self._job_over()
        pause_ms = job.context.suspend_ms or self._options.suspend_current_queue_time_ms
        self._paused = asyncio.get_running_loop().call_later(pause_ms / 1000, self._unpause)

    def _unpause(self) -> None:
        self._paused = None
        self.kick()

    def drop(self) -> None:
        super().drop()
        if self._paused is not None:
            self._paused.cancel()


class _OrderlyJob:
    """Several listener calls, one after the other.  ``active`` as above."""

    __slots__ = ("_attempts", "_messages", "active", "buffer", "consumed", "context", "failed")

    def __init__(self, buffer: OrderlyProcessQueue, messages: Messages, attempts: int) -> None:
        self.buffer, self._messages, self._attempts = buffer, messages, attempts
        self.consumed = 0
        self.active = False
        self.failed: Messages = []
        self.context = buffer.context(attempts)

    def calls(self) -> Calls:
        self.active = True
        step = self.buffer.batch_size
        for first in range(0, len(self._messages), step):
            if not self.buffer.may_go_on():
                return
            batch = self._messages[first : first + step]
            self.context = self.buffer.context(0 if first else self._attempts)
            consumed = yield batch, self.context
            self.consumed += consumed
            if consumed < len(batch):
                self.failed = batch[consumed:]
                return

    def ended(self) -> None:
        self.buffer.job_ended(self)
