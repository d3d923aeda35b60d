"""The polled consumer for asyncio: the caller asks for the messages of its share of the group's queues."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from dledger_client.aio.group_member import GroupMember
from dledger_client.aio.polled_positions import PolledPositions
from dledger_client.cluster.channels import Bootstrap
from dledger_client.consumer.executors import ListenerExecutor
from dledger_client.consumer.poll_settings import ConsumerSettings, RebalanceCallback, Topics, check_names, check_topics, poll_options
from dledger_client.consumer.polled_queues import ASSIGNED, LOST, REVOKED, Polling
from dledger_client.consumer.queue_consumer import OpenQueue
from dledger_client.fetch.arrow_types import POLLED_COLUMNS, ArrowTable, arrow_table
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, within
from dledger_client.runtime.security import security_part
from dledger_wire.errors import ClientClosedError, InvalidArgumentError
from dledger_wire.tasks import wait_up_to

IN_HAND = 500  # messages that an iteration takes in hand at a time

Call = Callable[[], Any]


class Consumer(PolledPositions, GroupMember):
    """Reads the messages of its consumer group's share of queues: by ``poll``, or one after the other in a loop.

    The group shares the queues; each queue has one member at a time, and its messages come in order. A member that lost a queue is given
    no further message of it, and its commits are refused. Offsets are committed in the background: messages count as consumed when the
    next ones are asked for; or, with ``auto_commit=False``, when you call ``commit``. A message that is not consumed comes again, to
    whichever member has its queue then. One task or thread at a time may use a consumer.

    With asyncio, a program that blocks the event loop for a second loses its queues.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the consumer group.
        topics: A topic, or a list of topics, or patterns of ``re.compile``; see ``subscribe`` for filters.
        auto_commit: Whether messages count as consumed when the next ones are asked for.
        on_assigned: Called with the queues that this consumer got, before their first message. As the next two in ``poll`` or in the loop.
        on_revoked: Called with the queues that go to other members, before they get them; what was consumed may still be committed.
        on_lost: Called with queues that others may have already, after a pause of this process for instance, or whose positions
            were reset. Default: ``on_revoked``.
        max_poll_interval_ms: How long another member waits for a queue whose messages are in the hands of a caller that does not come
            back, in milliseconds.
        client_id: This consumer's name in the group. Default: made from address, process id and a random number.
        timeout_ms: How long ``start`` and each request are tried, in milliseconds.
        settings: See ``ConsumerSettings``.

    Raises:
        InvalidArgumentError: An argument is outside its range.
        InvalidNameError: The name of the group or of a topic is not valid.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> async with Consumer("127.0.0.1:10911", group="billing", topics=["orders"]) as consumer:
        ...     async for message in consumer:
        ...         print(message.queue_offset, message.body)
    """

    def __init__(
        self,
        bootstrap: Bootstrap = (),
        group: str = "",
        topics: Topics = (),
        *,
        auto_commit: bool = True,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        max_poll_interval_ms: int = 300_000,
        client_id: str = "",
        timeout_ms: int = 10_000,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        check_names(bootstrap, settings)
        security = security_part(settings)
        self.options = poll_options({name: value for name, value in settings.items() if name not in security})
        if not isinstance(auto_commit, bool):  # any text would count as True
            raise InvalidArgumentError(f"auto_commit {auto_commit!r}: expected True or False")
        within(1, MAX_OFFSET, max_poll_interval_ms=max_poll_interval_ms)
        self._callbacks = {ASSIGNED: on_assigned, REVOKED: on_revoked, LOST: on_lost or on_revoked}
        for callback in self._callbacks.values():
            if callback is not None and not callable(callback):
                raise InvalidArgumentError(f"{callback!r}: expected a function of a list of queues")
        self._polling = Polling(auto_commit=auto_commit, max_poll_interval_ms=max_poll_interval_ms)
        self._is_polled = False
        self._set_up(bootstrap, group, "leader", client_id, timeout_ms, security)
        for topic in check_topics(topics):
            self.subscribe(topic)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # cancelled, too: ``__aexit__`` is not called then
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._close(is_consumed=kind is None)

    async def start(self) -> None:
        """Join the group. Safe to repeat; ``poll``, the loop and ``with`` do it, too.

        With ``consume_from_where="last"`` a new group begins at the ends of the queues as they are now: it gets everything that is sent
        once this has returned.

        Raises:
            InvalidArgumentError: There is no topic, an SQL filter has a mistake, or the consumer was closed.
            UnreachableError: No node responded within ``timeout_ms``.
            BusyError: Another member of the group has the given ``client_id``, and this consumer is closed.

        Examples:
            >>> await consumer.start()
        """
        await self._begin()

    def _check_complete(self) -> None:
        if not (self._subscriptions or self._patterns):
            raise InvalidArgumentError("a consumer needs at least one topic before it starts; expected topics=NAME")

    def _consuming(self) -> tuple[ListenerExecutor, OpenQueue | None]:
        return self._polling, self._polling.open_queue

    # Messages

    async def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[ReceivedMessage]:
        """The next messages, of all queues in turn; those of one queue in order.

        Args:
            max_messages: Messages to return at most.
            timeout_ms: While there are none, how long to wait for the first, in milliseconds.

        Returns:
            The messages; empty when there were none in that time.

        Raises:
            ClientClosedError: The consumer was closed.
            InvalidArgumentError: An argument is outside its range, or another task or thread is polling.
            DledgerError: What ``start`` raises.

        Examples:
            >>> for message in await consumer.poll(max_messages=100):
            ...     print(message.body)
            >>> await consumer.commit()
        """
        within(1, MAX_U32, max_messages=max_messages)
        within(0, MAX_U32, timeout_ms=timeout_ms)
        deadline_ms = self._router.clock.monotonic_ms() + timeout_ms
        while await self._filled(max_messages, deadline_ms):
            if messages := self._polling.give():
                return messages
        return []

    async def poll_arrow(
        self, max_messages: int = 100_000, timeout_ms: int = 1_000, *, columns: Sequence[str] = POLLED_COLUMNS
    ) -> ArrowTable:
        """Like ``poll``, as a table of Arrow. Needs pyarrow (the extra ``arrow``).

        A table has at most what was fetched ahead: ``pull_threshold_for_queue`` messages of each queue.

        Args:
            max_messages: Messages to return at most.
            timeout_ms: While there are none, how long to wait for the first, in milliseconds.
            columns: Columns to make, in this order, out of those of ``PullConsumer.fetch_arrow``; fewer are faster.

        Returns:
            A ``pyarrow.Table`` with a row for each message; without rows when there were none in that time.

        Raises:
            InvalidArgumentError: pyarrow is not installed, or a column is unknown.
            DledgerError: What ``poll`` raises.

        Examples:
            >>> table = await consumer.poll_arrow(columns=["topic", "body"])
        """
        arrow_table((), columns)  # they are checked before anything counts as returned
        return arrow_table(await self.poll(max_messages, timeout_ms), columns)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        try:
            while (message := self._polling.next()) is None:
                await self._filled(IN_HAND, None)
        except ClientClosedError:
            raise StopAsyncIteration from None
        return message

    async def _filled(self, max_messages: int, deadline_ms: int | None) -> bool:
        """Take messages in hand; False when there are none until the deadline."""
        while not isinstance(found := await self._fill(max_messages, deadline_ms), bool):
            await self._make(found)
        return found

    async def _fill(self, max_messages: int, deadline_ms: int | None) -> bool | Call:
        """The same.  A call has to be made by the caller first, who comes again then."""
        if not self._started:
            await self._begin()
        if self._is_polled:
            raise InvalidArgumentError("another task or thread is polling this consumer; one at a time may")
        self._is_polled = True
        try:
            self._polling.take_back()
            while self._ending is None:
                self._polling.changed.clear()
                if (call := self._next_call()) is not None:
                    return call
                if self._polling.take(max_messages):
                    return True
                left_ms = MAX_U32 if deadline_ms is None else deadline_ms - self._router.clock.monotonic_ms()
                if left_ms <= 0:
                    return False
                await wait_up_to(left_ms / 1000, self._polling.changed.wait())
            raise ClientClosedError("the consumer is closed")
        finally:
            self._is_polled = False

    def _next_call(self) -> Call | None:
        """What the caller is to be told of its queues, if it wants to know."""
        while (news := self._polling.next_news()) is not None:
            what, queues = news
            callback = self._callbacks[what]
            if callback is not None:
                return lambda: callback(sorted(queue.queue for queue in queues))
            self._polling.told()
        return None

    async def _make(self, call: Call) -> None:
        try:
            result = call()
            if inspect.isawaitable(result):
                await result
        finally:
            self._polling.told()

    # Positions

    async def commit(self, message: ReceivedMessage | None = None) -> None:
        """Commit; durable on a majority when this returns.

        Args:
            message: This message and those before it in its queue are consumed; None: all that was returned up to now.

        Raises:
            StaleLockError: A queue was given to another member meanwhile; the others are committed.
            OffsetsResetError: The positions of the group were reset meanwhile.
            TopicNotFoundError: The topic was deleted meanwhile.
            DledgerError: The cluster did not confirm it in time; it is tried again in the background.

        Examples:
            >>> await consumer.commit(message)
        """
        self.commit_async(message)
        if self._engine is not None:
            await self._engine.commit_now()
            self._polling.check_hand()

    def commit_async(self, message: ReceivedMessage | None = None) -> None:
        """Commit in the background, within ``persist_offset_interval_ms``. What fails is logged, and tried again.

        Args:
            message: This message and those before it in its queue are consumed; None: all that was returned up to now.

        Raises:
            StaleLockError: The queue of the message was given to another member meanwhile.

        Examples:
            >>> consumer.commit_async(message)
        """
        if message is None:
            self._polling.settle_given()
        else:
            self._polling.settle(message)

    async def close(self) -> None:
        """Commit what counts as consumed and leave the group. Safe to repeat.

        What was returned last does not count as consumed here, since a program that fails closes its consumer, too: call ``commit``
        before, or use ``with``, where it counts unless the block ends with an exception.

        Examples:
            >>> await consumer.close()
        """
        await self._close(is_consumed=False)

    async def _close(self, *, is_consumed: bool) -> None:
        try:
            if (call := self._last_call(is_consumed=is_consumed)) is not None:
                await self._make(call)
        finally:
            await self._end_polling()

    def _last_call(self, *, is_consumed: bool) -> Call | None:
        """What the caller is to be told before it leaves."""
        if self._ending is not None:
            return None
        queues, callback = self._polling.end(is_consumed=is_consumed), self._callbacks[REVOKED]
        return None if callback is None or not queues else lambda: callback(queues)

    async def _end_polling(self) -> None:
        self._polling.told()
        try:
            await self._end()
        finally:
            self._polling.changed.set()
