"""Sending from threads: messages go to the accumulator in the caller's thread, without a trip to the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

from dledger_client import tracing, unclosed
from dledger_client.aio.delayed_sends import NO_ROOM, Append
from dledger_client.aio.producer import Producer as AsyncProducer
from dledger_client.message import Message, SendResult
from dledger_client.producer.batches import size_of
from dledger_client.producer.delivery_report import DeliveryReport, SendFuture
from dledger_client.producer.message_columns import Bodies, MessageColumns, Texts
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_client.producer.send_many import SendManyFuture, SendManyResult, append_parts, chosen_once, run_length
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.sync.base import SyncClient
from dledger_wire.errors import DledgerError, NotSentError

LOOK_S = 0.5  # at most, until the loop says what is in flight


class ProducerBase(SyncClient[AsyncProducer]):
    """The hand-written part of ``Producer``."""

    _sync_notes: ClassVar[str] = """
    Safe to use from many threads. Close it, or use it in a ``with`` block. What an open producer holds when the process ends in order (the
    end of the script, ``sys.exit``, an exception) is still sent, for at most ``send_timeout_ms``; not when the process is killed.
    """

    def _open(self, make: Callable[[], AsyncProducer]) -> None:
        super()._open(make)
        self._core = self._call(lambda: self._inner._core)
        self._accumulator, self._delayed = self._core.accumulator, self._inner._delayed
        unclosed.watch(self._core)

    def _finish(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            super()._finish(close)
        except KeyboardInterrupt:
            unclosed.break_off(self._core)
            raise

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and not core.closed:
            unclosed.warn(self)

    def _sync_send(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> SendResult:
        LoopThread.refuse_in_callback()  # before the message is on its way
        return self._sync_send_async(message, queue_key, queue_id).result()

    def _sync_send_async(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> SendFuture:
        """Send one message without waiting for the acknowledgement; blocks only while the buffer is full, in a callback never.

        Args:
            message: The message. Do not change it afterwards.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            A future like ``concurrent.futures.Future``; every error is the future's.

        Examples:
            >>> future = producer.send_async(Message("orders", b"created"), queue_key="order-1")
            >>> future.add_done_callback(lambda done: print(done.exception() or done.result()))
        """
        spans = tracing.spans()
        if spans is not None:
            return spans.send(message, lambda traced: self._send_from_thread(traced, queue_key, queue_id))
        return self._send_from_thread(message, queue_key, queue_id)

    def _send_from_thread(self, message: Message, queue_key: QueueKey, queue_id: QueueNumber | None) -> SendFuture:
        accumulator = self._accumulator
        try:
            waiting, appended = self._delayed.lines, None
            if not waiting or getattr(message, "topic", "") not in waiting:
                appended = accumulator.append_known(message, queue_key, queue_id)
            if appended is None:
                if self._thread.is_current:
                    waits = self._inner._send_async(message, queue_key, queue_id)
                    return SendFuture(waits._report, waits._index)
                append = partial(accumulator.append, message, queue_key, queue_id)
                if self._must_wait(message.topic, queue_key, queue_id):
                    return SendFuture(self._delay(message.topic, (1, size_of((message,))), append, queue_key, queue_id), 0)
                appended = append() or self._append_when_room(append)
            return SendFuture(*appended)
        except DledgerError as error:
            report = accumulator.detached_report(message.topic)
            accumulator.refuse(report, error)
            return SendFuture(report, 0)

    def _must_wait(self, topic: str, queue_key: QueueKey, queue_id: QueueNumber | None) -> bool:
        """Whether the topic's queues are not known yet, or what was sent to it before waits for them, or for room."""
        return topic in self._delayed.lines or not self._accumulator.knows(topic, queue_id, by_key=queue_key is not None)

    def _delay(
        self,
        topic: str,
        size: tuple[int, int],
        append: Append,
        queue_key: QueueKey,
        queue_id: QueueNumber | None,
        *,
        follows: bool = False,
    ) -> DeliveryReport:
        """Leave it to the loop to append ``size``, a number of messages and of bytes.  What waits there is bounded as the buffer is."""

        async def add() -> DeliveryReport:
            await self._delayed.room(size[1])
            return self._delayed.add(topic, size, append, queue_key, queue_id, follows=follows)

        return self._run(add())

    def _sync_send_many(
        self,
        topic: str,
        bodies: Bodies,
        *,
        keys: Texts = "",
        tags: Texts = "",
        queue_key: QueueKey = None,
        queue_id: QueueNumber | None = None,
    ) -> SendManyResult:
        LoopThread.refuse_in_callback()
        return self._sync_send_many_async(topic, bodies, keys=keys, tags=tags, queue_key=queue_key, queue_id=queue_id).result()

    def _sync_send_many_async(
        self,
        topic: str,
        bodies: Bodies,
        *,
        keys: Texts = "",
        tags: Texts = "",
        queue_key: QueueKey = None,
        queue_id: QueueNumber | None = None,
    ) -> SendManyFuture:
        """Send many bodies at once without waiting for the acknowledgement; blocks only while the buffer is full, in a callback never.

        Args:
            topic: The topic.
            bodies: The contents, see ``send_many``. Do not change them before the result is known.
            keys: Keys of all messages, or a list with those of each.
            tags: The tag of all messages, or a list with that of each.
            queue_key: One key for all bodies, which chooses their queue; or a function of the number of queues.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            One future for all of them, like ``concurrent.futures.Future``; what the cluster refuses is the future's error.

        Raises:
            TypeError: A body is no bytes, or a key or tag no text.
            InvalidArgumentError: There are more or fewer keys or tags than bodies, or one of them cannot be stored.

        Examples:
            >>> future = producer.send_many_async("orders", [b"one"] * 1000)
            >>> print(future.result().count)
        """
        columns = MessageColumns.of(topic, bodies, keys, tags)
        spans = tracing.spans()
        if spans is not None:
            return spans.send_many(columns, lambda traced: self._send_columns(traced, queue_key, queue_id))
        return self._send_columns(columns, queue_key, queue_id)

    def _send_columns(self, columns: MessageColumns, queue_key: QueueKey, queue_id: QueueNumber | None) -> SendManyFuture:
        if self._thread.is_current:
            return SendManyFuture(self._inner._send_columns(columns, queue_key, queue_id)._report, len(columns))
        queue_key = chosen_once(queue_key)

        is_delayed = False

        def send(part: MessageColumns, size: int) -> DeliveryReport:
            nonlocal is_delayed
            append = partial(self._accumulator.append_columns, part, size, queue_key, queue_id)
            if self._must_wait(part.topic, queue_key, queue_id):
                follows, is_delayed = is_delayed, True
                return self._delay(part.topic, (len(part), size), append, queue_key, queue_id, follows=follows)
            return (append() or self._append_when_room(append))[0]

        count = len(columns)
        limits = self._core.options.batch_bytes, run_length(count, queue_key, queue_id)
        return SendManyFuture(append_parts(self._accumulator, columns, limits, send), count)

    def _append_when_room(self, append: Callable[[], tuple[DeliveryReport, int] | None]) -> tuple[DeliveryReport, int]:
        clock = self._core.router.clock
        deadline_ms = self._core.deadline_ms()
        while True:
            room = threading.Event()
            self._accumulator.when_room(room.set)
            # Room may have come before the callback was registered.
            appended = append()
            if appended is not None:
                return appended
            left_s = (deadline_ms - clock.monotonic_ms()) / 1000
            if left_s <= 0 or not room.wait(left_s):
                raise NotSentError(NO_ROOM)

    def _sync_send_oneway(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> None:
        self._core.require_open()
        self._sync_send_async(message, queue_key, queue_id)

    def _sync_flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or failed.

        Args:
            timeout: Seconds to wait at most; None: as long as it takes, which is ``send_timeout_ms`` at most.

        Raises:
            TimeoutError: Messages are still in flight after ``timeout``.

        Examples:
            >>> producer.flush(timeout=5.0)
        """
        try:
            self._run(self._inner.flush(), timeout)
        except TimeoutError:
            if self._is_in_flight():
                text = f"messages are still in flight after {timeout:g} s; the producer goes on trying until their own deadlines"
                raise TimeoutError(text) from None

    def _is_in_flight(self) -> bool:
        """Whether anything is not acknowledged.  Without time, a flush has not even looked."""

        async def look() -> bool:
            return bool(self._core.held())

        try:
            return self._run(look(), LOOK_S)
        except TimeoutError:
            return True  # a callback holds the loop up, maybe until the caller goes on
