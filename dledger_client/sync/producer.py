"""The synchronous producer: the asyncio one's engine on the shared loop thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from dledger_client import unclosed
from dledger_client.aio.producer import Producer as AsyncProducer
from dledger_client.cluster.metadata import Bootstrap
from dledger_client.message import Message, SendResult
from dledger_client.producer.delivery_report import DeliveryReport, SendFuture
from dledger_client.producer.partitioner import QueueKey
from dledger_client.producer.settings import ProducerSettings
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire.errors import DledgerError, NotSentError


class Producer:
    """Sends messages; safe to use from many threads.  See ``dledger_client.aio.Producer`` for the settings.

    Close it, or use it in a ``with`` block.  What a producer that was left open holds is sent when the process ends in order (the end of
    the script, sys.exit, an exception), for as long as ``send_timeout_ms``; not when it is killed.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str = "",
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._serve(AsyncProducer(bootstrap, group, **settings))

    def _serve(self, inner: AsyncProducer) -> None:
        """Become the synchronous face of ``inner``."""
        self._thread = LoopThread.shared()
        self._inner = inner
        inner.has_outside = True
        self._engine = self._thread.call(lambda: self._inner.engine)
        self._timeout_ms = self._engine.options.send_timeout_ms
        unclosed.watch(self._engine)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner.described}>"

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not engine.closed:
            unclosed.warn(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def send(self, message: Message, queue_key: QueueKey = None, queue_id: int | None = None) -> SendResult:
        """Send one message and wait until a majority has it."""
        return self.send_async(message, queue_key, queue_id).result()

    def send_async(self, message: Message, queue_key: QueueKey = None, queue_id: int | None = None) -> SendFuture:
        """Send without waiting for the answer; waits only while the buffer is full.  Every error is the future's."""
        engine = self._engine
        try:
            if not engine.knows(message.topic, queue_id):
                deadline_ms = engine.router.clock.monotonic_ms() + self._timeout_ms
                self._thread.run(engine.resolve(message.topic, deadline_ms, queue_id))
            place = engine.add(message, queue_key, queue_id)
            if place is None:
                place = self._add_when_room(message, queue_key, queue_id)
            return SendFuture(*place)
        except DledgerError as error:
            outcome = engine.detached_outcome(message.topic)
            outcome.fail(error)
            return SendFuture(outcome, 0)

    def _add_when_room(self, message: Message, queue_key: QueueKey, queue_id: int | None) -> tuple[DeliveryReport, int]:
        engine = self._engine
        deadline_ms = engine.router.clock.monotonic_ms() + self._timeout_ms
        while True:
            room = threading.Event()
            engine.when_room(room.set)
            # Room may have come before the callback was there.
            place = engine.add(message, queue_key, queue_id)
            if place is not None:
                return place
            left_s = (deadline_ms - engine.router.clock.monotonic_ms()) / 1000
            if left_s <= 0 or not room.wait(left_s):
                raise NotSentError("no room in the producer's buffer in time; nothing was stored")

    def send_oneway(self, message: Message, queue_key: QueueKey = None, queue_id: int | None = None) -> None:
        """Send and forget: nobody is told what became of it."""
        self.send_async(message, queue_key, queue_id)

    def send_batch(self, messages: Sequence[Message], queue_key: QueueKey = None, queue_id: int | None = None) -> list[SendResult]:
        """Send messages of one topic as one: all are stored, in order in one queue, or none."""
        return self._thread.run(self._inner.send_batch(messages, queue_key, queue_id))

    def stored(self, topic: str) -> dict[tuple[str, int], int]:
        """By (replica group, queue id): how many messages earlier lives of this ``producer_id`` have stored there."""
        return self._thread.run(self._inner.stored(topic))

    def flush(self, timeout: float | None = None) -> None:
        """Return when everything sent so far is acknowledged or failed; TimeoutError after ``timeout`` seconds."""
        self._thread.run(self._inner.flush(), timeout)

    def close(self) -> None:
        """Flush, then close the connections.  Idempotent."""
        if not self._thread.is_inherited:
            self._thread.run(self._inner.close())


os.register_at_fork(after_in_child=unclosed.forget_inherited)
