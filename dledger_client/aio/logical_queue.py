"""One ordered queue over several physical ones: as much room as the queues of a topic have together, and still one order.

Owns the numbering.  Message n of the logical queue is message n // N of physical queue n % N, N being the topic's queues, so that its place
says its number and nothing has to be stored beside it.  That holds because one writer at a time fills the topic: it writes under a
producer id of the topic, and a successor fences it before it looks where to go on.  A writer that died may leave gaps (message 9 not
stored, 10 stored); the successor closes them with marks that readers pass over, so that a reader never waits for what will not come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self, Unpack

from dledger_client.aio.consumer import PullConsumer
from dledger_client.aio.producer import Producer
from dledger_client.cluster.metadata import Bootstrap
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
    """How many physical queues there are."""
    found = await consumer.topic(topic)
    if len(found) != 1:
        groups = ", ".join(queues.replica_group for queues in found)
        raise InvalidArgumentError(f"topic {topic} lies in {len(found)} groups ({groups}); expected one for a logical queue", topic=topic)
    if found[0].read_queues != found[0].write_queues or not found[0].perm & Perm.READ:
        raise InvalidArgumentError(f"topic {topic}: expected as many queues to read as to write, and both permitted", topic=topic)
    return found[0].read_queues


class LogicalQueueWriter:
    """Writes a topic as one ordered queue.  Settings are those of ``Producer``; a second writer of the topic fences the first."""

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
        """The number the next message gets."""
        return self._next

    async def open(self) -> int:
        """Fence an earlier writer, close the gaps it left, and return the number to go on with."""
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
        """Send one message and wait until a majority has it; its number.

        After any error the writer is broken, since what was sent behind the message may be stored: make a new one, which goes on behind it.
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
        """Flush and close the connections.  Idempotent."""
        await self._producer.close()
        await self._consumer.close()


class LogicalQueueReader:
    """Reads what ``LogicalQueueWriter`` wrote, in the order of the numbers.  Settings are those of ``PullConsumer``."""

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
        """The number that is read next; -1 before the first read without a ``seek``."""
        return self._next

    async def seek(self, number: int) -> None:
        """Go on at a message's number."""
        width = await _width(self._consumer, self._topic)
        self._next = number
        self._ahead = [deque() for _ in range(width)]
        self._offsets = [-(-(number - queue) // width) if number > queue else 0 for queue in range(width)]

    async def seek_start(self) -> None:
        """Go on at the first number from which on everything is still there."""
        held = await self._consumer.offsets(self._topic)
        width = len(held)
        await self.seek(
            max((offsets.min_offset - 1) * width + queue + 1 if offsets.min_offset else 0 for (_, queue), offsets in held.items())
        )

    async def seek_committed(self) -> None:
        """Go on where the consumer group has come to, at the start when it has not."""
        found = {queue: offset for (_, queue), offset in (await self._consumer.committed(self._topic)).items()}
        width = await _width(self._consumer, self._topic)
        if len(found) < width:
            await self.seek_start()
        else:
            await self.seek(min(offset * width + queue for queue, offset in found.items()))

    async def read(self, max_messages: int = 32, wait_ms: int = 0) -> list[NumberedMessage]:
        """The next messages in order; empty when there is none within ``wait_ms``."""
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
        """Remember in the cluster that everything before ``next_number`` was read by this group."""
        width = len(self._ahead)
        places = {(self._topic, queue): -(-(self._next - queue) // width) if self._next > queue else 0 for queue in range(width)}
        await self._consumer.commit(places)

    async def close(self) -> None:
        await self._consumer.close()
