"""Messages on the producer's side before they are sent: choice of the queue, batching, the memory limit.

Owns its lock, and everything under it: topics, open and ready batches, buffered bytes.  Any thread may append; senders take batches out.
It never waits, reads no clock (times are passed in, a batch ages from the moment a sender sees it) and knows no event loop:
``WakeUp.wake_up`` is called, without the lock, when a sender has something to do.

What the application passes and is not checked yet is ``Any``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dledger_client.message import Message
from dledger_client.producer.batches import MESSAGE_OVERHEAD_BYTES, UNSEEN, ProducerBatch, QueueBatcher, size_of
from dledger_client.producer.blocked import Blocked
from dledger_client.producer.compression import BodyCompression
from dledger_client.producer.delivery_report import DeliveryReport
from dledger_client.producer.half_messages import staged_delayed, staged_half
from dledger_client.producer.latency_fault import Availability
from dledger_client.producer.message_columns import MessageColumns
from dledger_client.producer.partitioner import AnyKey, Partitioner, QueueKey, Run, priority_key
from dledger_client.producer.send_metrics import SendMetrics
from dledger_client.producer.settings import ProducerOptions
from dledger_wire.errors import ClientClosedError, DledgerError, InvalidArgumentError, MessageTooLargeError, TopicNotFoundError
from dledger_wire.frames.compress import compression_of

CLOSED = "the producer is closed, its event loop has ended, or it was made before the process forked; nothing was stored"


class WakeUp(Protocol):
    """The sender of a replica group."""

    def wake_up(self) -> None:
        """There is something to send.  Called from any thread."""
        ...


class RecordAccumulator:
    """One producer's messages that are not sent."""

    def __init__(self, options: ProducerOptions, availability: Availability, senders: Mapping[str, WakeUp]) -> None:
        self.closed = False
        self.buffered_bytes = 0  # of all messages that are not acknowledged
        self.metrics: SendMetrics | None = None  # set before the first topic is
        self._options, self._availability, self._senders = options, availability, senders
        self._compression = BodyCompression(compression_of(options.compress_type), options.compress_level)
        self.blocked = Blocked(options)
        self.throttled_ms = 0  # how long leaders did not read what quotas allow no more
        self._batch_bytes, self._max_buffered_bytes = options.batch_bytes, options.max_buffered_bytes
        self._large_bytes = min(options.max_message_bytes, options.compress_over_bytes)
        self._lock = threading.Lock()
        self._settling = threading.Lock()  # shared by all delivery reports
        self._topics: dict[str, Partitioner] = {}
        self._batchers: dict[tuple[str, str, int], QueueBatcher] = {}
        self._touched: dict[str, list[QueueBatcher]] = {}  # by replica group: got a batch since its sender last asked
        self._room: list[Callable[[], object]] = []  # waiters for buffer space

    # Topics

    def knows(self, topic: str, queue_id: Any = None, *, by_key: bool = False) -> bool:
        """Whether the queues of a topic are known, if given ``queue_id`` is one of them, and ``by_key`` whether they are all of them."""
        partitioner = self._topics.get(topic)
        return partitioner is not None and (queue_id is None or partitioner.has(queue_id)) and (partitioner.is_whole or not by_key)

    def topics(self) -> list[str]:
        with self._lock:
            return list(self._topics)

    def set_queues(
        self, topic: str, queues: Sequence[tuple[str, int]], first: int, *, is_whole: bool = True, priorities: bool = False
    ) -> None:
        """The queues of a topic that take messages, as (replica group, queue id); ``first``: where messages without a key start.

        ``is_whole``: these are all, so that the queue of each key is known.  ``priorities``: whether the topic has them.
        """
        with self._lock:
            batchers = [self._batcher(topic, replica_group, queue_id) for replica_group, queue_id in queues]
            known = self._topics.get(topic)
            if known is None or (known.batchers, known.priorities) != (batchers, priorities):  # else the sticky queue stays the same
                sticky = self._options.sticky_messages
                known = self._topics[topic] = Partitioner(batchers, first, self._availability, sticky, priorities=priorities)
            known.is_whole = is_whole

    def remove_topic(self, topic: str) -> None:
        """The topic takes no more messages: the next append fails."""
        with self._lock:
            self._topics.pop(topic, None)

    def queues(self, topic: str) -> list[tuple[str, int]]:
        """The queues of a topic that take messages, as (replica group, queue id)."""
        with self._lock:
            return [(batcher.replica_group, batcher.queue_id) for batcher in self._partitioner(topic).batchers]

    def takes_messages(self, batcher: QueueBatcher) -> bool | None:
        """Whether the queue is one of its topic's; None when the topic is gone."""
        with self._lock:
            partitioner = self._topics.get(batcher.topic)
            return None if partitioner is None else batcher in partitioner.batchers

    def _partitioner(self, topic: str) -> Partitioner:
        partitioner = self._topics.get(topic)
        if partitioner is None:
            raise TopicNotFoundError(f"topic {topic} was deleted, or takes no more messages")
        return partitioner

    def _batcher(self, topic: str, replica_group: str, queue_id: int) -> QueueBatcher:
        key = (topic, replica_group, queue_id)
        found = self._batchers.get(key)
        if found is None:
            found = self._batchers[key] = QueueBatcher(*key, None if self.metrics is None else self.metrics.of_topic(topic))
            self._touched.setdefault(replica_group, [])
        return found

    # Appending, from any thread

    def append_known(self, message: Any, queue_key: QueueKey, queue_id: Any) -> tuple[DeliveryReport, int] | None:
        """``append``; None also when not all is known of the topic that the choice of the queue needs."""
        if not isinstance(message, Message):
            raise no_message(message)
        if not self.knows(message.topic, queue_id, by_key=queue_key is not None):
            return None
        return self.append(message, queue_key, queue_id)

    def append(self, message: Message, queue_key: QueueKey, queue_id: Any) -> tuple[DeliveryReport, int] | None:
        """Put a message into a batch: (the batch's report, the message's index in it); None when there is no room.

        The topic must be known.  InvalidArgumentError, MessageTooLargeError: nothing was taken.
        """
        if len(message.body) > self._large_bytes:
            message = self._compressed(message)
        key = queue_key if message.priority is None else priority_key(message.priority, queue_key, queue_id)
        size = len(message.body) + len(message.extras) + MESSAGE_OVERHEAD_BYTES
        is_free = key is None and queue_id is None
        selected = None
        if not is_free and callable(key) and (selected := self._selected(message.topic, key, size)) is None:
            return None
        has_news = False
        with self._lock:
            topic = self._topics.get(message.topic)
            if topic is None or self.closed or self.buffered_bytes + size > self._max_buffered_bytes:
                topic = self._with_room(message.topic, size)
            if topic is None:
                return None
            if message.delay_level or message.deliver_at_ms or message.transaction_group:
                target = topic.next_staged() if is_free else selected or topic.choose(message.topic, key, queue_id)
                message, batcher = self._staged(message, target)
                size = size_of((message,))
                is_free, key = False, None
            elif is_free:
                batcher = topic.next_sticky()
            else:
                batcher = selected or topic.choose(message.topic, key, queue_id)
            batch = batcher.open
            if batch is None:
                batch = self._open_batch(batcher)
                has_news = True
            messages = batcher.open_messages
            index = len(messages)
            messages.append(message)
            if not is_free:
                batch.keys[index] = None if callable(key) else key
            batch.size_bytes += size
            self.buffered_bytes += size
            if batch.size_bytes >= self._batch_bytes:
                self._close_batch(batcher)
                has_news = True
            if has_news:
                self._touched[batcher.replica_group].append(batcher)
        if has_news:
            self._senders[batcher.replica_group].wake_up()
        return batch.report, index

    def append_batch(self, messages: Sequence[Message], queue_key: QueueKey, queue_id: Any) -> tuple[DeliveryReport, int] | None:
        """Put messages of one topic into a batch of their own, stored together or not at all; None when there is no room."""
        topic, max_bytes = _common_topic(messages), self._options.max_message_bytes
        messages = [self._compressed(each) if len(each.body) > self._large_bytes else each for each in messages]
        size = size_of(messages)
        if size > max_bytes:
            raise _too_large(topic, f"batch of {len(messages)} messages", size, max_bytes)
        priority = messages[0].priority
        key = queue_key if priority is None else priority_key(priority, queue_key, queue_id)
        return self._append_ready(topic, messages, size, key, queue_id, is_atomic=True)

    def append_columns(self, columns: MessageColumns, size: int, queue_key: QueueKey, queue_id: Any) -> tuple[DeliveryReport, int] | None:
        """Put messages that are given as columns, ``size`` bytes, into a batch of their own; None when there is no room.

        Unlike one of ``append_batch`` it may be split: a message that is refused fails alone.
        """
        messages: Sequence[Message] = columns
        if columns.largest_body > self._large_bytes:
            messages = [self._compressed(each) if len(each.body) > self._large_bytes else each for each in columns]
            size = size_of(messages)
        return self._append_ready(columns.topic, messages, size, queue_key, queue_id, is_atomic=False)

    def check_sizes(self, columns: MessageColumns) -> None:
        """MessageTooLargeError when a body is larger than any message may be."""
        max_bytes = self._options.max_message_bytes
        if columns.largest_body > max_bytes:
            number, size = next((number, len(body)) for number, body in enumerate(columns.bodies) if len(body) > max_bytes)
            raise _too_large(columns.topic, f"bodies[{number}]", size, max_bytes)

    def _append_ready(
        self, topic: str, messages: Sequence[Message], size: int, queue_key: AnyKey, queue_id: Any, *, is_atomic: bool
    ) -> tuple[DeliveryReport, int] | None:
        selected = None
        if callable(queue_key):
            selected = self._selected(topic, queue_key, size)
            if selected is None:
                return None
        with self._lock:
            partitioner = self._with_room(topic, size)
            if partitioner is None:
                return None
            is_free = queue_key is None and queue_id is None
            batcher = partitioner.sticky if is_free else selected or partitioner.choose(topic, queue_key, queue_id)
            self._close_batch(batcher)
            batch = self._new_batch(batcher)
            batch.messages, batch.size_bytes, batch.is_atomic = messages, size, is_atomic
            if not is_free:
                key = None if callable(queue_key) else queue_key
                batch.keys = dict.fromkeys(range(1 if is_atomic else len(messages)), key)
            self.buffered_bytes += size
            self._add_ready(batch)
        self._senders[batcher.replica_group].wake_up()
        return batch.report, 0

    def detached_report(self, topic: str) -> DeliveryReport:
        """A report of a message that is in no batch yet."""
        return DeliveryReport(self._settling, topic, "", -1)

    def refuse(self, report: DeliveryReport, error: DledgerError, count: int = 1) -> None:
        """Fail messages that are in no batch."""
        if self.metrics is not None:
            self.metrics.of_topic(report.topic).failed(count, error)
        report.fail(error)

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back when there is room for more, or the producer is closed."""
        with self._lock:
            self._room.append(callback)

    def _with_room(self, topic: str, size: int) -> Partitioner | None:
        """The queues of a topic; None when there is no room for ``size`` more bytes."""
        if self.closed:
            raise ClientClosedError(CLOSED)
        if self.buffered_bytes + size > self._options.max_buffered_bytes and self.buffered_bytes:
            return None
        partitioner = self._topics.get(topic)
        return partitioner if partitioner is not None else self._partitioner(topic)

    def _selected(self, topic: str, selector: AnyKey, size: int) -> QueueBatcher | None:
        """The queue that the application's selector chooses.  Called without the lock: a selector may send, too."""
        with self._lock:
            partitioner = self._with_room(topic, size)
        return partitioner.choose(topic, selector, None) if partitioner is not None else None

    def _compressed(self, message: Message) -> Message:
        """A large message as it is sent.  MessageTooLargeError by the size of its body before compression, as consumers get it."""
        size, max_bytes = len(message.body), self._options.max_message_bytes
        if size > max_bytes:
            raise _too_large(message.topic, "body", size, max_bytes)
        return self._compression.compressed(message) if size > self._options.compress_over_bytes else message

    def _staged(self, message: Message, target: QueueBatcher) -> tuple[Message, QueueBatcher]:
        """A delayed or half message as it is sent now, and the queue that holds it until it is delivered to ``target``."""
        if message.transaction_group:
            message, queue_id = staged_half(message, target.queue_id), 0
        else:
            message, queue_id = staged_delayed(message, target.queue_id)
        return message, self._batcher(message.topic, target.replica_group, queue_id)

    def _open_batch(self, batcher: QueueBatcher) -> ProducerBatch:
        batch = batcher.open = self._new_batch(batcher)
        batch.messages = batcher.open_messages = []
        return batch

    def _new_batch(self, batcher: QueueBatcher) -> ProducerBatch:
        return ProducerBatch(batcher, DeliveryReport(self._settling, batcher.topic, batcher.replica_group, batcher.queue_id))

    def _close_batch(self, batcher: QueueBatcher) -> None:
        """The open batch takes no more messages; those without a key continue in the next queue."""
        batch, batcher.open = batcher.open, None
        if batch is not None:
            batcher.ready.append(batch)
        topic = self._topics.get(batcher.topic)
        if topic is not None and topic.sticky is batcher:
            topic.rotate()

    def _add_ready(self, batch: ProducerBatch) -> None:
        batch.batcher.ready.append(batch)
        self._touched[batch.batcher.replica_group].append(batch.batcher)

    # Taking out, by the sender of a replica group

    def touched(self, replica_group: str, now_ms: int) -> list[QueueBatcher]:
        """The queues that got a batch since the last call; their new batches age from now on."""
        with self._lock:
            touched, self._touched[replica_group] = self._touched.get(replica_group, []), []
            for batcher in touched:
                if batcher.open is not None:
                    self._see(batcher.open, now_ms)
                for batch in batcher.ready:
                    self._see(batch, now_ms)
        return touched

    def _see(self, batch: ProducerBatch, now_ms: int) -> None:
        """Its sender sees the batch: its age counts from the first time."""
        if batch.created_ms == UNSEEN:
            batch.created_ms, batch.deadline_ms = now_ms, now_ms + self._options.send_timeout_ms

    def drain(self, batcher: QueueBatcher, now_ms: int, *, is_idle: bool, flush: bool) -> ProducerBatch | None:
        """The next batch of a queue: a full one, or the open one once it has lingered.  ``is_idle``: nothing is in flight."""
        options = self._options
        with self._lock:
            batch = batcher.ready[0] if batcher.ready else batcher.open
            if batch is None:
                return None
            self._see(batch, now_ms)
            if not batcher.ready:
                has_lingered = now_ms - batch.created_ms >= options.linger_ms
                if not flush and not (has_lingered and (is_idle or options.linger_ms)):
                    return None
                self._close_batch(batcher)
            return batcher.ready.popleft()

    def requeue(self, batcher: QueueBatcher, batches: Sequence[ProducerBatch]) -> None:
        """Put batches back in front of the others."""
        with self._lock:
            batcher.ready.extendleft(reversed(batches))

    def expire(self, batcher: QueueBatcher, now_ms: int | None) -> list[ProducerBatch]:
        """Remove the batches whose deadline is over (``now_ms`` None: all); the caller fails them."""
        expired = []
        with self._lock:
            if batcher.open is not None and batcher.open.is_expired(now_ms):
                self._close_batch(batcher)
            while batcher.ready and batcher.ready[0].is_expired(now_ms):
                expired.append(batcher.ready.popleft())
        for batch in expired:
            self.release(batch)
        return expired

    def unsent(self, batcher: QueueBatcher) -> list[ProducerBatch]:
        """The batches of a queue that are not sent, in order."""
        with self._lock:
            return batcher.unsent()

    def fail(self, batch: ProducerBatch, error: DledgerError) -> None:
        """Fail a batch for good."""
        self.release(batch)
        batch.fail(error)

    def release(self, batch: ProducerBatch) -> None:
        """The batch is resolved: its memory is free."""
        batch.parts = None
        with self._lock:
            self.buffered_bytes -= batch.size_bytes
            waiters: list[Callable[[], object]] = []
            if self.buffered_bytes <= self._options.max_buffered_bytes * 3 // 4 or not self.buffered_bytes:
                waiters, self._room = self._room, []
        for callback in waiters:
            callback()

    # Other queues for what is known not to be stored

    def redispatch(self, batch: ProducerBatch) -> None:
        """Move a batch whose queue is gone to other queues of its topic, by the keys of its messages."""
        with self._lock:
            groups = self._spread(batch, self._partitioner(batch.batcher.topic).elsewhere(batch, with_keys=True))
        self._wake_up(groups)

    def leave_group(self, replica_group: str, *, move_unsent: bool) -> None:
        """A replica group cannot be reached: messages without a key go to another one.  ``move_unsent``: also those not sent yet."""
        groups: list[str] = []
        with self._lock:
            for topic in self._topics.values():
                if topic.sticky.replica_group == replica_group:
                    topic.rotate()
            for batcher in self._batchers.values() if move_unsent else ():
                partitioner = self._topics.get(batcher.topic)
                if batcher.replica_group == replica_group and partitioner is not None and partitioner.sticky.replica_group != replica_group:
                    groups += self._move_unsent(batcher, partitioner)
        self._wake_up(groups)

    def _move_unsent(self, batcher: QueueBatcher, partitioner: Partitioner) -> list[str]:
        """Move the batches that were never sent and hold messages without a key; the replica groups that got some."""
        unsent = batcher.unsent()
        batcher.ready.clear()
        batcher.open = None
        groups: list[str] = []
        for batch in unsent:
            if batch.attempts or len(batch.keys) == len(batch.messages):
                batcher.ready.append(batch)
            else:
                groups += self._spread(batch, partitioner.elsewhere(batch, with_keys=False))
        return groups

    def _spread(self, batch: ProducerBatch, runs: Sequence[Run]) -> list[str]:
        """Put the messages of an unstored batch into the queues of ``runs``; returns the replica groups."""
        batch.parts = None
        if len(runs) == 1:  # a part each time would nest reports without end while no group can be reached
            batch.move_to(runs[0][2])
            self._add_ready(batch)
            return [batch.batcher.replica_group]
        parts = []
        for first, end, batcher in runs:
            part = batch.part(batcher, first, end)
            part.order = 0
            parts.append((first, part.report))
            self._add_ready(part)
        batch.report.split_into(parts)
        return [batcher.replica_group for _, _, batcher in runs]

    def _wake_up(self, replica_groups: Sequence[str]) -> None:
        for replica_group in dict.fromkeys(replica_groups):
            self._senders[replica_group].wake_up()

    # Closing

    def close(self) -> None:
        """Take no more messages.  Batches that are here can still be taken out."""
        with self._lock:
            self.closed = True
            waiters, self._room = self._room, []
        self._close_metrics()
        for callback in waiters:
            callback()

    def disown(self) -> None:
        """Take no more messages; threads that no longer run, after a fork, may hold the locks or wait for room."""
        self._lock, self._settling = threading.Lock(), threading.Lock()
        self.closed = True
        self._close_metrics()

    def _close_metrics(self) -> None:
        if self.metrics is not None:
            self.metrics.close()


def no_message(message: object) -> TypeError:
    return TypeError(f"a message to send is a Message, not {type(message).__name__}")


def _too_large(topic: str, what: str, size: int, max_bytes: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"{topic}: {what} of {size} bytes; expected at most {max_bytes}", limit_bytes=max_bytes)


def _common_topic(messages: Sequence[Message]) -> str:
    """The topic of messages to be stored as one batch.  InvalidArgumentError when they cannot be."""
    if not messages:
        raise InvalidArgumentError("a batch without a message")
    topic = messages[0].topic
    if any(message.topic != topic for message in messages):
        raise InvalidArgumentError("the messages of a batch have different topics; expected one")
    if any(message.priority != messages[0].priority for message in messages):
        raise InvalidArgumentError("the messages of a batch have different priorities; expected one")
    if any(message.delay_level or message.deliver_at_ms for message in messages):
        raise InvalidArgumentError("a batch holds delayed messages; expected none")
    return topic
