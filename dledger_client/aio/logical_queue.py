"""A logical queue: one ordered queue over all queues of a topic.

Owns the numbering.  Message n is message n // N of physical queue n % N, N being the number of queues, so its place
says its number and nothing more is stored.  That needs one writer at a time: it writes under a producer id of the
topic, and a successor fences it before it looks where to go on.  A failed writer may leave gaps (message 9 not
stored, 10 stored); the successor fills them with markers that readers skip, so no reader waits for a message that
will not come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self, Unpack

from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.producer import Producer
from dledger_client.cluster.bootstrap import Bootstrap
from dledger_client.deprecation import renamed_arguments
from dledger_client.fetch.records import NumberedMessage, ReceivedMessage
from dledger_client.message import Message, SendResult
from dledger_client.producer.settings import ProducerSettings
from dledger_client.runtime.environment import takes_old_environment
from dledger_wire.errors import DledgerError, InvalidArgumentError, NotSentError
from dledger_wire.status import Perm

GAP = "LOGICAL_GAP"
MAX_GAP = 1 << 20
AHEAD_MESSAGES = 512


async def _width(consumer: PullConsumer, topic: str) -> int:
    """The number of physical queues."""
    found = await consumer.topic(topic)
    if len(found) != 1:
        groups = ", ".join(queues.replica_group for queues in found)
        raise InvalidArgumentError(f"topic {topic} lies in {len(found)} groups ({groups}); expected one for a logical queue", topic=topic)
    if found[0].read_queues != found[0].write_queues or not found[0].perm & Perm.READ:
        raise InvalidArgumentError(f"topic {topic}: expected as many queues to read as to write, and both permitted", topic=topic)
    return found[0].read_queues


class LogicalQueueWriter:
    """Writes a topic as one ordered queue. A second writer of the topic fences the first.

    With asyncio, call ``open`` before the first ``send``, or use ``async with``.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        topic: The topic, in one replica group, with as many write queues as read queues.
        settings: See ``ProducerSettings``.

    Raises:
        InvalidArgumentError: A setting is outside its range.

    Examples:
        >>> async with LogicalQueueWriter("127.0.0.1:10911", "ledger") as writer:
        ...     number = await writer.send(Message("ledger", b"first"))
    """

    @takes_old_environment
    def __init__(self, bootstrap: Bootstrap, topic: str, **settings: Unpack[ProducerSettings]) -> None:
        self._topic = topic
        settings.setdefault("producer_id", f"logical-queue-{topic}")
        self._producer = Producer(bootstrap, **settings)
        self._consumer = PullConsumer(bootstrap)
        self._width = 0
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
            InvalidArgumentError: The topic is in several replica groups, or its queues do not hold a logical queue.

        Examples:
            >>> number = await writer.open()
        """
        self._width = await _width(self._consumer, self._topic)
        await self._producer.stored(self._topic)
        ends = await self._ends()
        first_missing = min(end * self._width + queue for queue, end in enumerate(ends))
        self._next = max((end - 1) * self._width + queue for queue, end in enumerate(ends)) + 1 if any(ends) else 0
        if self._next - first_missing > MAX_GAP:
            text = f"topic {self._topic}: its queues hold {ends}; expected those of a logical queue, which fill evenly"
            raise InvalidArgumentError(f"{text} (written by others, or its number of queues was changed?)", topic=self._topic)
        gaps = [number for number in range(first_missing, self._next) if number // self._width >= ends[number % self._width]]
        await asyncio.gather(*[self._send(number, Message(self._topic, b"", properties={GAP: "1"})) for number in gaps])
        return self._next

    async def _ends(self) -> list[int]:
        held = await self._consumer.offsets(self._topic)
        by_queue = {queue_id: offsets.max_offset for (_, queue_id), offsets in held.items()}
        return [by_queue[queue_id] for queue_id in range(self._width)]

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
            InvalidArgumentError: The message is of another topic, or another producer writes to the topic.
            DledgerError: What ``Producer.send`` raises.

        Examples:
            >>> number = await writer.send(Message("ledger", b"first"))
        """
        if message.topic != self._topic:
            raise InvalidArgumentError(f"a message for topic {message.topic}; expected {self._topic}")
        if self._broken is not None:
            raise NotSentError(f"the writer broke: {self._broken.message}; nothing was stored, open a new one")
        number, self._next = self._next, self._next + 1
        await self._send(number, message)
        return number

    async def _send(self, number: int, message: Message) -> SendResult:
        try:
            result = await self._producer.send(message, queue_id=number % self._width)
        except DledgerError as error:
            self._broken = self._broken or error
            raise
        if result.queue_offset != number // self._width:
            where = f"{self._topic}/{number % self._width}"
            self._broken = InvalidArgumentError(
                f"{where}: message {number} is at {result.queue_offset}; somebody else writes to this topic"
            )
            raise self._broken
        return result

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
        read_from: ``leader``, ``follower`` (the leader only when no follower responds) or ``any``.
        replica: Id of the one node to read from.
        near: Host names or addresses; replicas on them are tried first.
        local_files: Read the log files of replicas on the hosts ``near`` directly, where this process may.
        repair: A damaged message is repaired from another replica; False: the read fails with CorruptFrameError.
        timeout_ms: How long each operation is tried over all replicas, in milliseconds.

    Raises:
        InvalidArgumentError: An argument is outside its range.

    Examples:
        >>> async with LogicalQueueReader("127.0.0.1:10911", "ledger") as reader:
        ...     for found in await reader.read(max_messages=100):
        ...         print(found.number, found.message.body)
    """

    @takes_old_environment
    @renamed_arguments(mend="repair")
    def __init__(
        self,
        bootstrap: Bootstrap,
        topic: str,
        group: str = "",
        *,
        read_from: str = "leader",
        replica: str | None = None,
        near: frozenset[str] = frozenset(),
        local_files: bool = False,
        repair: bool = True,
        timeout_ms: int = 10_000,
    ) -> None:
        self._topic = topic
        self._consumer = PullConsumer(
            bootstrap,
            group,
            read_from=read_from,
            replica=replica,
            near=near,
            local_files=local_files,
            repair=repair,
            timeout_ms=timeout_ms,
        )
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

    async def seek(self, number: int) -> None:
        """Continue at a message.

        Args:
            number: Its number.

        Examples:
            >>> await reader.seek(1_000)
        """
        width = await _width(self._consumer, self._topic)
        self._next = number
        self._ahead = [deque() for _ in range(width)]
        self._offsets = [-(-(number - queue) // width) if number > queue else 0 for queue in range(width)]

    async def seek_start(self) -> None:
        """Continue at the first number from which on no message has expired.

        Examples:
            >>> await reader.seek_start()
        """
        held = await self._consumer.offsets(self._topic)
        width = len(held)
        await self.seek(
            max((offsets.min_offset - 1) * width + queue + 1 if offsets.min_offset else 0 for (_, queue), offsets in held.items())
        )

    async def seek_committed(self) -> None:
        """Continue at the committed number of the consumer group; at the start when it has none.

        Examples:
            >>> await reader.seek_committed()
        """
        found = {queue: offset for (_, queue), offset in (await self._consumer.committed(self._topic)).items()}
        width = await _width(self._consumer, self._topic)
        if len(found) < width:
            await self.seek_start()
        else:
            await self.seek(min(offset * width + queue for queue, offset in found.items()))

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
        width = len(self._ahead)
        found: list[NumberedMessage] = []
        while len(found) < max_messages:
            ahead = self._ahead[self._next % width]
            if not ahead:
                await self._fetch(0 if found else wait_ms)
                if not ahead:
                    break
            message = ahead.popleft()
            if GAP not in message.properties:
                found.append(NumberedMessage(self._next, message))
            self._next += 1
        return found

    async def _fetch(self, wait_ms: int) -> None:
        """Fill every queue that has nothing ahead; only the one that is next is waited for."""
        wanted = self._next % len(self._ahead)
        empty = [queue for queue, ahead in enumerate(self._ahead) if not ahead and queue != wanted]
        await asyncio.gather(self._fill(wanted, wait_ms), *[self._fill(queue, 0) for queue in empty])

    async def _fill(self, queue: int, wait_ms: int) -> None:
        messages = await self._consumer.fetch(self._topic, queue, self._offsets[queue], AHEAD_MESSAGES, wait_ms=wait_ms)
        self._ahead[queue].extend(messages)
        self._offsets[queue] += len(messages)

    async def commit(self) -> None:
        """Store the position of the consumer group: everything before ``next_number`` is consumed.

        Raises:
            InvalidArgumentError: The reader has no group.

        Examples:
            >>> await reader.commit()
        """
        width = len(self._ahead)
        places = {(self._topic, queue): -(-(self._next - queue) // width) if self._next > queue else 0 for queue in range(width)}
        await self._consumer.commit(places)

    async def close(self) -> None:
        """Close the connections. Safe to repeat.

        Examples:
            >>> await reader.close()
        """
        await self._consumer.close()
