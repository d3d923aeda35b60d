"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import Unpack

from dledger_client import tracing
from dledger_client.aio.base import AsyncClient
from dledger_client.aio.delayed_sends import DelayedSends
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.message import Message, SendResult
from dledger_client.producer.accumulator import no_message
from dledger_client.producer.core import ProducerCore
from dledger_client.producer.delivery_report import AsyncSendFuture, DeliveryReport, settled
from dledger_client.producer.message_columns import Bodies, MessageColumns, Texts
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_client.producer.send_many import AsyncSendManyFuture, SendManyResult, append_parts, chosen_once, run_length
from dledger_client.producer.settings import ProducerOptions, ProducerSettings
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import security_part
from dledger_client.unclosed import warn as warn_unclosed
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.frames.frame_layout import pack_host
from dledger_wire.rpc import methods


class Producer(AsyncClient):
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

    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str = "",
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        security = security_part(settings)
        own = {name: value for name, value in settings.items() if name not in security}
        self._options = ProducerOptions.of(group, own)
        self._environment = environment_for(bootstrap, **security)
        self._opened_core: ProducerCore | None = None
        self._ending: asyncio.Task[None] | None = None  # what closes, whichever caller waits for it
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open

    @property
    def _core(self) -> ProducerCore:
        """Internal: made at first use, on the running loop."""
        if self._opened_core is None:
            environment = self._environment
            router = environment.open_router(self._bootstrap)
            self._opened_core = ProducerCore(router, self._options, environment.unique_ids(), pack_host(environment.address))
            self._delayed = DelayedSends(self._opened_core)
        return self._opened_core

    @property
    def blocked(self) -> str:
        """The alarms that messages of this producer wait for, with their nodes; empty while none waits for one."""
        core = self._opened_core
        return core.accumulator.blocked.reason if core is not None else ""

    @property
    def throttled_s(self) -> float:
        """For how many seconds quotas have held this producer back, at all leaders together."""
        core = self._opened_core
        return core.accumulator.throttled_ms / 1000 if core is not None else 0.0

    @property
    def _closed(self) -> bool:
        return self._ending is not None

    @property
    def _description(self) -> str:
        """A name of this producer, for people."""
        name = self._options.producer_id or self._options.group
        return f"{name!r} at {self._bootstrap}{' (closed)' if self._closed else ''}"

    def __del__(self) -> None:
        core = getattr(self, "_opened_core", None)
        if core is not None and not core.closed and not self._is_wrapped:
            held = core.accumulator.buffered_bytes
            warn_unclosed(self, f" with {held} bytes of messages that are not acknowledged" if held else "")

    async def send(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> SendResult:
        """Send one message and wait until a majority of its replica group has stored it.

        A call that is cancelled or interrupted does not take the message back: it may still be stored.

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
        self._require_loop()
        if tracing.API in sys.modules and tracing.spans() is not None:
            return await self.send_async(message, queue_key, queue_id)
        report, index = self._append(message, queue_key, queue_id)
        await settled(report, index)
        return report.result_of(index)

    def send_async(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> AsyncSendFuture:
        """Send one message without waiting for the acknowledgement.

        It never waits. What finds no room in the buffer waits for it beside the buffer, until ``send_timeout_ms``. A caller that
        sends without end awaits some of the futures now and then.

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
        return AsyncSendFuture(*self._append(message, queue_key, queue_id))

    def _append(self, message: Message, queue_key: QueueKey, queue_id: QueueNumber | None) -> tuple[DeliveryReport, int]:
        """The report of the batch that the message is in, or waits to be, and its number in there."""
        accumulator, delayed = self._core.accumulator, self._delayed
        if not delayed.lines or getattr(message, "topic", "") not in delayed.lines:
            try:
                appended = accumulator.append_known(message, queue_key, queue_id)
            except DledgerError as error:
                report = accumulator.detached_report(message.topic)
                accumulator.refuse(report, error)
                return report, 0
            if appended is not None:
                return appended
        append = partial(accumulator.append, message, queue_key, queue_id)
        return delayed.add(message.topic, (1, 0), append, queue_key, queue_id), 0

    async def send_many(
        self,
        topic: str,
        bodies: Bodies,
        *,
        keys: Texts = "",
        tags: Texts = "",
        queue_key: QueueKey = None,
        queue_id: QueueNumber | None = None,
    ) -> SendManyResult:
        """Send many bodies at once and wait until all are stored. Several times as fast as one send a message.

        The bodies go to the topic's queues in turn, in batches of at most ``batch_bytes``; a call of 500 or more to several queues. Batches
        are stored whole; those of one queue, so all with a ``queue_key`` or ``queue_id``, keep the order of the bodies.

        Args:
            topic: The topic.
            bodies: The contents: a list of bytes, a numpy array (of bytes, or with a row of uint8 for each body) or an Arrow array of
                bytes.
            keys: Keys of all messages, or a list with those of each.
            tags: The tag of all messages, or a list with that of each.
            queue_key: One key for all bodies, which chooses their queue; or a function of the number of queues.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            Where the bodies are stored, batch by batch.

        Raises:
            TypeError: A body is no bytes, or a key or tag no text.
            InvalidArgumentError: There are more or fewer keys or tags than bodies, or one of them cannot be stored.
            MessageTooLargeError: A body is larger than ``max_message_bytes``; nothing was sent.
            DledgerError: Bodies failed with what ``send`` raises. The error says how many are stored; ``send_many_async`` has a future
                that says which.

        Examples:
            >>> result = await producer.send_many("orders", [b"one", b"two", b"three"], tags="created")
            >>> result.count
            3
        """
        self._require_loop()
        return await self.send_many_async(topic, bodies, keys=keys, tags=tags, queue_key=queue_key, queue_id=queue_id)

    def send_many_async(
        self,
        topic: str,
        bodies: Bodies,
        *,
        keys: Texts = "",
        tags: Texts = "",
        queue_key: QueueKey = None,
        queue_id: QueueNumber | None = None,
    ) -> AsyncSendManyFuture:
        """Send many bodies at once without waiting for the acknowledgement.

        Args:
            topic: The topic.
            bodies: The contents, see ``send_many``. Do not change them before the result is known.
            keys: Keys of all messages, or a list with those of each.
            tags: The tag of all messages, or a list with that of each.
            queue_key: One key for all bodies, which chooses their queue; or a function of the number of queues.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            One future for all of them. It raises what ``send_many`` raises.

        Raises:
            TypeError: A body is no bytes, or a key or tag no text.
            InvalidArgumentError: There are more or fewer keys or tags than bodies, or one of them cannot be stored.

        Examples:
            >>> futures = [producer.send_many_async("orders", [b"one"] * 1000) for _ in range(10)]
            >>> results = [await future for future in futures]
        """
        columns = MessageColumns.of(topic, bodies, keys, tags)
        spans = tracing.spans()
        if spans is not None:
            return spans.send_many(columns, lambda traced: self._send_columns(traced, queue_key, queue_id))
        return self._send_columns(columns, queue_key, queue_id)

    def _send_columns(self, columns: MessageColumns, queue_key: QueueKey, queue_id: QueueNumber | None) -> AsyncSendManyFuture:
        accumulator, delayed = self._core.accumulator, self._delayed
        queue_key = chosen_once(queue_key)
        is_delayed = False

        def send(part: MessageColumns, size: int) -> DeliveryReport:
            nonlocal is_delayed
            append = partial(accumulator.append_columns, part, size, queue_key, queue_id)
            if part.topic not in delayed.lines and accumulator.knows(part.topic, queue_id, by_key=queue_key is not None):
                appended = append()
                if appended is not None:
                    return appended[0]
            follows, is_delayed = is_delayed, True
            return delayed.add(part.topic, (len(part), 0), append, queue_key, queue_id, follows=follows)

        count = len(columns)
        limits = self._options.batch_bytes, run_length(count, queue_key, queue_id)
        return AsyncSendManyFuture(append_parts(accumulator, columns, limits, send), count)

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
        self._require_loop()
        if not messages:
            raise InvalidArgumentError("a batch without a message")
        messages = list(messages)
        for message in messages:
            if not isinstance(message, Message):
                raise no_message(message)
        spans = tracing.spans()
        if spans is None:
            return await self._send_batch(messages, queue_key, queue_id)
        with spans.sending_batch(messages, self._options.max_message_bytes) as traced:
            return await self._send_batch(traced, queue_key, queue_id)

    async def _send_batch(self, messages: list[Message], queue_key: QueueKey, queue_id: QueueNumber | None) -> list[SendResult]:
        append = partial(self._core.accumulator.append_batch, messages, queue_key, queue_id)
        report = self._delayed.add(messages[0].topic, (len(messages), 0), append, queue_key, queue_id)
        return [await AsyncSendFuture(report, number) for number in range(len(messages))]

    def send_oneway(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> None:
        """Fire and forget: send one message; the result is not reported.

        Args:
            message: The message. Do not change it afterwards.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Raises:
            ClientClosedError: The producer is closed, or was made before the process forked.

        Examples:
            >>> producer.send_oneway(Message("metrics", b"1"))
        """
        self._core.require_open()
        self.send_async(message, queue_key, queue_id)

    async def recall(self, topic: str, sent: SendResult) -> None:
        """Recall a message that was sent with ``deliver_at_ms``: it is never delivered, whichever node leads then. Safe to repeat.

        Args:
            topic: The topic that it was sent to.
            sent: What its send returned: where it is stored until then.

        Raises:
            InvalidArgumentError: It does not wait: its time has come, or it had none.
            OutcomeUnknownError: It was not acknowledged in time; the message may be recalled.
            DledgerError: The cluster did not respond within ``send_timeout_ms``.

        Examples:
            >>> sent = await producer.send(Message("reminders", b"call back", deliver_at_ms=at_ms))
            >>> await producer.recall("reminders", sent)
        """
        self._require_loop()
        core = self._core
        core.require_open()
        request = broker_pb2.RecallMessageRequest(topic=topic, unique_id=sent.msg_id, offset=max(0, sent.queue_offset))
        deadline_ms = core.deadline_ms()
        await core.router.ensure_group(sent.replica_group, deadline_ms)
        await core.router.call_leader(sent.replica_group, methods.RECALL_MESSAGE, request, deadline_ms=deadline_ms)

    async def stored(self, topic: str) -> dict[tuple[str, int], int]:
        """Take over a ``producer_id`` and count the messages that earlier producers with it have stored.

        A process with the same id that still runs is fenced: its sends fail with ProducerFencedError. An
        application that sends the same messages in the same order to each queue skips as many, and none is stored
        twice or lost. Counts are kept until the producer was silent for 7 days, or has too many younger ones of its user beside it.

        Args:
            topic: The topic.

        Returns:
            The number of stored messages by (replica group, queue id).

        Raises:
            InvalidArgumentError: The producer has no ``producer_id``.
            ProducerForgottenError: The counts are not known any more; messages may be stored that they would have counted.
            DledgerError: The cluster did not respond within ``send_timeout_ms``.

        Examples:
            >>> done = await producer.stored("orders")
            >>> skip = done.get(("g0", 0), 0)
        """
        return await self._core.stored_before(topic, self._core.deadline_ms())

    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged or failed.

        Examples:
            >>> await producer.flush()
        """
        self._require_loop()
        if self._opened_core is not None:
            await self._opened_core.flush()

    async def close(self) -> None:
        """Flush, then close the connections. Safe to repeat.

        Examples:
            >>> await producer.close()
        """
        if self._ending is None:
            self._require_loop()
            self._ending = asyncio.get_running_loop().create_task(self._shut_down(), name="close producer")
        await asyncio.shield(self._ending)  # a call that is cancelled leaves nothing half closed

    def _require_loop(self) -> None:
        """RuntimeError on another loop than before: what is awaited there would not wake it."""
        core = self._opened_core
        if core is not None and core.loop is not asyncio.get_running_loop() and not core.closed:
            core.router.channels.require_loop()

    async def _shut_down(self) -> None:
        core = self._core  # also before its first use: it is to refuse what comes later
        await core.close()
        await core.router.close()
