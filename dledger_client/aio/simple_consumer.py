"""The simple consumer for asyncio: messages that are received, and acknowledged one by one, by any number of consumers of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self, Unpack

from dledger_client.aio.base import AsyncClient
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.consumer.lease_polls import LeasePolls, PollOptions
from dledger_client.consumer.leased_messages import LeasedMessage
from dledger_client.consumer.receipts import How, Receipts, What
from dledger_client.consumer.settings import FIRST, LAST
from dledger_client.fetch.subscription import Subscription
from dledger_client.runtime.argument_ranges import MAX_U32, check_kind, within
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_wire.errors import ClientClosedError, DledgerError, InvalidArgumentError
from dledger_wire.names import check_group, check_topic

MAX_RECEIVED = 1024
LEAST_INVISIBLE_MS, MOST_INVISIBLE_MS = 1_000, 12 * 3_600_000
MAX_WAIT_MS = 24 * 3_600_000
CLOSE_S = 5.0  # for acknowledgements on their way, and to give back what was not handed out

Messages = LeasedMessage | Sequence[LeasedMessage]


class SimpleConsumer(AsyncClient):
    """Receives messages of the group, and acknowledges them one by one, in any order.

    Any number of consumers share each queue. A message is invisible to the others for ``invisible_ms`` from when it is received: if it is
    not acknowledged by then, it comes again, to any of them. One that was received too often becomes a dead letter of the group. Tasks and
    threads may use one consumer at the same time.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the consumer group.
        topics: A topic, or a list of topics; see ``subscribe`` for filters.
        invisible_ms: How long a message is this consumer's, in milliseconds.
        wait_ms: While there are none, how long ``receive`` waits for the first message, in milliseconds.
        max_messages: Messages that ``receive`` returns at most; the loop takes as many in hand at a time.
        orderly: A message waits until those of its message group before it are acknowledged.
        max_attempts: How often a message is received before it becomes a dead letter; 0: by the settings of the group.
        consume_from_where: Where a new group begins: ``first`` or ``last``.
        timeout_ms: How long each request is tried, in milliseconds.
        settings: See ``SecuritySettings``.

    Raises:
        InvalidArgumentError: An argument is outside its range.
        InvalidNameError: The name of the group or of a topic is not valid.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> async with SimpleConsumer("127.0.0.1:10911", group="billing", topics=["orders"]) as consumer:
        ...     async for message in consumer:
        ...         print(message.attempt, message.body)
        ...         await consumer.ack(message)
    """

    def __init__(
        self,
        bootstrap: Bootstrap = (),
        group: str = "",
        topics: str | Iterable[str] = (),
        *,
        invisible_ms: int = 30_000,
        wait_ms: int = 10_000,
        max_messages: int = 32,
        orderly: bool = False,
        max_attempts: int = 0,
        consume_from_where: str = FIRST,
        timeout_ms: int = 10_000,
        **settings: Unpack[SecuritySettings],
    ) -> None:
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self.group = check_group(group)
        check_kind(bool, "orderly", orderly)
        within(0, MAX_U32, max_attempts=max_attempts)
        within(1, MAX_U32, timeout_ms=timeout_ms)
        if consume_from_where not in (FIRST, LAST):
            raise InvalidArgumentError(f"consume_from_where {consume_from_where!r}: expected {FIRST} or {LAST}")
        self._defaults = max_messages, invisible_ms, wait_ms
        _check(*self._defaults)
        self._subscriptions: dict[str, Subscription] = {}
        for topic in [topics] if isinstance(topics, str) else topics:
            self.subscribe(topic)
        self._router = environment_for(bootstrap, **settings).open_router(bootstrap)
        self._receipts = Receipts(self._router, self.group, timeout_ms)
        options = PollOptions(self.group, orderly, max_attempts, consume_from_where == LAST, timeout_ms)
        self._polls = LeasePolls(self._router, options, self._subscriptions, self._receipts)
        self._ending: asyncio.Task[None] | None = None  # what closes, whichever caller waits for it
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open

    @property
    def _description(self) -> str:
        return f"of group {self.group} at {self._bootstrap}"

    @property
    def _is_left_open(self) -> bool:
        return self._router.channels.is_open

    def subscribe(self, topic: str, expression: str = "*", *, sql: str = "") -> None:
        """Receive messages of a topic, from the next request on.

        The group is done with messages that the filter leaves out: all its consumers need the same one.

        Args:
            topic: The topic.
            expression: Tags to receive: ``a || b``; ``*``: all.
            sql: An SQL92 filter of properties, instead of tags.

        Raises:
            InvalidArgumentError: The tags have a mistake. One in ``sql`` is found by the nodes when messages are received.

        Examples:
            >>> consumer.subscribe("orders", "created || paid")
        """
        check_kind(str, "topic", topic)
        self._subscriptions[check_topic(topic)] = Subscription(expression, sql)

    async def receive(
        self, max_messages: int | None = None, *, invisible_ms: int | None = None, wait_ms: int | None = None
    ) -> list[LeasedMessage]:
        """The next messages, of all queues in turn.

        Args:
            max_messages: Messages to return at most. Default: as given to the constructor, as the next two.
            invisible_ms: How long they are this consumer's, in milliseconds.
            wait_ms: While there are none, how long to wait for the first, in milliseconds.

        Returns:
            The messages; empty when there were none in that time.

        Raises:
            InvalidArgumentError: An argument is outside its range, there is no topic, or an SQL filter has a mistake.
            TopicNotFoundError: A topic does not exist.
            StaleLockError: Consumers of the group that share out its queues have them all.
            ClientClosedError: The consumer was closed.
            DledgerError: No replica group answered.

        Examples:
            >>> for message in await consumer.receive(100, invisible_ms=60_000):
            ...     print(message.body)
            ...     await consumer.ack(message)
        """
        most, invisible, wait = self._defaults
        most = most if max_messages is None else max_messages
        return await self._take(most, most, invisible if invisible_ms is None else invisible_ms, wait if wait_ms is None else wait_ms)

    async def _take(self, max_messages: int, poll_messages: int, invisible_ms: int, wait_ms: int) -> list[LeasedMessage]:
        _check(max_messages, invisible_ms, wait_ms)
        if not self._subscriptions:
            raise InvalidArgumentError("a consumer needs at least one topic before it receives; expected topics=NAME")
        self._require_open()
        self._router.watch()
        return await self._polls.take(max_messages, poll_messages, invisible_ms, wait_ms)

    def _require_open(self) -> None:
        if self._ending is not None:
            raise ClientClosedError("the consumer is closed")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LeasedMessage:
        most, invisible_ms, wait_ms = self._defaults
        try:
            while not (found := await self._take(1, most, invisible_ms, wait_ms)):
                pass
        except ClientClosedError:
            raise StopAsyncIteration from None
        return found[0]

    # What becomes of messages

    async def ack(self, messages: Messages) -> list[DledgerError | None]:
        """Acknowledge: the group is done with the messages. Durable on a majority when this returns.

        Args:
            messages: A message, or a list of them: of any topics and queues.

        Returns:
            For each message None, or why it was not acknowledged: StaleReceiptError when its invisible time ended and it came again.

        Raises:
            StaleReceiptError: The one message, which is not in a list, is no longer this consumer's.
            DledgerError: The cluster did not confirm that of the one message in time.

        Examples:
            >>> messages = await consumer.receive()
            >>> errors = await consumer.ack(messages)
        """
        return await self._settle(messages, How(What.ACKNOWLEDGED))

    async def nack(self, messages: Messages, delay_ms: int = 0) -> list[DledgerError | None]:
        """Give messages back: they come again, to any consumer of the group.

        Args:
            messages: A message, or a list of them.
            delay_ms: When, from now on in milliseconds.

        Returns:
            As of ``ack``, which says what is raised, too.

        Raises:
            InvalidArgumentError: ``delay_ms`` is outside its range.

        Examples:
            >>> await consumer.nack(message, delay_ms=5_000)
        """
        within(0, MOST_INVISIBLE_MS, delay_ms=delay_ms)
        return await self._settle(messages, How(What.CHANGED, delay_ms))

    async def extend(self, messages: Messages, invisible_ms: int | None = None) -> list[DledgerError | None]:
        """Keep messages longer.

        Args:
            messages: A message, or a list of them.
            invisible_ms: How long they are this consumer's from now on, in milliseconds. Default: as given to the constructor.

        Returns:
            As of ``ack``, which says what is raised, too.

        Raises:
            InvalidArgumentError: ``invisible_ms`` is outside its range.

        Examples:
            >>> await consumer.extend(message, 60_000)
        """
        invisible_ms = self._defaults[1] if invisible_ms is None else invisible_ms
        within(LEAST_INVISIBLE_MS, MOST_INVISIBLE_MS, invisible_ms=invisible_ms)
        return await self._settle(messages, How(What.CHANGED, invisible_ms))

    async def reject(self, messages: Messages) -> list[DledgerError | None]:
        """Move messages to the dead letters of the group.

        Args:
            messages: A message, or a list of them.

        Returns:
            As of ``ack``, which says what is raised, too.

        Examples:
            >>> await consumer.reject(message)
        """
        return await self._settle(messages, How(What.DEAD))

    async def _settle(self, messages: Messages, how: How) -> list[DledgerError | None]:
        self._require_open()
        several = [messages] if isinstance(messages, LeasedMessage) else list(messages)
        check_kind(LeasedMessage, "message", *several)
        results = await self._receipts.settle(several, how)
        if isinstance(messages, LeasedMessage) and results[0] is not None:
            raise results[0]
        return results

    async def close(self) -> None:
        """End waiting calls, and give back what came and was not handed out. Safe to repeat.

        What was handed out and not acknowledged comes again when its invisible time ends; ``nack`` it before to have it come at once. So
        does what is on its way here now.

        Examples:
            >>> await consumer.close()
        """
        if self._ending is None:
            self._router.channels.require_loop()
            self._ending = asyncio.get_running_loop().create_task(self._end(), name=f"end of a consumer of group {self.group}")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await self._polls.close()
        self._receipts.settle_later(self._polls.held(), How(What.CHANGED, 0, uncounted=True))
        await self._receipts.close(CLOSE_S)
        await self._router.close()


def _check(max_messages: int, invisible_ms: int, wait_ms: int) -> None:
    within(1, MAX_RECEIVED, max_messages=max_messages)
    within(LEAST_INVISIBLE_MS, MOST_INVISIBLE_MS, invisible_ms=invisible_ms)
    within(0, MAX_WAIT_MS, wait_ms=wait_ms)
