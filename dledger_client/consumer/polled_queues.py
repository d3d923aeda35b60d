"""What a polled consumer has fetched, what its caller has in hand, and which offsets may be committed.

Owns when a message counts as consumed: with auto-commit when the caller asks for the next ones, else when the caller commits.  Owns also
when a queue may go to another member: when nothing of it is in the caller's hands, or when the caller has come back and ``on_revoked`` was
called, or, of a caller that does not come back, after ``max_poll_interval_ms``.

The caller has one batch in hand.  ``poll`` gives all of it; an iteration gives one message after the other, in the caller's thread.  So the
loop marks a queue as dropped and then looks how many were given; the caller counts a message as given and then looks for the mark: one of
the two sees the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import Job
from dledger_client.consumer.listener import RunningCalls
from dledger_client.consumer.process_queue import ConsumerContext, Messages, ProcessQueue
from dledger_client.fetch.records import ReceivedMessage
from dledger_wire.errors import InvalidArgumentError, StaleLockError

ASSIGNED, REVOKED, LOST = "assigned", "revoked", "lost"


@dataclass(slots=True)
class _Piece:
    """Fetched messages from ``first`` on; ``next_offset``: behind them, filtered ones included."""

    messages: Messages
    next_offset: int
    message_bytes: float
    first: int = 0


class _Part:
    """The messages of one queue in the caller's hands: ``given`` of them, of which the caller has ``done`` so many."""

    __slots__ = ("context", "done", "given", "message_bytes", "messages", "queue")

    def __init__(self, queue: PolledQueue, messages: Messages, message_bytes: float) -> None:
        self.queue, self.messages, self.message_bytes = queue, messages, message_bytes
        self.context = queue.context(0)
        self.given = self.done = 0

    def offset_behind(self, count: int) -> int:
        return self.messages[count - 1].queue_offset + 1 if count else 0


class PolledQueue(ProcessQueue):
    """One queue of a polled consumer."""

    def __init__(self, queue: MessageQueue, consumer: ConsumerContext, consume_offset: int, epoch: int, polling: Polling) -> None:
        super().__init__(queue, consumer, consume_offset, epoch)
        self.is_announced = self.is_lost = self.is_released = self.is_paused = False
        self.part: _Part | None = None
        self.taken_to = consume_offset  # all in front of it was taken in hand, or filtered out
        self._pieces: deque[_Piece] = deque()
        self._polling = polling
        polling.opened(self)

    # The loop's side

    def add(self, messages: Messages, size_bytes: int, next_offset: int) -> None:
        if self.dropped:
            return
        self._count_in(messages, size_bytes)
        if messages:
            self._pieces.append(_Piece(messages, next_offset, size_bytes / len(messages)))
            self._polling.changed.set()
        elif self._pieces:
            self._pieces[-1].next_offset = max(next_offset, self._pieces[-1].next_offset)
        else:
            is_settled = self.part is None and self._consume_offset == self.taken_to
            self.taken_to = max(next_offset, self.taken_to)
            if is_settled:
                self._consume_offset = self.taken_to

    @property
    def consume_offset(self) -> int:
        part = self.part
        if part is None or not self._polling.auto_commit:
            return self._consume_offset
        return max(self._consume_offset, part.offset_behind(part.done))

    @property
    def given_to(self) -> int:
        """The offset behind what the caller was given."""
        part = self.part
        if part is None or part.given == len(part.messages):
            return self.taken_to
        return part.messages[part.given].queue_offset

    @property
    def is_idle(self) -> bool:
        return self.dropped and (self.is_lost or self.is_released or self.given_to <= self.consume_offset)

    def drop(self, *, is_lost: bool = False) -> None:
        was_dropped, self.is_lost = self.dropped, self.is_lost or is_lost
        super().drop(is_lost=is_lost)
        if not was_dropped:
            self._polling.closed(self)
        self._changed.set()

    def release(self) -> None:
        """The caller has come back, and knows that the queue goes."""
        self.is_released = True
        self._changed.set()

    def resume(self) -> None:
        self._polling.changed.set()

    def settle(self, offset: int) -> None:
        """The caller has consumed all in front of ``offset``."""
        self._consume_offset = max(self._consume_offset, offset)
        self._changed.set()

    def take(self, limit: int) -> _Part | None:
        """Up to so many messages for the caller; None when there are none."""
        if not self._pieces or not self.is_announced or self.is_paused or not self.may_continue():
            return None
        messages: Messages = []
        message_bytes = self._pieces[0].message_bytes
        while self._pieces and len(messages) < limit:
            piece = self._pieces[0]
            found = piece.messages[piece.first : piece.first + limit - len(messages)]
            messages += found
            piece.first += len(found)
            self.size_bytes = round(self.size_bytes - piece.message_bytes * len(found))
            if piece.first == len(piece.messages):
                self._pieces.popleft()
                self.taken_to = piece.next_offset
            else:
                self.taken_to = piece.messages[piece.first].queue_offset
        self.count -= len(messages)
        if not self._pieces:
            self.size_bytes = 0
        self.part = _Part(self, messages, message_bytes)
        self._changed.set()
        return self.part

    def take_back(self) -> None:
        """The caller's part ends."""
        self.take_back_rest()
        self.part = None

    def take_back_rest(self) -> None:
        """Messages in hand that were not given wait again, in front of the others."""
        part = self.part
        if part is None or part.given == len(part.messages):
            return
        rest = part.messages[part.given :]
        del part.messages[part.given :]
        if not self.dropped:
            self._pieces.appendleft(_Piece(rest, self.taken_to, part.message_bytes))
            self._count_in(rest, round(part.message_bytes * len(rest)))
        self.taken_to = rest[0].queue_offset

    def abandon(self) -> None:
        """The caller's part ends; only what it has done counts, whatever its thread is given just now."""
        part, self.part = self.part, None
        done = 0 if part is None else part.done
        if part is not None and done < len(part.messages):
            self.taken_to = part.messages[done].queue_offset
        if self._polling.auto_commit:
            self.settle(self.taken_to)

    def seek(self, offset: int) -> None:
        """Give the messages from there on next.  With auto-commit, those in front of it count as consumed when the caller is back."""
        self.take_back_rest()
        part = self.part or self._polling.empty_part(self)
        self._consume_offset = self.consume_offset
        part.messages.clear()
        part.given = part.done = 0
        self._pieces.clear()
        self.count = self.size_bytes = 0
        self.taken_to = offset
        self._changed.set()


