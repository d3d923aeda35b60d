"""The result of a send: one report for each batch, and a light future for each message in it.

A future holds its report and its index in the batch and nothing else, because a producer makes hundreds of thousands of them a second.
Waiters, callbacks and results are made on demand.  A report is settled once, on the client's event loop; any thread may read a future.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator
from typing import Any

from dledger_client.message import SendResult, SendStatus
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.runtime.user_callbacks import faults
from dledger_wire.check import require
from dledger_wire.errors import DledgerError

_logger = logging.getLogger(__name__)

NOT_AWAITED = "the result is not known yet; await the future"
ALL = -1  # in place of a message's index: all messages of the report

Callback = Callable[[Any], object]


class DeliveryReport:
    """The result of a batch: once settled, either an error for all of its messages or the offset of the first.

    ``parts`` are the reports of the batches that a batch was split into, each with the index of its first message.
    """

    __slots__ = (
        "_callbacks",
        "_lock",
        "duplicate",
        "error",
        "first_offset",
        "ids",
        "parts",
        "process_id",
        "queue_id",
        "replica_group",
        "settled",
        "store_timestamp",
        "topic",
    )

    def __init__(self, lock: threading.Lock, topic: str, replica_group: str, queue_id: int) -> None:
        self._lock = lock
        self.process_id = os.getpid()
        self._callbacks: list[tuple[Callable[[], object], int]] | None = None  # with the index of the message they wait for, or ALL
        self.topic, self.replica_group, self.queue_id = topic, replica_group, queue_id
        self.settled = False
        self.error: DledgerError | None = None
        self.first_offset = -1
        self.store_timestamp = 0
        self.duplicate = False
        self.ids: Any = None  # (n, 32) matrix of the unique ids
        self.parts: list[tuple[int, DeliveryReport]] | None = None

    def sibling(self, topic: str, replica_group: str, queue_id: int) -> DeliveryReport:
        """A report of another batch of the same producer."""
        return DeliveryReport(self._lock, topic, replica_group, queue_id)

    def settle(self) -> None:
        """The result is set: notify waiting callers.  Called once."""
        require(not self.settled, "a report was settled twice")
        with self._lock:
            self.settled = True
            callbacks, self._callbacks = self._callbacks, None
        for callback, _ in callbacks or ():
            _call(callback)

    def fail(self, error: DledgerError) -> None:
        self.error = error
        self.settle()

    def when_settled(self, callback: Callable[[], object], index: int = ALL) -> bool:
        """Call back when the message with that index is settled, ALL: when all are.

        False, and nothing is called, when that is so already.
        """
        report = self
        while True:
            with report._lock:
                if report.parts is None or index == ALL:
                    if report.settled:
                        return False
                    if report._callbacks is None:
                        report._callbacks = []
                    report._callbacks.append((callback, index))
                    return True
            report, index = report._part_at(index)

    def split_into(self, parts: list[tuple[int, DeliveryReport]]) -> None:
        """The batch is sent as several; this report is settled when all of theirs are, each message with its own part."""
        left = len(parts)

        def part_settled() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.settle()

        with self._lock:
            self.parts = parts
            waiting = self._callbacks or []
            self._callbacks = [(callback, index) for callback, index in waiting if index == ALL]
        for callback, index in waiting:
            if index != ALL and not self.when_settled(callback, index):
                _call(callback)
        for _, part in parts:
            if not part.when_settled(part_settled):
                part_settled()

    def settled_at(self, index: int) -> bool:
        """Whether the result of the message with that index is known, ALL: of all."""
        return self.settled if index == ALL else self._part_of(index)[0].settled

    def _part_at(self, index: int) -> tuple[DeliveryReport, int]:
        """The part that the message is in, and its index there."""
        first, part = next((first, part) for first, part in reversed(self.parts or ()) if first <= index)
        return part, index - first

    def _part_of(self, index: int) -> tuple[DeliveryReport, int]:
        report = self
        while report.parts is not None:
            report, index = report._part_at(index)
        return report, index

    def error_of(self, index: int) -> DledgerError | None:
        return self._part_of(index)[0].error

    def result_of(self, index: int) -> SendResult:
        report, index_in_part = self._part_of(index)
        if report.error is not None:
            raise report.error.with_traceback(None)  # the messages of a batch share it, and each raise would lengthen it for the next
        return SendResult(
            SendStatus.SEND_OK,
            report.ids[index_in_part].tobytes().decode("ascii"),
            report.topic,
            report.replica_group,
            report.queue_id,
            report.first_offset + index_in_part,
            report.store_timestamp,
            report.duplicate,
        )


class DeliveryFuture:
    """What the futures of sends have in common: the methods of ``concurrent.futures.Future``. A send cannot be cancelled.

    ``concurrent.futures.wait`` and ``as_completed`` take none: wait for many with the producer's ``flush``.

    Args:
        report: The report of the batch.
        index: The number of the message in the batch.
    """

    __slots__ = ("_index", "_report")

    def __init__(self, report: DeliveryReport, index: int) -> None:
        self._report = report
        self._index = index

    def done(self) -> bool:
        """Whether the result is known; of several bodies, those of all.

        Examples:
            >>> finished = future.done()
        """
        report = self._report
        return report.settled if report.parts is None else report.settled_at(self._index)

    def running(self) -> bool:
        """Whether the result is not known yet.

        Examples:
            >>> waits = future.running()
        """
        return not self.done()

    def cancel(self) -> bool:
        """For code that takes any future; a send goes on.

        Returns:
            False.

        Examples:
            >>> cancelled = future.cancel()
        """
        return False

    def cancelled(self) -> bool:
        """Whether it was cancelled: never.

        Examples:
            >>> cancelled = future.cancelled()
        """
        return False

    def exception(self, timeout: float | None = None) -> DledgerError | None:
        """The error of the send.

        Args:
            timeout: Seconds to wait; None: until the producer's ``send_timeout_ms`` has passed.

        Returns:
            What ``result`` would raise; None when everything is stored.

        Raises:
            TimeoutError: The result is not known after ``timeout``.

        Examples:
            >>> error = future.exception()
        """
        if not self.done():
            self._wait(timeout)
        return self._error()

    def add_done_callback(self, callback: Callback) -> None:
        """Call a function when the result is known.

        Args:
            callback: Called with the future, on the client's event loop, or at once when the result is known already. It must not block.

        Examples:
            >>> future.add_done_callback(lambda done: print(done.exception()))
        """
        if not self._report.when_settled(lambda: callback(self), self._index):
            callback(self)

    def _wait(self, timeout: float | None) -> None:
        wait_settled(self._report, timeout, self._index)

    def _error(self) -> DledgerError | None:
        return self._report.error_of(self._index)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self._error() or 'stored') if self.done() else 'pending'}>"


class SendFuture(DeliveryFuture):
    """The result of one sent message, with the methods of ``concurrent.futures.Future``. A send cannot be cancelled.

    ``concurrent.futures.wait`` and ``as_completed`` take none: wait for many with the producer's ``flush``.

    Args:
        report: The report of the batch.
        index: The number of the message in the batch.

    Examples:
        >>> future = producer.send_async(Message("orders", b"one"))
        >>> print(future.result(timeout=5.0).queue_offset)
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> SendResult:
        """The result of the send.

        Args:
            timeout: Seconds to wait; None: until the producer's ``send_timeout_ms`` has passed.

        Returns:
            Where the message is stored.

        Raises:
            DledgerError: The message failed; ``outcome_unknown`` says whether it may be stored.
            TimeoutError: The result is not known after ``timeout``; the producer continues to send.

        Examples:
            >>> result = future.result(timeout=5.0)
        """
        if not self.done():
            self._wait(timeout)
        return self._report.result_of(self._index)


