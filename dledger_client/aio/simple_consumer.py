"""The simple consumer for asyncio: any number of them share the queues of a topic and acknowledge messages one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, TypeVar, Unpack

from dledger_client.aio.base import AsyncClient
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.cluster.missing_parts import find_parts
from dledger_client.cluster.routes import TopicQueues
from dledger_client.fetch.leased import LeasedMessage, leased_messages
from dledger_client.fetch.subscription import Subscription
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_wire._pb import pop_pb2
from dledger_wire.errors import InvalidArgumentError, NotReadyError, StaleReceiptError, UnreachableError
from dledger_wire.names import check_group, check_topic
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.methods import UnaryMethod

WAIT_MS = 1_000  # of one call: a leader that is silent for longer than that is left
CALL_MS = 10_000
MAX_RECEIPTS = 1_024  # in one request
LOOK_AGAIN_MS = 10_000  # for replica groups that have queues of the topic since

RequestT = TypeVar("RequestT", pop_pb2.AcknowledgeRequest, pop_pb2.ChangeInvisibleRequest, pop_pb2.MoveToDeadLettersRequest)


class SimpleConsumer(AsyncClient):
    """Receives messages that no other consumer of the group gets meanwhile, and acknowledges each by itself.

    A message that is not acknowledged in time is delivered again, to any consumer of the group. There may be more consumers than queues.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the consumer group.
        topic: The topic to consume.
        tags: Only messages with one of these tags: ``a || b``. Others are done for the group.
        sql: Only messages whose properties match this SQL92 filter. Others are done for the group.
        fifo: Messages with the same property ``__SHARDINGKEY`` are delivered in order, each when the one before is acknowledged.
        invisible_s: How long a message is this consumer's, in seconds: 1 to 43 200.
        from_end: A group without a position begins behind the newest message, not at the oldest.
        settings: See ``SecuritySettings``.

    Raises:
        InvalidArgumentError: An argument is outside its range.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> async with SimpleConsumer("127.0.0.1:10911", group="billing", topic="orders") as consumer:
        ...     messages = await consumer.receive()
        ...     await consumer.ack(messages)
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str,
        topic: str,
        *,
        tags: str = "*",
        sql: str = "",
        fifo: bool = False,
        invisible_s: float = 60.0,
        from_end: bool = False,
        **settings: Unpack[SecuritySettings],
    ) -> None:
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self.group, self.topic = check_group(group), check_topic(topic)
        wanted = Subscription(tags, sql)
        self._receive = pop_pb2.ReceiveRequest(
            group=group, topic=topic, tag_hashes=wanted.tag_hashes, sql=sql, fifo=fifo, from_end=from_end, invisible_ms=_ms(invisible_s)
        )
        self._router = environment_for(bootstrap, **settings).open_router(bootstrap)
        self._parts: list[TopicQueues] = []
        self._looked_ms = 0
        self._turn = 0
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open

    @property
    def _description(self) -> str:
        return f"{self.group!r} of {self.topic!r} at {self._bootstrap}"

    @property
    def _is_left_open(self) -> bool:
        return self._router.channels.is_open

    async def close(self) -> None:
        """Close the connections. Messages that were not acknowledged are delivered again when their time ends. Safe to repeat.

        Examples:
            >>> await consumer.close()
        """
        self._router.channels.refuse()
        await self._router.close()

    async def receive(self, max_messages: int = 32, *, wait_s: float = 20.0) -> list[LeasedMessage]:
        """The next messages, which are this consumer's until their invisible time ends.

        Args:
            max_messages: At most so many: 1 to 1024.
            wait_s: How long to wait for the first one, in seconds.

        Returns:
            The messages; none when there were none in time.

        Raises:
            TopicNotFoundError: The topic does not exist.
            StaleLockError: Consumers in order of the same group have locked the queues.
            NotLeaderError: No replica group of the topic has a leader for as long as was waited.

        Examples:
            >>> for leased in await consumer.receive(100):
            ...     print(leased.body)
        """
        deadline_ms = self._router.clock.monotonic_ms() + int(wait_s * 1000)
        while True:
            parts = await self._current_parts()
            for _ in parts:
                self._turn += 1
                left_ms = max(0, deadline_ms - self._router.clock.monotonic_ms())
                wait_ms = min(left_ms, WAIT_MS // len(parts))
                found = await self._receive_from(parts[self._turn % len(parts)].replica_group, max_messages, wait_ms)
                if found:
                    return found
            if self._router.clock.monotonic_ms() >= deadline_ms:
                return []

    async def messages(self, max_messages: int = 32) -> AsyncGenerator[LeasedMessage]:
        """Messages as they come, without end, to be acknowledged by the caller.

        Args:
            max_messages: How many are received at a time, of which the invisible time begins together.

        Yields:
            The messages.

        Examples:
            >>> async for leased in consumer.messages():
            ...     print(leased.body)
            ...     await consumer.ack([leased])
        """
        while True:
            for leased in await self.receive(max_messages):
                yield leased

    async def ack(self, messages: Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Acknowledge messages: the group is done with them.

        Args:
            messages: Messages that this, or another, consumer of the group received.

        Returns:
            Those that were not the consumer's any more: they were delivered again, or are done already.

        Raises:
            OutcomeUnknownError: The acknowledgement may have counted; it may be repeated.

        Examples:
            >>> late = await consumer.ack(await consumer.receive())
        """
        return await self._settle(methods.ACKNOWLEDGE, pop_pb2.AcknowledgeRequest, messages)

    async def nack(self, messages: Iterable[LeasedMessage], *, delay_s: float = 0.0, uncounted: bool = False) -> list[LeasedMessage]:
        """Give messages back: any consumer of the group gets them again.

        Args:
            messages: Messages that were received.
            delay_s: After so many seconds.
            uncounted: This delivery does not count as an attempt.

        Returns:
            Those that were not the consumer's any more.

        Examples:
            >>> await consumer.nack(await consumer.receive(), delay_s=10)
        """
        return await self._settle(
            methods.CHANGE_INVISIBLE, pop_pb2.ChangeInvisibleRequest, messages, invisible_ms=_ms(delay_s), uncounted=uncounted
        )

    async def extend(self, messages: Iterable[LeasedMessage], invisible_s: float) -> list[LeasedMessage]:
        """Keep messages longer.

        Args:
            messages: Messages that were received.
            invisible_s: For so many seconds from now on.

        Returns:
            Those that were not the consumer's any more.

        Examples:
            >>> await consumer.extend(await consumer.receive(), 300)
        """
        return await self._settle(methods.CHANGE_INVISIBLE, pop_pb2.ChangeInvisibleRequest, messages, invisible_ms=_ms(invisible_s))

    async def dead_letter(self, messages: Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Move messages to the dead letters of the group.

        Args:
            messages: Messages that were received.

        Returns:
            Those that were not the consumer's any more.

        Examples:
            >>> await consumer.dead_letter(await consumer.receive())
        """
        return await self._settle(methods.MOVE_TO_DEAD_LETTERS, pop_pb2.MoveToDeadLettersRequest, messages)

    async def _current_parts(self) -> list[TopicQueues]:
        now_ms = self._router.clock.monotonic_ms()
        if not self._parts or now_ms - self._looked_ms > LOOK_AGAIN_MS:
            found = (await find_parts(self._router, self.topic, now_ms + CALL_MS, fresh=not self._parts)).queues
            self._parts, self._looked_ms = [part for part in found if part.read_queues], now_ms
        if not self._parts:
            raise NotReadyError(f"topic {self.topic}: no replica group that answers has queues to read")
        return self._parts

    async def _receive_from(self, replica_group: str, max_messages: int, wait_ms: int) -> list[LeasedMessage]:
        request = pop_pb2.ReceiveRequest()
        request.CopyFrom(self._receive)
        request.max_messages, request.wait_ms = max_messages, wait_ms
        deadline_ms = self._router.clock.monotonic_ms() + CALL_MS
        answer = await self._router.call_leader(replica_group, methods.RECEIVE, request, deadline_ms=deadline_ms)
        return leased_messages(self.topic, replica_group, answer, memoryview(answer.payload))

    async def _settle(
        self,
        method: UnaryMethod[RequestT, pop_pb2.ReceiptsResponse],
        make: Callable[..., RequestT],
        messages: Iterable[LeasedMessage],
        **given: Any,
    ) -> list[LeasedMessage]:
        """What ``method`` says of messages, asked of the replica group of each; those whose receipts do not count are returned."""
        places: dict[tuple[str, str], list[LeasedMessage]] = {}
        for leased in messages:
            places.setdefault((leased.message.replica_group, leased.message.topic_epoch), []).append(leased)
        late: list[LeasedMessage] = []

        async def one(replica_group: str, epoch: str, some: list[LeasedMessage]) -> None:
            request = make(group=self.group, topic=self.topic, incarnation=epoch, receipts=[each.receipt for each in some], **given)
            deadline_ms = self._router.clock.monotonic_ms() + CALL_MS
            answer = await self._router.call_leader(replica_group, method, request, deadline_ms=deadline_ms)
            if len(answer.results) != len(some):
                raise UnreachableError(f"{len(answer.results)} results for {len(some)} receipts")
            for leased, result in zip(some, answer.results, strict=True):
                if result.HasField("error"):
                    if result.error.code != StaleReceiptError.code:
                        raise from_detail(result.error)
                    late.append(leased)
                elif result.invisible_until_ms:
                    leased.invisible_until_ms = result.invisible_until_ms

        await asyncio.gather(
            *(
                one(replica_group, epoch, some[first : first + MAX_RECEIPTS])
                for (replica_group, epoch), some in places.items()
                for first in range(0, len(some), MAX_RECEIPTS)
            )
        )
        return late


def _ms(seconds: float) -> int:
    if not 0 <= seconds <= 43_200:
        raise InvalidArgumentError(f"{seconds} s; expected 0 to 43 200")
    return int(seconds * 1000)
