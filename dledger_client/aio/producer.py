"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, Unpack

from dledger_client import tracing
from dledger_client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dledger_client.message import Message, SendResult
from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.core import ProducerCore
from dledger_client.producer.delivery_report import AsyncSendFuture, DeliveryReport
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_client.producer.settings import ProducerOptions, ProducerSettings
from dledger_client.runtime.environment import environment_for, takes_old_environment
from dledger_client.runtime.security import security_part
from dledger_client.unclosed import warn as warn_unclosed
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotSentError
from dledger_wire.frames.frame_layout import pack_host

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Delayed:
    """A message, or a batch, that waits for its topic's queues or for buffer room."""

    messages: list[Message]
    one: bool
    queue_key: QueueKey
    queue_id: QueueNumber | None
    deadline_ms: int
    report: DeliveryReport

    def append_to(self, accumulator: RecordAccumulator) -> tuple[DeliveryReport, int] | None:
        if self.one:
            return accumulator.append(self.messages[0], self.queue_key, self.queue_id)
        return accumulator.append_batch(self.messages, self.queue_key, self.queue_id)


class Producer:
    """Sends messages. A retry never stores a message twice.

    With asyncio, a producer is used by the tasks of one loop. Close it (``async with``, or ``await close()``)
    before the loop ends: messages that are still buffered then are lost, and a log line says how many.

    Every setting may be given by RocketMQ's name too, e.g. ``sendMsgTimeout``; see the reference of client
    settings.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the producer group, shown in status and logs.
        settings: See ``ProducerSettings``.

    Raises:
        InvalidArgumentError: A setting is outside its range.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> async with Producer("127.0.0.1:10911", group="shop", send_timeout_ms=5_000) as producer:
        ...     result = await producer.send(Message("orders", b"created", keys="order-7"), queue_key="order-7")
        ...     print(result.queue_id, result.queue_offset)
    """

    @takes_old_environment
    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str = "",
        **settings: Unpack[ProducerSettings],
    ) -> None:
        parse_bootstrap(bootstrap)
        security = security_part(settings)
        own = {name: value for name, value in settings.items() if name not in security}
        self._options = ProducerOptions.of(group, own)
        self._environment = environment_for(bootstrap, **security)
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self._opened_core: ProducerCore | None = None
        self._delayed: deque[_Delayed] = deque()
        self._adding: asyncio.Task[None] | None = None
        self._closed = False
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open

    @property
    def _core(self) -> ProducerCore:
        """Internal: made at first use, on the running loop."""
        if self._opened_core is None:
            environment = self._environment
            router = environment.open_router(self._bootstrap)
            self._opened_core = ProducerCore(router, self._options, environment.unique_ids(), pack_host(environment.address))
        return self._opened_core

    @property
    def _description(self) -> str:
        """What tells this producer from others, for people."""
        name = self._options.producer_id or self._options.group
        return f"{name!r} at {self._bootstrap}{' (closed)' if self._closed else ''}"

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._description}>"

    def __del__(self) -> None:
        core = getattr(self, "_opened_core", None)
        if core is not None and not core.closed and not self._is_wrapped:
            held = core.accumulator.buffered_bytes
            warn_unclosed(self, f" with {held} bytes of messages that are not acknowledged" if held else "")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def send(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> SendResult:
        """Send one message and wait until a majority of its replica group has stored it.

        Args:
            message: The message. Do not change it afterwards.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            Where the message is stored.

        Raises:
            NotSentError: It was not sent within ``send_timeout_ms``; nothing was stored.
            DeadlineExceededError: It was not acknowledged within ``send_timeout_ms``; it may be stored.
            TopicNotFoundError: The topic does not exist and is not created automatically.
            TopicPermissionError: The topic cannot be written to.
            MessageTooLargeError: The message is larger than ``max_message_bytes``.
            ProducerFencedError: Another producer with the same ``producer_id`` took over.

        Examples:
            >>> result = await producer.send(Message("orders", b"created"), queue_key="order-7")
        """
        return await self.send_async(message, queue_key, queue_id)

    def send_async(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> AsyncSendFuture:
        """Send one message without waiting for the acknowledgement.

        Args:
            message: The message. Do not change it afterwards.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            A future to await. It raises what ``send`` raises.

        Examples:
            >>> futures = [producer.send_async(Message("orders", b"%d" % number)) for number in range(100)]
            >>> results = [await future for future in futures]
        """
        spans = tracing.spans()
        if spans is not None:
            return spans.send(message, lambda traced: self._send_async(traced, queue_key, queue_id))
        return self._send_async(message, queue_key, queue_id)

    def _send_async(self, message: Message, queue_key: QueueKey, queue_id: QueueNumber | None) -> AsyncSendFuture:
        accumulator = self._core.accumulator
        if not self._delayed and accumulator.knows(message.topic, queue_id, by_key=queue_key is not None):
            try:
                appended = accumulator.append(message, queue_key, queue_id)
            except DledgerError as error:
                return _failed(accumulator, message, error)
            if appended is not None:
                return AsyncSendFuture(*appended)
        return AsyncSendFuture(self._delay([message], queue_key, queue_id, one=True), 0)

    async def send_batch(
        self, messages: Sequence[Message], queue_key: QueueKey = None, queue_id: QueueNumber | None = None
    ) -> list[SendResult]:
        """Send messages of one topic as one batch: all are stored, in order in one queue, or none.

        Args:
            messages: The messages; together at most ``max_message_bytes``.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            Where each message is stored.

        Raises:
            InvalidArgumentError: There is no message, or they are of several topics.
            DledgerError: What ``send`` raises.

        Examples:
            >>> results = await producer.send_batch([Message("orders", b"one"), Message("orders", b"two")])
        """
        if not messages:
            raise InvalidArgumentError("a batch without a message")
        spans = tracing.spans()
        if spans is None:
            return await self._send_batch(list(messages), queue_key, queue_id)
        with spans.sending_batch(messages) as traced:
            return await self._send_batch(traced, queue_key, queue_id)

    async def _send_batch(self, messages: list[Message], queue_key: QueueKey, queue_id: QueueNumber | None) -> list[SendResult]:
        report = self._delay(messages, queue_key, queue_id, one=False)
        return [await AsyncSendFuture(report, number) for number in range(len(messages))]

    def _delay(self, messages: list[Message], queue_key: QueueKey, queue_id: QueueNumber | None, *, one: bool) -> DeliveryReport:
        """Messages that are added when what is in front of them is, and their topic is known, and there is room."""
        core = self._core
        report = core.accumulator.detached_report(messages[0].topic)
        deadline_ms = core.router.clock.monotonic_ms() + self._options.send_timeout_ms
        self._delayed.append(_Delayed(messages, one, queue_key, queue_id, deadline_ms, report))
        if self._adding is None or self._adding.done():
            self._adding = asyncio.get_running_loop().create_task(self._add_delayed(), name="add delayed messages")
        return report

    async def _add_delayed(self) -> None:
        try:
            await self._add_all_delayed(self._core)
        except asyncio.CancelledError:
            lost, self._delayed = self._delayed, deque()
            for delayed in lost:
                error = NotSentError("the event loop ended before the producer was closed; nothing was stored")
                self._core.accumulator.refuse(delayed.report, error, len(delayed.messages))
            count = sum(len(delayed.messages) for delayed in lost)
            _logger.error("the event loop ended before the producer was closed: %d messages were not sent", count)
            raise

    async def _add_all_delayed(self, core: ProducerCore) -> None:
        while self._delayed:
            delayed = self._delayed[0]
            try:
                by_key = delayed.queue_key is not None
                await core.resolve(delayed.messages[0].topic, delayed.deadline_ms, delayed.queue_id, by_key=by_key)
                appended = delayed.append_to(core.accumulator)
                if appended is None:
                    await self._room(delayed.deadline_ms)
                    continue
            except DledgerError as error:
                self._delayed.popleft()
                core.accumulator.refuse(delayed.report, error, len(delayed.messages))
                continue
            except Exception as error:  # a selector of the application, a body that is none: those behind it go on
                _logger.exception("a message for %s cannot be sent", delayed.messages[0].topic)
                self._delayed.popleft()
                fault = NotSentError(f"it cannot be sent ({error!r}); nothing was stored")
                core.accumulator.refuse(delayed.report, fault, len(delayed.messages))
                continue
            self._delayed.popleft()
            report, index = appended
            delayed.report.split_into([(-index, report)])

    async def _room(self, deadline_ms: int) -> None:
        core = self._core
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        core.accumulator.when_room(lambda: None if room.done() else room.set_result(None))
        left_ms = deadline_ms - core.router.clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(0, left_ms) / 1000):
                await room
        except TimeoutError:
            raise NotSentError("no room in the producer's buffer in time; nothing was stored") from None

    def send_oneway(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> None:
        """Fire and forget: send one message; the result is not reported.

        Args:
            message: The message. Do not change it afterwards.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Examples:
            >>> producer.send_oneway(Message("metrics", b"1"))
        """
        self.send_async(message, queue_key, queue_id)

    async def stored(self, topic: str) -> dict[tuple[str, int], int]:
        """Take over a ``producer_id`` and count the messages that earlier producers with it have stored.

        A process with the same id that still runs is fenced: its sends fail with ProducerFencedError. An
        application that sends the same messages in the same order to each queue skips as many, and none is stored
        twice or lost. Counts are kept as long as the broker remembers the producer.

        Args:
            topic: The topic.

        Returns:
            The number of stored messages by (replica group, queue id).

        Raises:
            InvalidArgumentError: The producer has no ``producer_id``.
            DledgerError: The cluster did not respond within ``send_timeout_ms``.

        Examples:
            >>> done = await producer.stored("orders")
            >>> skip = done.get(("g0", 0), 0)
        """
        return await self._core.stored_before(topic, self._core.router.clock.monotonic_ms() + self._options.send_timeout_ms)

    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged or failed.

        Examples:
            >>> await producer.flush()
        """
        if self._adding is not None:
            await asyncio.wait([self._adding])
        if self._opened_core is not None:
            await self._opened_core.flush()

    async def close(self) -> None:
        """Flush, then close the connections. Safe to repeat.

        Examples:
            >>> await producer.close()
        """
        core = self._opened_core
        if core is None or self._closed:
            return
        self._closed = True
        await self.flush()
        await core.close()
        await core.router.close()


def _failed(accumulator: RecordAccumulator, message: Message, error: DledgerError) -> AsyncSendFuture:
    report = accumulator.detached_report(message.topic)
    accumulator.refuse(report, error)
    return AsyncSendFuture(report, 0)
