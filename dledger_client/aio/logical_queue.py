"""A logical queue: one ordered queue over all queues of a topic.

Owns the numbering.  Message n is message n // N of physical queue n % N, N being the number of queues of all replica
groups, in the order of the groups' names and the queues' numbers; so its place says its number and nothing more is
stored.  That needs one writer at a time: it writes under a producer id of the topic, and a successor fences it before it
looks where to go on.  A failed writer may leave gaps (message 9 not stored, 10 stored); the successor fills them with
markers that readers skip, so no reader waits for a message that will not come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias, Unpack

from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.producer import Producer
from dledger_client.cluster.channels import Bootstrap
from dledger_client.fetch.options import PullSettings
from dledger_client.fetch.records import NumberedMessage, ReceivedMessage
from dledger_client.message import Message, SendResult
from dledger_client.producer.delivery_report import AsyncSendFuture
from dledger_client.producer.partitioner import QueueSelector
from dledger_client.producer.settings import ProducerSettings
from dledger_client.runtime.security import security_part
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotSentError
from dledger_wire.status import Perm

GAP = "LOGICAL_GAP"
MAX_GAP = 1 << 20
AHEAD_MESSAGES = 512
Place: TypeAlias = tuple[str, int]  # replica group and queue id of a physical queue


async def _physical_queues(consumer: PullConsumer, topic: str) -> list[Place]:
    """All physical queues, in the order of the numbering.  NotReadyError while a replica group that may have some does not answer."""
    found = await consumer.topic(topic)
    for part in found:
        if part.read_queues != part.write_queues or not part.perm & Perm.READ:
            raise InvalidArgumentError(f"topic {topic}: expected as many queues to read as to write, and both permitted", topic=topic)
    return [(part.replica_group, number) for part in found for number in range(part.read_queues)]


class LogicalQueueWriter:
    """Writes a topic as one ordered queue. A second writer of the topic fences the first.

    With asyncio, call ``open`` before the first ``send``, or use ``async with``.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        topic: The topic, with as many write queues as read queues.
        settings: See ``ProducerSettings``.

    Raises:
        InvalidArgumentError: A setting is outside its range.
        ConfigError: A file of ``SecuritySettings`` cannot be used.

    Examples:
        >>> async with LogicalQueueWriter("127.0.0.1:10911", "ledger") as writer:
        ...     number = await writer.send(Message("ledger", b"first"))
    """

    def __init__(self, bootstrap: Bootstrap, topic: str, **settings: Unpack[ProducerSettings]) -> None:
        self._topic = topic
        settings.setdefault("producer_id", f"logical-queue-{topic}")
        self._producer = Producer(bootstrap, **settings)
        self._consumer = PullConsumer(bootstrap, **security_part(settings))
        self._queues: list[Place] = []
        self._next = 0
        self._broken: DledgerError | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def next_number(self) -> int:
        """The number that the next message gets."""
        return self._next

    async def open(self) -> int:
        """Fence an earlier writer and fill the gaps it left.

        Returns:
            The number that the next message gets.

        Raises:
            InvalidArgumentError: The topic's queues do not hold a logical queue.
            NotReadyError: A replica group that may have queues of the topic does not answer.

        Examples:
            >>> number = await writer.open()
        """
        self._queues = await _physical_queues(self._consumer, self._topic)
        width = len(self._queues)
        await self._producer.stored(self._topic)
        ends = await self._ends()
        first_missing = min(end * width + queue for queue, end in enumerate(ends))
        self._next = max((end - 1) * width + queue for queue, end in enumerate(ends)) + 1 if any(ends) else 0
        if self._next - first_missing > MAX_GAP:
            text = f"topic {self._topic}: its queues hold {ends}; expected those of a logical queue, which fill evenly"
            raise InvalidArgumentError(f"{text} (written by others, or its number of queues was changed?)", topic=self._topic)
        gaps = [number for number in range(first_missing, self._next) if number // width >= ends[number % width]]
        await asyncio.gather(*[self._send(number, Message(self._topic, b"", properties={GAP: "1"})) for number in gaps])
        return self._next

    async def _ends(self) -> list[int]:
        held = await self._consumer.offsets(self._topic)
        return [held[queue].max_offset for queue in self._queues]

    async def send(self, message: Message) -> int:
        """Send one message and wait until a majority has stored it.

        After any error the writer cannot be used any more, since later messages may be stored: open a new writer,
        which goes on behind them.

        Args:
            message: A message of the writer's topic.

        Returns:
            Its number.

        Raises:
            NotSentError: An earlier message failed; nothing was stored.
            InvalidArgumentError: The writer is not open, the message is of another topic, or another producer writes to the topic.
            DledgerError: What ``Producer.send`` raises.

        Examples:
            >>> number = await writer.send(Message("ledger", b"first"))
        """
        if message.topic != self._topic:
            raise InvalidArgumentError(f"a message for topic {message.topic}; expected {self._topic}")
        if not self._queues:
            raise InvalidArgumentError("the writer is not open yet: call open first, or use it in a with block")
        if self._broken is not None:
            raise NotSentError(f"the writer broke: {self._broken.message}; nothing was stored, open a new one")
        number, self._next = self._next, self._next + 1
        await self._send(number, message)
        return number

    async def _send(self, number: int, message: Message) -> SendResult:
        sent = self._producer.send_async(message, queue_key=self._selector(number % len(self._queues)))
        try:
            await sent
        except DledgerError:
            pass  # see below
        except asyncio.CancelledError:  # it is sent nevertheless, and what comes of it counts
            sent.add_done_callback(partial(self._noted, number))
            raise
        return self._checked(number, sent)

    def _noted(self, number: int, sent: AsyncSendFuture) -> None:
        with contextlib.suppress(DledgerError):
            self._checked(number, sent)

    def _checked(self, number: int, sent: AsyncSendFuture) -> SendResult:
        """Where the message is.  Any error breaks the writer, also that it is not where its number says."""
        width = len(self._queues)
        queue, offset = self._queues[number % width], number // width
        try:
            result = sent.result()
        except DledgerError as error:
            self._broken = self._broken or error
            raise
        if (result.replica_group, result.queue_id, result.queue_offset) != (*queue, offset):
            where = f"{self._topic} {result.replica_group}/{result.queue_id}"
            self._broken = InvalidArgumentError(
                f"{where}: message {number} is at {result.queue_offset}, expected {offset} of {queue[0]}/{queue[1]}; "
                "another producer writes to this topic, or its queues were changed"
            )
            raise self._broken
        return result

    def _selector(self, place: int) -> QueueSelector:
        """Chooses one of the physical queues; raises when there are not as many any more."""

        def select(count: int) -> int:
            if count != len(self._queues):
                raise ValueError(f"the topic has {count} queues now; expected {len(self._queues)}")
            return place

        return select

    async def close(self) -> None:
        """Flush and close the connections. Safe to repeat.

        Examples:
            >>> await writer.close()
        """
        await self._producer.close()
        await self._consumer.close()


class LogicalQueueReader:
    """Reads what ``LogicalQueueWriter`` wrote, in the order of the numbers.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        topic: The topic.
        group: Name of the consumer group, for ``commit`` and ``seek_committed``.
        settings: See ``PullSettings``.

    Raises:
        InvalidArgumentError: An argument is outside its range.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> async with LogicalQueueReader("127.0.0.1:10911", "ledger") as reader:
        ...     for found in await reader.read(max_messages=100):
        ...         print(found.number, found.message.body)
    """

    def __init__(self, bootstrap: Bootstrap, topic: str, group: str = "", **settings: Unpack[PullSettings]) -> None:
        self._topic = topic
        self._consumer = PullConsumer(bootstrap, group, **settings)
        self._queues: list[Place] = []
        self._ahead: list[deque[ReceivedMessage]] = []
        self._offsets: list[int] = []  # where each physical queue is fetched next
        self._next = -1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def next_number(self) -> int:
        """The number that is read next; -1 before the first read without a seek."""
        return self._next

    async def _begun_queues(self) -> list[Place]:
        """The physical queues, to start again in."""
        self._consumer._epochs.restarts(self._topic)
        return await _physical_queues(self._consumer, self._topic)

    async def seek(self, number: int) -> None:
        """Continue at a message.

        Args:
            number: Its number.

        Examples:
            >>> await reader.seek(1_000)
        """
        self._queues = await self._begun_queues()
        width = len(self._queues)
        self._next = number
        self._ahead = [deque() for _ in range(width)]
        self._offsets = [-(-(number - queue) // width) if number > queue else 0 for queue in range(width)]

    async def seek_start(self) -> None:
        """Continue at the first number from which on no message has expired.

        Examples:
            >>> await reader.seek_start()
        """
        queues, held = await self._begun_queues(), await self._consumer.offsets(self._topic)
        least = [held[queue].min_offset for queue in queues]
        await self.seek(max((offset - 1) * len(queues) + place + 1 if offset else 0 for place, offset in enumerate(least)))

    async def seek_committed(self) -> None:
        """Continue at the committed number of the consumer group; at the start when it has none.

        Examples:
            >>> await reader.seek_committed()
        """
        queues, found = await self._begun_queues(), await self._consumer.committed(self._topic)
        if not found.keys() >= set(queues):
            await self.seek_start()
        else:
            await self.seek(min(found[queue] * len(queues) + place for place, queue in enumerate(queues)))

    async def read(self, max_messages: int = 32, wait_ms: int = 0) -> list[NumberedMessage]:
        """The next messages, in order.

        Args:
            max_messages: Messages to return at most.
            wait_ms: At the end of the queue, wait so many milliseconds for new messages.

        Returns:
            The messages with their numbers; empty at the end of the queue.

        Raises:
            DledgerError: What ``PullConsumer.fetch`` raises.

        Examples:
            >>> found = await reader.read(max_messages=100, wait_ms=1_000)
        """
        if self._next < 0:
            await self.seek_start()
        taken: list[ReceivedMessage] = []
        try:
            found = await self._take(taken, max_messages, wait_ms)
        except BaseException:  # cancelled, say: what was taken was not returned, so the next call returns it
            for number, message in reversed([*enumerate(taken, self._next)]):
                self._ahead[number % len(self._ahead)].appendleft(message)
            raise
        self._next += len(taken)
        return found

    async def _take(self, taken: list[ReceivedMessage], max_messages: int, wait_ms: int) -> list[NumberedMessage]:
        """Move the next messages to ``taken``.  Returns those of them that fill no gap."""
        found: list[NumberedMessage] = []
        while len(found) < max_messages:
            number = self._next + len(taken)
            ahead = self._ahead[number % len(self._ahead)]
            if not ahead:
                try:
                    await self._fetch(number % len(self._ahead), 0 if found else wait_ms)
                except DledgerError:
                    if not found:
                        raise
                if not ahead:
                    break
            message = ahead.popleft()
            taken.append(message)
            if GAP not in message.properties:
                found.append(NumberedMessage(number, message))
        return found

    async def _fetch(self, wanted: int, wait_ms: int) -> None:
        """Fill every queue that has nothing ahead; only the one that is ``wanted`` is waited for.  Ends when all fills have ended."""
        empty = [queue for queue, ahead in enumerate(self._ahead) if not ahead and queue != wanted]
        fills = [self._fill(wanted, wait_ms), *[self._fill(queue, 0) for queue in empty]]
        for error in await asyncio.gather(*fills, return_exceptions=True):
            if error is not None:
                raise error

    async def _fill(self, queue: int, wait_ms: int) -> None:
        group, queue_id = self._queues[queue]
        offset = self._offsets[queue]
        messages = await self._consumer.fetch(self._topic, queue_id, offset, AHEAD_MESSAGES, replica_group=group, wait_ms=wait_ms)
        self._ahead[queue].extend(messages)
        self._offsets[queue] += len(messages)

    async def commit(self) -> None:
        """Store the position of the consumer group: everything before ``next_number`` is consumed.

        Raises:
            InvalidArgumentError: The reader has no group.

        Examples:
            >>> await reader.commit()
        """
        width = len(self._queues)
        by_group: dict[str, dict[tuple[str, int], int]] = {}
        for place, (group, queue_id) in enumerate(self._queues):
            offset = -(-(self._next - place) // width) if self._next > place else 0
            by_group.setdefault(group, {})[self._topic, queue_id] = offset
        for group, offsets in by_group.items():
            await self._consumer.commit(offsets, replica_group=group)

    async def close(self) -> None:
        """Close the connections. Safe to repeat.

        Examples:
            >>> await reader.close()
        """
        await self._consumer.close()
