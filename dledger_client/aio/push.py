"""The push consumer for asyncio: gives messages to a listener and shares queues with the other members of the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, Unpack

from dledger_client.aio.group_member import GroupMember
from dledger_client.cluster.channels import Bootstrap
from dledger_client.consumer.call_notes import CallNotes, ListenerNotes
from dledger_client.consumer.executors import ListenerExecutor, TaskExecutor
from dledger_client.consumer.listener import Listener, check_listener
from dledger_client.consumer.offset_file import check_client_folder
from dledger_client.consumer.queue_consumer import OpenQueue
from dledger_client.consumer.rebalancer import Rebalancer
from dledger_client.consumer.settings import PushOptions, PushSettings
from dledger_client.runtime.security import security_part
from dledger_wire.errors import InvalidArgumentError


class PushConsumer(GroupMember):
    """Gives the messages of its consumer group's share of queues to a listener.

    The listener returns ``Action.COMMIT`` when the messages are consumed. After anything else, an exception too,
    they are redelivered: after a delay that grows, through the group's retry topic and at last to its dead-letter
    topic; or, orderly, at the same place after ``suspend_current_queue_time_ms``.

    With asyncio, the listener is a function or a coroutine function, called on the event loop. One that blocks the loop for a second
    loses its queues.

    Every setting may be given by RocketMQ's name too, e.g. ``consumeFromWhere``; see the reference of client
    settings.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the consumer group.
        listener: Called as ``listener(messages, context)``; or given by ``set_listener``.
        read_from: ``leader``, ``follower`` or ``any``; an orderly consumer reads from the leader.
        client_id: This consumer's name in the group. Default: made from address, process id and a random number.
        timeout_ms: How long ``start`` and each request are tried, in milliseconds.
        settings: See ``PushSettings``.

    Raises:
        InvalidArgumentError: A setting is outside its range.
        InvalidNameError: The group's name is not valid.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        TypeError: A setting is unknown.

    Examples:
        >>> def listener(messages, context):
        ...     print([message.body for message in messages])
        ...     return Action.COMMIT
        >>> consumer = PushConsumer("127.0.0.1:10911", "billing", listener, consume_threads=4)
        >>> consumer.subscribe("orders", "created || paid")
        >>> await consumer.start()
        >>> await consumer.shutdown()
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str,
        listener: Listener | None = None,
        *,
        read_from: str = "leader",
        client_id: str = "",
        timeout_ms: int = 10_000,
        **settings: Unpack[PushSettings],
    ) -> None:
        self.listener = None if listener is None else check_listener(listener)
        security = security_part(settings)
        self.options = PushOptions.of({name: value for name, value in settings.items() if name not in security})
        if self.options.broadcast:
            check_client_folder(client_id)
        if self.options.orderly and not self.options.broadcast and read_from != "leader":
            raise InvalidArgumentError(f"read_from {read_from!r}: an orderly consumer reads at the leader, which knows who holds locks")
        self._make_executor: Callable[[Listener, int, CallNotes], ListenerExecutor] = TaskExecutor
        self._set_up(bootstrap, group, read_from, client_id, timeout_ms, security)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # cancelled, too: ``__aexit__`` is not called then
            await self.shutdown()
            raise
        return self

    def set_listener(self, listener: Listener) -> None:
        """Set the listener. To be called before ``start``.

        Args:
            listener: Called as ``listener(messages, context)``.

        Raises:
            InvalidArgumentError: It cannot be called, or the consumer is started.

        Examples:
            >>> consumer.set_listener(lambda messages, context: Action.COMMIT)
        """
        if self._started:
            raise InvalidArgumentError("set the listener before the consumer is started")
        self.listener = check_listener(listener)

    async def start(self) -> None:
        """Join the group and begin to consume. Safe to repeat.

        With ``consume_from_where="last"`` a new group begins at the ends of the queues as they are now: it gets everything that is sent
        once this has returned.

        Raises:
            InvalidArgumentError: There is no listener or no subscription, an SQL filter has a mistake, or the consumer was shut down,
                also by now.
            UnreachableError: No node responded within ``timeout_ms``.
            BusyError: Another member of the group has the given ``client_id``, and this consumer is shut down; or
                another process uses the offset file.

        Examples:
            >>> await consumer.start()
        """
        await self._begin()

    def _check_complete(self) -> None:
        self._checked_listener()

    def _checked_listener(self) -> Listener:
        if self.listener is None or not (self._subscriptions or self._patterns):
            raise InvalidArgumentError("a push consumer needs a listener and at least one subscription before it starts")
        return check_listener(self.listener, on_a_loop=self._make_executor is TaskExecutor)

    def _consuming(self) -> tuple[ListenerExecutor, OpenQueue | None]:
        notes = ListenerNotes(self.group, self._router.clock, self._instruments)
        return self._make_executor(self._checked_listener(), self.options.consume_threads, notes), None

    def pause(self) -> None:
        """Give the listener no messages until ``resume``, while what it needs is away for instance. Safe to repeat.

        A call that runs goes on to its end. The consumer keeps its queues, and fetches as much as it may hold.

        Raises:
            InvalidArgumentError: The consumer is not started.

        Examples:
            >>> consumer.pause()
        """
        self._running_engine().pause(is_paused=True)

    def resume(self) -> None:
        """Give the listener messages again: first those that are here.

        Raises:
            InvalidArgumentError: The consumer is not started.

        Examples:
            >>> consumer.resume()
        """
        self._running_engine().pause(is_paused=False)

    def _running_engine(self) -> Rebalancer:
        if self._engine is None:
            raise InvalidArgumentError("the consumer is not started")
        return self._engine

    async def shutdown(self) -> None:
        """Stop consuming and leave the group. Safe to repeat.

        Waits for running listeners (at most ``await_termination_ms``), commits offsets and releases the queues. A call
        that is cancelled waits no longer, but the shutdown goes on; each further call waits for its end.

        Examples:
            >>> await consumer.shutdown()
        """
        await self._end()

    close = shutdown
