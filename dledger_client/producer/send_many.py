"""The result of many bodies sent by one call: where they are stored, batch by batch, and the future of it.

Owns reading a tree of delivery reports as ranges of the call's bodies.  A report is made for each batch, none for a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dledger_client.producer.accumulator import RecordAccumulator
from dledger_client.producer.delivery_report import ALL, NOT_AWAITED, DeliveryFuture, DeliveryReport, settled
from dledger_client.producer.message_columns import MessageColumns
from dledger_client.producer.partitioner import QueueKey
from dledger_client.producer.redispatch import without_number
from dledger_wire.batches.batch import MAX_MESSAGES
from dledger_wire.errors import DledgerError

RUN_BODIES = 250  # at least, of a call that goes to several queues
MAX_RUNS = 8  # of one call


@dataclass(frozen=True, slots=True)
class SentRange:
    """Consecutive bodies of one call that were stored together, or failed together.

    Attributes:
        first: The number of the first of them in the call.
        count: How many they are.
        replica_group: The replica group that stores them; empty when they got no queue.
        queue_id: The queue; -1 when they got none.
        queue_offset: The offset of the first in the queue, the others follow it; -1 when they are not stored.
        store_timestamp: When they were stored, milliseconds since 1970.
        duplicate: A retry found them stored already; they are stored once.
        error: What they failed with; None when they are stored.
    """

    first: int
    count: int
    replica_group: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    duplicate: bool
    error: DledgerError | None = None


class SendManyResult:
    """Where the bodies of one call are stored. Clients make it; do not construct it.

    Args:
        topic: The topic.
        count: The number of bodies.
        leaves: The first number, count and report of each batch.

    Attributes:
        topic: The topic.
        count: The number of bodies.
        ranges: The bodies by batch, in the order of the call.

    Examples:
        >>> result = producer.send_many("orders", [b"one", b"two"])
        >>> for stored in result.ranges:
        ...     print(stored.queue_id, stored.queue_offset, stored.count)
    """

    __slots__ = ("_ids", "count", "ranges", "topic")

    def __init__(self, topic: str, count: int, leaves: list[tuple[int, int, DeliveryReport]]) -> None:
        self.topic, self.count = topic, count
        self._ids = [(report.ids, number) for _, number, report in leaves]  # without the reports, whose locks cannot be pickled
        self.ranges = tuple(_range(*leaf) for leaf in leaves)

    def queue_offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each body in its queue.

        Returns:
            One offset for each body, in the order of the call.

        Examples:
            >>> last = result.queue_offsets()[-1]
        """
        offsets = [np.arange(each.queue_offset, each.queue_offset + each.count, dtype=np.int64) for each in self.ranges]
        return np.concatenate(offsets) if offsets else np.empty(0, np.int64)

    def msg_ids(self) -> list[str]:
        """The unique id that the producer gave each body.

        Returns:
            One id for each body, in the order of the call.

        Examples:
            >>> first = result.msg_ids()[0]
        """
        return [row.tobytes().decode("ascii") for ids, count in self._ids for row in ids[:count]]

    def __repr__(self) -> str:
        return f"SendManyResult({self.topic!r}, {self.count} bodies in {len(self.ranges)} batches)"


class SendManyFuture(DeliveryFuture):
    """The result of one call of ``send_many_async``, with the methods of ``concurrent.futures.Future``. A send cannot be cancelled.

    Args:
        report: The report of the whole call.
        count: The number of bodies.

    Examples:
        >>> future = producer.send_many_async("orders", [b"one", b"two"])
        >>> print(future.result(timeout=5.0).count)
    """

    __slots__ = ("_count",)

    def __init__(self, report: DeliveryReport, count: int) -> None:
        super().__init__(report, ALL)
        self._count = count

    def result(self, timeout: float | None = None) -> SendManyResult:
        """The result of the call.

        Args:
            timeout: Seconds to wait; None: until it is known.

        Returns:
            Where the bodies are stored.

        Raises:
            DledgerError: Bodies failed: what the first of them failed with, and how many are stored; ``outcomes`` says which.
            TimeoutError: The result is not known after ``timeout``; the producer continues to send.

        Examples:
            >>> result = future.result(timeout=5.0)
        """
        if not self.done():
            self._wait(timeout)
        leaves = self._leaves()
        error = _error_of(leaves, self._count)
        if error is not None:
            raise error.with_traceback(None)  # one of a batch, which may have been raised before
        return SendManyResult(self._report.topic, self._count, leaves)

    def outcomes(self, timeout: float | None = None) -> list[SentRange]:
        """What became of each body, stored or not.

        Args:
            timeout: Seconds to wait; None: until it is known.

        Returns:
            The bodies by batch, in the order of the call; those that failed have an ``error``.

        Raises:
            TimeoutError: The result is not known after ``timeout``.

        Examples:
            >>> failed = [each for each in future.outcomes() if each.error is not None]
        """
        if not self.done():
            self._wait(timeout)
        return [_range(*leaf) for leaf in self._leaves()]

    def _error(self) -> DledgerError | None:
        return _error_of(self._leaves(), self._count)

    def _leaves(self) -> list[tuple[int, int, DeliveryReport]]:
        return list(_leaves(self._report, 0, self._count))

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self._count} bodies>"