class AsyncSendFuture(SendFuture):
    """The result of one sent message for asyncio: ``await future`` waits; ``result`` and ``exception`` do not.

    Args:
        report: The report of the batch.
        index: The number of the message in the batch.

    Examples:
        >>> result = await producer.send_async(Message("orders", b"one"))
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self.done():
            yield from settled(self._report, self._index).__await__()
        return self._report.result_of(self._index)

    def _wait(self, timeout: float | None) -> None:
        raise asyncio.InvalidStateError(NOT_AWAITED)


def wait_settled(report: DeliveryReport, timeout: float | None, index: int = ALL) -> None:
    """Block until the message with that index is settled, ALL: until all are.  TimeoutError after ``timeout`` seconds."""
    _check_not_inherited(report)
    if timeout is None or timeout > 0:
        LoopThread.refuse_in_callback()
    known = threading.Event()
    if report.when_settled(known.set, index) and not known.wait(timeout):
        raise TimeoutError(f"not acknowledged within {timeout:g} s; the producer goes on trying until its own deadline")


async def settled(report: DeliveryReport, index: int = ALL) -> None:
    """Wait until the message with that index is settled, ALL: until all are."""
    _check_not_inherited(report)
    waiter = asyncio.get_running_loop().create_future()
    if report.when_settled(lambda: _wake_up(waiter), index):
        await waiter


def _wake_up(waiter: asyncio.Future[None]) -> None:
    if waiter.done():
        return
    loop = waiter.get_loop()
    if asyncio._get_running_loop() is loop:
        waiter.set_result(None)
    else:  # it is not the client's, and would sleep on
        loop.call_soon_threadsafe(_wake_up, waiter)


def _check_not_inherited(report: DeliveryReport) -> None:
    """Before the lock is taken, which a thread of the parent may have held."""
    if report.process_id != os.getpid():
        raise RuntimeError("this was sent before the process forked; only the process that sent it learns what became of it")


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except faults():
        _logger.exception("a callback of a send failed")