class Polling:
    """What the caller of one polled consumer has in hand.  Takes the place of the executor of listeners."""

    def __init__(self, *, auto_commit: bool, max_poll_interval_ms: int) -> None:
        self.queues: dict[MessageQueue, PolledQueue] = {}  # those that gave last are last
        self.changed = asyncio.Event()
        self.running = RunningCalls()
        self.auto_commit, self._max_poll_interval_ms = auto_commit, max_poll_interval_ms
        self._parts: list[_Part] = []
        self._at = 0  # the part that an iteration is at
        self._call: int | None = None
        self._is_ended = False
        self._telling: list[PolledQueue] = []  # revoked, which the caller is just being told
        self._news: deque[tuple[str, PolledQueue]] = deque()  # of queues, for the caller

    def submit(self, job: Job) -> NoReturn:
        raise NotImplementedError("a polled consumer has no listener")

    async def stop(self, waiting: Collection[asyncio.Task[Any]] = ()) -> None:
        pass

    def end(self, *, is_consumed: bool) -> list[MessageQueue]:
        """Let all queues go, once the caller has been told: returns which.  ``is_consumed``: what it has in hand counts as consumed."""
        self._is_ended = True
        if is_consumed:
            self.take_back()
        else:
            self._abandon()
        self._telling = [queue for queue in self._held() if queue.is_announced]
        return sorted(queue.queue for queue in self._telling)

    # Queues that come and go

    def open_queue(self, queue: MessageQueue, consumer: ConsumerContext, offset: int, epoch: int) -> PolledQueue:
        return PolledQueue(queue, consumer, offset, epoch, self)

    def opened(self, queue: PolledQueue) -> None:
        self.queues[queue.queue] = queue
        self._tell(ASSIGNED, queue)

    def closed(self, queue: PolledQueue) -> None:
        if self.queues.get(queue.queue) is queue:
            del self.queues[queue.queue]
        if not queue.is_announced:
            self._news.remove((ASSIGNED, queue))
            return
        self._tell(LOST if queue.is_lost else REVOKED, queue)
        if self._is_ended:
            queue.release()
        elif not queue.is_idle:
            asyncio.get_running_loop().call_later(self._max_poll_interval_ms / 1000, self._give_up, queue)

    def _give_up(self, queue: PolledQueue) -> None:
        """The caller did not come back in time."""
        if not queue.is_idle:
            queue.is_lost = True
            self._news = deque((LOST if each is queue else what, each) for what, each in self._news)
            queue.release()

    def _tell(self, what: str, queue: PolledQueue) -> None:
        self._news.append((what, queue))
        self.changed.set()

    def next_news(self) -> tuple[str, list[PolledQueue]] | None:
        """What happened to queues and the caller does not know yet: those that come next and have the same news."""
        if not self._news:
            return None
        what, found = self._news[0][0], []
        while self._news and self._news[0][0] == what:
            found.append(self._news.popleft()[1])
        for queue in found:
            queue.is_announced = True
        self._telling = found if what == REVOKED else []
        return what, found

    def told(self) -> None:
        """The caller knows."""
        for queue in self._telling:
            queue.release()
        self._telling = []

    # Messages

    def take_back(self) -> None:
        """The caller is back: with auto-commit it has consumed what it was given."""
        for part in self._parts:
            part.queue.take_back()
            if self.auto_commit:
                part.queue.settle(part.queue.taken_to)
        self._parts, self._at = [], 0
        self._begin_call(None)

    def _begin_call(self, part: _Part | None) -> None:
        """The caller works on a message of ``part`` from now on."""
        if self._call is not None:
            self.running.end(self._call)
        self._call = None if part is None else self.running.begin(part.context)

    def _abandon(self) -> None:
        """The caller ends, and has not consumed what it has in hand."""
        for part in self._parts:
            part.queue.abandon()
        self._parts, self._at = [], 0
        self._begin_call(None)

    def take(self, limit: int) -> bool:
        """Take up to so many messages of all queues in turn; whether there are any."""
        for queue in list(self.queues.values()):
            part = queue.take(limit)
            if part is None:
                continue
            self._parts.append(part)
            self.queues[queue.queue] = self.queues.pop(queue.queue)
            limit -= len(part.messages)
            if not limit:
                break
        return bool(self._parts)

    def empty_part(self, queue: PolledQueue) -> _Part:
        """In hand, of a queue whose position the caller has moved."""
        part = queue.part = _Part(queue, [], 0.0)
        self._parts.append(part)
        return part

    def give(self) -> Messages:
        """In the caller's thread: all that is in hand."""
        messages: Messages = []
        for part in self._parts:
            part.given = len(part.messages)
            if part.queue.may_continue():
                messages += part.messages
            else:
                part.given = 0
        self._begin_call(self._parts[0] if messages else None)
        return messages

    def next(self) -> ReceivedMessage | None:
        """In the caller's thread: the next message in hand.  None when there is none, or something else has to be done first."""
        while self._at < len(self._parts):
            part = self._parts[self._at]
            part.done = part.given
            if part.given < len(part.messages):
                return None if self._news else self._given(part)
            self._at += 1
        return None

    def _given(self, part: _Part) -> ReceivedMessage | None:
        part.given += 1
        if not part.queue.may_continue():
            part.given -= 1
            return None
        self._begin_call(part)
        return part.messages[part.given - 1]

    def pause(self, queues: Iterable[PolledQueue], *, is_paused: bool) -> None:
        """Give no message of these queues, or give them again."""
        for queue in queues:
            queue.is_paused = is_paused
            queue.take_back_rest()
        self.changed.set()

    def of(self, queue: MessageQueue) -> PolledQueue:
        """InvalidArgumentError when this consumer does not have the queue now."""
        found = self.queues.get(queue)
        if found is None:
            raise InvalidArgumentError(f"{queue!r}: not assigned to this consumer; expected one of assigned()")
        return found

    def settle_given(self) -> None:
        """The caller has consumed all that it was given."""
        for queue in self._held():
            queue.settle(queue.given_to)

    def check_hand(self) -> None:
        """StaleLockError when the caller was given messages of a queue that is lost: they come again, to another member."""
        lost = [str(part.queue.queue) for part in self._parts if part.queue.is_lost and part.given]
        if lost:
            raise StaleLockError(f"lost while messages of it were consumed: {', '.join(lost)}")

    def settle(self, message: ReceivedMessage) -> None:
        """The caller has consumed the messages of a queue up to this one.  StaleLockError when it was not given by a queue held here."""
        chunk = message._rows.chunk
        place = MessageQueue(chunk.topic, chunk.replica_group, chunk.queue_id)
        queue = next((each for each in self._held() if each.queue == place), None)
        if queue is None or message.queue_offset >= queue.given_to:
            raise StaleLockError(f"{place}: message {message.queue_offset} was read before this consumer lost the queue")
        queue.settle(message.queue_offset + 1)

    def _held(self) -> list[PolledQueue]:
        """The queues whose offsets may be committed: those that go, too, until they are gone."""
        return [*self.queues.values(), *self._telling, *(queue for what, queue in self._news if what == REVOKED)]
