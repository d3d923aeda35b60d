"""A producer's inside, shared by the synchronous and the asyncio face: messages in, batches out to the links of the groups.

Owns the lanes, the memory they may take, the choice of queues and the unique ids.  ``add`` may be called from any thread and costs a few
list operations under one lock; everything else runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from dledger_client.cluster.metadata import Router, TopicQueues
from dledger_client.cluster.topic_creation import create_topic
from dledger_client.message import Message
from dledger_client.producer.batches import MESSAGE_OVERHEAD_BYTES, UNSENT, ProducerBatch, QueueBatcher
from dledger_client.producer.compression import BodyCompression
from dledger_client.producer.delayed_messages import parked
from dledger_client.producer.delivery_report import DeliveryReport, settled
from dledger_client.producer.half_messages import parked_half
from dledger_client.producer.latency_fault import LatencyFaultTolerance
from dledger_client.producer.partitioner import Partitioner, QueueKey, QueueSelector
from dledger_client.producer.record_encoder import encode_messages
from dledger_client.producer.redispatch import Redispatcher
from dledger_client.producer.sender import Sender
from dledger_client.producer.settings import ProducerOptions
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import (
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotSentError,
    OutcomeUnknownError,
    TopicNotFoundError,
    TopicPermissionError,
)
from dledger_wire.frames.compress import compression_of
from dledger_wire.frames.message_id import UniqueIds
from dledger_wire.names import is_system_topic
from dledger_wire.status import Perm
from dledger_wire.tasks import BackgroundTasks

REFRESH_S = 30.0
REFRESH_PAUSE_S = 0.5
REFRESH_TIMEOUT_MS = 5000

_logger = logging.getLogger(__name__)


class ProducerEngine:
    """Made on the loop it runs on."""

    def __init__(self, router: Router, options: ProducerOptions, ids: UniqueIds, born_host: bytes) -> None:
        self.router = router
        self.options = options
        self._compression = BodyCompression(compression_of(options.compress_type), options.compress_level)
        self._large_bytes = min(options.max_message_bytes, options.compress_over_bytes)
        self.faults = LatencyFaultTolerance(
            options.latency_max, options.not_available_duration, router.clock.monotonic_ms, enabled=options.latency_fault
        )
        self.closed = False
        self.buffered_bytes = 0
        self._ids = ids
        self._born_host = born_host
        self._loop = asyncio.get_running_loop()
        self.lock = threading.Lock()  # of everything that add touches
        self._settling = threading.Lock()
        self.topics: dict[str, Partitioner] = {}
        self._lanes: dict[tuple[str, str, int], QueueBatcher] = {}
        self._links: dict[str, Sender] = {}
        self.tasks = BackgroundTasks("producer", self._bug)
        self._room: list[Callable[[], object]] = []  # who waits for buffer room
        self._refreshing: asyncio.Task[None] | None = None
        self.doubted = asyncio.Event()  # a topic may have other queues than we think
        self._fresh: dict[str, list[QueueBatcher]] = {}  # by group: lanes that got something since the link last looked
        self.refused = Redispatcher(self)

    # Routes

    async def resolve(self, topic: str, deadline_ms: int, queue_id: int | None = None) -> None:
        """Learn the queues of a topic, anew when ``queue_id`` is none of those known: it may have been made since.

        TopicNotFoundError, TopicPermissionError, or what kept the cluster from answering.
        """
        if self.knows(topic, queue_id):
            return
        if is_system_topic(topic):
            raise InvalidArgumentError(f"topic {topic} belongs to the system; expected one of your own", topic=topic)
        try:
            await self._look_up(topic, deadline_ms)
        except TopicNotFoundError as missing:
            key, queues = self.options.create_topic_key, self.options.default_topic_queues
            if not key or not await create_topic(self.router, topic, key, queues, deadline_ms):
                raise missing
            await self._look_up(topic, deadline_ms)
        if self._refreshing is None:
            self._refreshing = self.tasks.spawn(self._refresh(), "look at topics again")

    async def _look_up(self, topic: str, deadline_ms: int) -> None:
        found = await self.router.topic(topic, deadline_ms, fresh=True)
        lanes = [lane for queues in sorted(found, key=lambda queues: queues.replica_group) for lane in self._lanes_of_topic(queues)]
        if not lanes:
            raise TopicPermissionError(f"topic {topic}: writing is not permitted (perm {found[0].perm})", topic=topic, perm=found[0].perm)
        start = self.router.random.randrange(0, len(lanes))
        with self.lock:
            known = self.topics.get(topic)
            if known is None or known.lanes != lanes:  # else the one in use keeps its place in the queues
                self.topics[topic] = Partitioner(lanes, start, self.faults, self.options.sticky_messages)

    async def _refresh(self) -> None:
        """Queues come and go: all topics are looked at again from time to time, one that refused a batch at once."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self.doubted.wait()
            self.doubted.clear()
            for topic in list(self.topics):
                try:
                    await self._look_up(topic, self.router.clock.monotonic_ms() + REFRESH_TIMEOUT_MS)
                except (TopicNotFoundError, TopicPermissionError):
                    with self.lock:
                        self.topics.pop(topic, None)  # whoever sends to it next is told
                except DledgerError as error:
                    _logger.info("topic %s: %s", topic, error.message)
            self.refused.rehome()
            await asyncio.sleep(REFRESH_PAUSE_S)

    def _lanes_of_topic(self, queues: TopicQueues) -> list[QueueBatcher]:
        if not queues.perm & Perm.WRITE:
            return []
        found = []
        for queue_id in range(queues.write_queues):
            with self.lock:
                found.append(self._lane((queues.topic, queues.replica_group, queue_id)))
        if queues.replica_group not in self._links:
            self._fresh[queues.replica_group] = []
            link = self._links[queues.replica_group] = Sender(self, queues.replica_group)
            self.tasks.spawn(self._serve(link), f"produce to {queues.replica_group}")
        return found

    async def stored_before(self, topic: str, deadline_ms: int) -> dict[tuple[str, int], int]:
        """See ``Producer.stored``."""
        if not self.options.producer_id:
            raise InvalidArgumentError("only a producer with a producer_id of its own can know what it stored before")
        await self.resolve(topic, deadline_ms)
        lanes = self.topics[topic].lanes
        for group in sorted({lane.group for lane in lanes}):
            await self._links[group].ensure_session()
        return {(lane.group, lane.queue_id): self._links[lane.group].stored.get((topic, lane.queue_id), 0) for lane in lanes}

    def knows(self, topic: str, queue_id: int | None = None) -> bool:
        """Whether the topic's queues are known and, if it is given, ``queue_id`` is one of them."""
        known = self.topics.get(topic)
        return known is not None and (queue_id is None or known.has(queue_id))

    def lanes_of(self, group: str) -> list[QueueBatcher]:
        """The caller holds the lock."""
        return [lane for lane in self._lanes.values() if lane.group == group]

    # Adding, from any thread

    def add(self, message: Message, queue_key: QueueKey, queue_id: int | None) -> tuple[DeliveryReport, int] | None:
        """Put a message into a batch: (its batch's outcome, its number there); None when there is no room.

        The topic must be resolved.  InvalidArgumentError, MessageTooLargeError: nothing was taken.
        """
        if len(message.body) > self._large_bytes:
            message = self._packed(message)
        size = len(message.body) + len(message.extras) + MESSAGE_OVERHEAD_BYTES
        options = self.options
        wake = False
        selected = None
        if callable(queue_key):
            selected = self._selected(message.topic, queue_key, size)
            if selected is None:
                return None
        with self.lock:
            topic = self._topic_with_room(message.topic, size)
            if topic is None:
                return None
            free = queue_key is None and queue_id is None
            if message.delay_level or message.deliver_at_ms or message.transaction_group:
                meant = topic.next_parked() if free else selected or topic.choose(message.topic, queue_key, queue_id)
                message, lane = self._parking_place(message, meant)
                free, queue_key = False, None
            elif free:
                lane = topic.sticky
                topic.took()
            else:
                lane = selected or topic.choose(message.topic, queue_key, queue_id)
            batch = lane.open
            if batch is None:
                batch = lane.open = self._new_batch(lane)
                wake = True
            index = len(batch.messages)
            batch.messages.append(message)
            if not free:
                batch.keys[index] = queue_key if isinstance(queue_key, str) else None
            batch.size_bytes += size
            self.buffered_bytes += size
            if batch.size_bytes >= options.batch_bytes:
                self._seal(lane)
                wake = True
            if wake:
                self._fresh[lane.group].append(lane)
        if wake:
            self._wake(lane)
        return batch.outcome, index

    def add_batch(self, messages: Sequence[Message], queue_key: QueueKey, queue_id: int | None) -> tuple[DeliveryReport, int] | None:
        """Put messages of one topic into a batch of their own, stored together or not at all; None when there is no room."""
        name, limit = _common_topic(messages), self.options.max_message_bytes
        messages = [self._packed(each) if len(each.body) > self._large_bytes else each for each in messages]
        size = sum(len(each.body) + len(each.extras) + MESSAGE_OVERHEAD_BYTES for each in messages)
        if size > limit:
            raise _too_large(name, f"batch of {len(messages)} messages", size, limit)
        selected = None
        if callable(queue_key):
            selected = self._selected(name, queue_key, size)
            if selected is None:
                return None
        with self.lock:
            topic = self._topic_with_room(name, size)
            if topic is None:
                return None
            free = queue_key is None and queue_id is None
            lane = topic.sticky if free else selected or topic.choose(name, queue_key, queue_id)
            self._seal(lane)
            batch = self._new_batch(lane)
            batch.messages, batch.size_bytes, batch.atomic = list(messages), size, True
            if not free:
                batch.keys[0] = queue_key if isinstance(queue_key, str) else None
            self.buffered_bytes += size
            self.append(batch)
        return batch.outcome, 0

    def _topic_with_room(self, name: str, size: int) -> Partitioner | None:
        """The queues of a topic; None when there is no room for ``size`` more bytes.  The caller holds the lock."""
        if self.closed:
            raise NotSentError("the producer is closed, or was made before the process forked")
        if self.buffered_bytes + size > self.options.max_buffered_bytes and self.buffered_bytes:
            return None
        topic = self.topics.get(name)
        if topic is None:
            raise _no_topic(name)
        return topic

    def _selected(self, name: str, selector: QueueSelector, size: int) -> QueueBatcher | None:
        """The queue that a function of the application chooses, called when there is room and without the lock: it may send itself."""
        with self.lock:
            topic = self._topic_with_room(name, size)
        return topic.choose(name, selector, None) if topic is not None else None

    def append(self, batch: ProducerBatch) -> None:
        """Put a whole batch behind the others of its queue.  The caller holds the lock."""
        lane = batch.lane
        lane.waiting.append(batch)
        self._fresh[lane.group].append(lane)
        self._wake(lane)

    def _packed(self, message: Message) -> Message:
        """What is sent of a large message.  MessageTooLargeError by the size of its body as consumers get it."""
        size, limit = len(message.body), self.options.max_message_bytes
        if size > limit:
            raise _too_large(message.topic, "body", size, limit)
        return self._compression.packed(message) if size > self.options.compress_over_bytes else message

    def _parking_place(self, message: Message, lane: QueueBatcher) -> tuple[Message, QueueBatcher]:
        """Where a message waits that may come to ``lane`` later, or never.  The caller holds the lock."""
        if message.transaction_group:
            message, queue_id = parked_half(message, lane.queue_id), 0
        else:
            message, queue_id = parked(message, lane.queue_id)
        return message, self._lane((message.topic, lane.group, queue_id))

    def _lane(self, key: tuple[str, str, int]) -> QueueBatcher:
        """The caller holds the lock: lanes are made in any thread."""
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = QueueBatcher(*key)
        return found

    def _new_batch(self, lane: QueueBatcher) -> ProducerBatch:
        now_ms = self.router.clock.monotonic_ms()
        return ProducerBatch(lane, self.new_outcome(lane), now_ms, now_ms + self.options.send_timeout_ms)

    def new_outcome(self, lane: QueueBatcher) -> DeliveryReport:
        return DeliveryReport(self._settling, lane.topic, lane.group, lane.queue_id)

    def detached_outcome(self, topic: str) -> DeliveryReport:
        """An outcome of a message that is in no batch yet."""
        return DeliveryReport(self._settling, topic, "", -1)

    def _seal(self, lane: QueueBatcher) -> None:
        """The open batch takes no more; messages without a key go on in the next queue.  The caller holds the lock."""
        batch, lane.open = lane.open, None
        if batch is not None:
            lane.waiting.append(batch)
        topic = self.topics.get(lane.topic)
        if topic is not None and topic.sticky is lane:
            topic.rotate()

    def _wake(self, lane: QueueBatcher) -> None:
        link = self._links[lane.group]
        if not link.wake_requested:
            link.wake_requested = True
            if _running_loop() is self._loop:
                self._loop.call_soon(self._woken, link)
            else:
                self._loop.call_soon_threadsafe(self._woken, link)

    def _woken(self, link: Sender) -> None:
        # First the flag: whoever adds after the look below wakes again.
        link.wake_requested = False
        with self.lock:
            fresh, self._fresh[link.group] = self._fresh[link.group], []
        for lane in fresh:
            link.add(lane)
        link.wake()

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back, on the loop, when there is room for more (or the producer is closed)."""
        with self.lock:
            self._room.append(callback)

    # What the links need

    def take(self, lane: QueueBatcher, *, idle: bool, flush: bool) -> ProducerBatch | None:
        """The next batch of a lane: a full one, or the open one when it has lingered, and nothing else is in flight or nobody lingers."""
        linger_ms = self.options.linger_ms
        with self.lock:
            if not lane.waiting and lane.open is not None:
                lingered = self.router.clock.monotonic_ms() - lane.open.created_ms >= linger_ms
                if flush or (lingered and (idle or linger_ms)):
                    self._seal(lane)
            return lane.waiting.popleft() if lane.waiting else None

    def encode(self, batch: ProducerBatch) -> None:
        """Make the record of a batch; its messages get their unique ids."""
        ids = self._ids.take(len(batch.messages))
        batch.outcome.ids = ids
        lane = batch.lane
        born_ms = self.router.clock.wall_ms()
        batch.parts = encode_messages(lane.topic, lane.queue_id, batch.messages, ids, born_ms=born_ms, born_host=self._born_host)

    def stored(self, batch: ProducerBatch, result: broker_pb2.BatchResult) -> None:
        outcome = batch.outcome
        outcome.first_offset, outcome.store_timestamp, outcome.duplicate = (
            result.first_queue_offset,
            result.store_timestamp_ms,
            result.duplicate,
        )
        self.release(batch)
        if not batch.told:
            outcome.settle()

    def expire(self, lane: QueueBatcher, now_ms: int) -> list[ProducerBatch]:
        """Take out what was never stored and whose time is up."""
        expired = []
        with self.lock:
            if lane.open is not None and now_ms >= lane.open.deadline_ms:
                self._seal(lane)
            while lane.waiting and now_ms >= lane.waiting[0].deadline_ms:
                expired.append(lane.waiting.popleft())
        for batch in expired:
            self.release(batch)
        return [batch for batch in expired if not batch.told]

    def fail(self, batch: ProducerBatch, error: DledgerError) -> None:
        """Nobody tries a batch any more."""
        self.release(batch)
        if not batch.told:
            batch.outcome.fail(error)

    def release(self, batch: ProducerBatch) -> None:
        batch.parts = None
        with self.lock:
            self.buffered_bytes -= batch.size_bytes
            waiting: list[Callable[[], object]] = []
            if self.buffered_bytes <= self.options.max_buffered_bytes * 3 // 4 or not self.buffered_bytes:
                waiting, self._room = self._room, []
        for callback in waiting:
            callback()

    # Flushing and closing

    async def flush(self) -> None:
        """Return when every message added so far is acknowledged or failed."""
        held = self.held()
        for link in self._links.values():
            link.flush()
        for outcome, _ in held:
            await settled(outcome)

    def held(self) -> list[tuple[DeliveryReport, int]]:
        """The outcomes of every message added so far that is not acknowledged, with their numbers of messages.  On the loop."""
        for link in self._links.values():
            self._woken(link)
        batches = [batch for link in self._links.values() for batch in link.batches() if not batch.told]
        return [(batch.outcome, len(batch.messages)) for batch in [*batches, *self.refused.batches()]]

    async def _serve(self, link: Sender) -> None:
        try:
            await link.run()
        except asyncio.CancelledError:
            if not self.closed:
                self._abandoned()
            raise

    def _abandoned(self) -> None:
        """The event loop ends, and nobody closed the producer."""
        lost = sum(count for _, count in self.held())
        self._end("the event loop ended before the producer was closed")
        if lost:
            _logger.error("the event loop ended before the producer was closed: %d messages were not acknowledged", lost)

    async def close(self) -> None:
        """Send what is there, then end.  What is not stored by its deadline fails."""
        await self.flush()
        with self.lock:
            self.closed = True
        await self.tasks.stop()
        self._end("the producer was closed")

    def forked(self) -> None:
        """In a forked child: the loop is not here, and locks may be held by threads that are not here either."""
        self.lock = threading.Lock()
        self.closed = True

    def _bug(self, bug: BaseException) -> None:
        """Nobody is to wait for what nobody sends any more."""
        self._end(f"the producer stopped by a bug ({type(bug).__name__}: {bug})")

    def _end(self, why: str) -> None:
        """Take nothing more, and fail what is left."""
        with self.lock:
            self.closed = True
            waiting, self._room = self._room, []
            lanes = list(self._lanes.values())
        self.refused.fail_all()
        for lane in lanes:
            for batch in lane.unresolved():
                if not batch.told and not batch.outcome.settled:
                    if batch.first_sequence != UNSENT:
                        batch.outcome.fail(OutcomeUnknownError(f"{why}; it may be stored"))
                    else:
                        batch.outcome.fail(NotSentError(f"{why}; nothing was stored"))
        for callback in waiting:
            callback()


def _too_large(topic: str, what: str, size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"{topic}: {what} of {size} bytes; expected at most {limit}", limit_bytes=limit)


def _no_topic(name: str) -> TopicNotFoundError:
    return TopicNotFoundError(f"topic {name} was there, and is gone or takes no more messages")


def _common_topic(messages: Sequence[Message]) -> str:
    """The topic of a batch that is to be stored as one.  InvalidArgumentError when there is no such batch."""
    if not messages:
        raise InvalidArgumentError("a batch without a message")
    name = messages[0].topic
    if any(message.topic != name for message in messages):
        raise InvalidArgumentError("the messages of a batch have different topics; expected one")
    if any(message.delay_level or message.deliver_at_ms for message in messages):
        raise InvalidArgumentError("a batch holds delayed messages; expected none")
    return name


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of this thread, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