class AsyncSendManyFuture(SendManyFuture):
    """The result of one call of ``send_many_async`` for asyncio: ``await future`` waits; its methods do not.

    Args:
        report: The report of the whole call.
        count: The number of bodies.

    Examples:
        >>> result = await producer.send_many_async("orders", [b"one", b"two"])
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, SendManyResult]:
        if not self.done():
            yield from settled(self._report).__await__()
        return self.result()

    def _wait(self, timeout: float | None) -> None:
        raise asyncio.InvalidStateError(NOT_AWAITED)


def chosen_once(queue_key: QueueKey) -> QueueKey:
    """A key for all parts of a call: a function that chooses a queue is asked once, again only if the number of queues has changed."""
    return lru_cache(queue_key) if callable(queue_key) else queue_key


def run_length(count: int, queue_key: QueueKey, queue_id: Any) -> int:
    """How many bodies of a call of ``count`` go to one queue before the next one gets some: all with a key or a queue of their own.

    Each run is a batch, whose price does not depend on its bodies: runs of 100 would double the work for 1000 of them.
    """
    if queue_key is not None or queue_id is not None:
        return MAX_MESSAGES
    runs = max(1, min(MAX_RUNS, count // RUN_BODIES))
    return min(MAX_MESSAGES, max(1, -(-count // runs)))


def append_parts(
    accumulator: RecordAccumulator,
    columns: MessageColumns,
    limits: tuple[int, int],
    append: Callable[[MessageColumns, int], DeliveryReport],
) -> DeliveryReport:
    """Hand the bodies of a call to ``append`` batch by batch, each with its size: the report of the whole call.

    ``limits``: of a batch, its bytes and its messages.

    A body that is too large fails the call before anything is sent.  What follows a batch that ``append`` raises a DledgerError for fails
    with it: each would wait as long, and fail alike.
    """
    whole = accumulator.detached_report(columns.topic)
    try:
        accumulator.check_sizes(columns)
    except DledgerError as error:
        accumulator.refuse(whole, error, len(columns))
        return whole
    parts: list[tuple[int, DeliveryReport]] = []
    for first, part, size in columns.batches(*limits):
        try:
            parts.append((first, append(part, size)))
        except DledgerError as error:
            refused = accumulator.detached_report(columns.topic)
            accumulator.refuse(refused, error, len(columns) - first)
            parts.append((first, refused))
            break
    if parts:
        whole.split_into(parts)
    else:
        whole.settle()
    return whole


def _leaves(report: DeliveryReport, first: int, count: int) -> Iterator[tuple[int, int, DeliveryReport]]:
    """(first number, count, report) of the batches that the bodies of a report ended in."""
    if not report.parts:
        if count:
            yield first, count, report
        return
    starts = [start for start, _ in report.parts]
    for (start, part), end in zip(report.parts, [*starts[1:], count], strict=True):
        yield from _leaves(part, first + start, end - start)


def _range(first: int, count: int, report: DeliveryReport) -> SentRange:
    place = report.replica_group, report.queue_id, report.first_offset
    return SentRange(first, count, *place, report.store_timestamp, report.duplicate, report.error)


def _error_of(leaves: list[tuple[int, int, DeliveryReport]], count: int) -> DledgerError | None:
    """The first error, with how much of the call is stored; its own kind and details are kept."""
    failed = [(first, report.error) for first, _, report in leaves if report.error is not None]
    if not failed:
        return None
    first, error = failed[0]
    error = next((each for _, each in failed if each.outcome_unknown), error)  # one that says "nothing was stored" would be no answer then
    stored = sum(size for _, size, report in leaves if report.error is None)
    if not stored:
        return error
    why = without_number(error).message.removesuffix("; nothing was stored")
    return type(error)(f"{why}; {stored} of {count} bodies are stored, the first that is not has number {first}", **error.details)
