"""The push consumer for asyncio: gives messages to a listener and shares queues with the other members of the group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Self, Unpack

from dledger_client.aio.base import AsyncClient
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.call_notes import CallNotes, ListenerNotes
from dledger_client.consumer.executors import ListenerExecutor, TaskExecutor
from dledger_client.consumer.group_offsets import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from dledger_client.consumer.group_session import MemberInfo
from dledger_client.consumer.listener import Listener, check_listener
from dledger_client.consumer.offset_file import OffsetFile, check_client_folder
from dledger_client.consumer.rebalancer import Rebalancer
from dledger_client.consumer.settings import PushOptions, PushSettings
from dledger_client.fetch.fetch_metrics import FetchMetrics
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.subscription import Subscription
from dledger_client.metrics.instruments import installed
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, check_text, within
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import security_part
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError
from dledger_wire.names import MAX_ID_CHARS, check_group, check_topic, retry_topic

ADMISSION_S = 3.0  # longer than a member that died is kept
ENDS_S = 3.0  # for replica groups to say where their queues end
FILTER_MS = 2000  # for a node to say whether it understands a filter
IDLE_STREAMS = 64  # every queue polls on one of its own

_logger = logging.getLogger(__name__)


class PushConsumer(AsyncClient):
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
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self.group = check_group(group)
        within(1, MAX_U32, timeout_ms=timeout_ms)
        check_text(client_id=client_id)
        if len(client_id) > MAX_ID_CHARS or not client_id.isprintable():
            raise InvalidArgumentError(f"client_id {client_id[:40]!r}: expected at most {MAX_ID_CHARS} printable characters")
        self.listener = None if listener is None else check_listener(listener)
        security = security_part(settings)
        self.options = PushOptions.of({name: value for name, value in settings.items() if name not in security})
        if self.options.broadcast:
            check_client_folder(client_id)
        if self.options.orderly and not self.options.broadcast and read_from != "leader":
            raise InvalidArgumentError(f"read_from {read_from!r}: an orderly consumer reads at the leader, which knows who holds locks")
        self._read_from, self._client_id, self._timeout_ms = read_from, client_id, timeout_ms
        self._environment = environment_for(bootstrap, **security)
        self._make_executor: Callable[[Listener, int, CallNotes], ListenerExecutor] = TaskExecutor
        self._subscriptions: dict[str, Subscription] = {}
        self._router = self._environment.open_router(bootstrap)
        self._fetcher = Fetcher(self._router, read_from, None, idle_streams=IDLE_STREAMS)
        self._fetcher.metrics = FetchMetrics(self.group)
        self._instruments = installed()
        self._engine: Rebalancer | None = None
        self._file: OffsetFile | None = None
        self._positions: OffsetStore | None = None
        self._starting = asyncio.Lock()
        self._started = False
        self._ending: asyncio.Task[None] | None = None  # what shuts down, whichever caller waits for it
        self._waiting: set[Any] = set()  # tasks that wait for its end, of listeners too
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open

    @property
    def _description(self) -> str:
        """A name of this consumer, for people."""
        return f"{self._client_id or 'a member'!r} of group {self.group!r} at {self._bootstrap}"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down."""
        return self._started and self._ending is None

    @property
    def _is_left_open(self) -> bool:
        return self.is_running or self._router.channels.is_open  # a start that failed leaves connections

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # cancelled, too: ``__aexit__`` is not called then
            await self.shutdown()
            raise
        return self

    def subscribe(self, topic: str, expression: str = "*", *, sql: str = "") -> None:
        """Consume a topic. To be called before ``start``.

        Args:
            topic: The topic.
            expression: Tags to consume: ``a || b``; ``*``: all.
            sql: An SQL92 filter of properties, instead of tags.

        Raises:
            InvalidArgumentError: The consumer is started, or the tags have a mistake. One in ``sql`` is found by the nodes when the
                consumer starts.

        Examples:
            >>> consumer.subscribe("orders", "created || paid")
        """
        if self._started:
            raise InvalidArgumentError("subscribe before the consumer is started")
        self._subscriptions[check_topic(topic)] = Subscription(expression, sql)

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

    @property
    def client_id(self) -> str:
        """This consumer's name in the group; chosen by ``start`` unless given."""
        return self._client_id

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
        async with self._starting:
            await self._start()

    async def _start(self) -> None:
        self._check_not_ended()
        self._router.channels.require_loop()
        if self._started:
            return
        if self.listener is None or not self._subscriptions:
            raise InvalidArgumentError("a push consumer needs a listener and at least one subscription before it starts")
        check_listener(self.listener, on_a_loop=self._make_executor is TaskExecutor)
        await self._router.reach(self._router.clock.monotonic_ms() + self._timeout_ms)
        await self._check_filters()
        self._check_not_ended()
        given = bool(self._client_id)
        positions = self._positions = self._positions or self._open_positions()
        await positions.fix_ends(self._subscriptions, min(self._timeout_ms / 1000, ENDS_S))
        self._check_not_ended()
        self._engine = self._make_engine(self.listener, positions)
        self._engine.show_in(self._instruments)
        self._engine.start()
        self._started = True
        if given and not self.options.broadcast:
            try:
                await self._engine.wait_until_joined(ADMISSION_S)
            except BusyError:
                await self.shutdown()
                raise
            self._check_not_ended()

    def _make_engine(self, listener: Listener, positions: OffsetStore) -> Rebalancer:
        subscriptions = self._subscriptions
        if not self.options.broadcast:
            subscriptions = subscriptions | {retry_topic(self.group): Subscription()}
        profile = MemberInfo(
            self.group,
            self._client_id,
            f"{self._environment.random.getrandbits(64):016x}",
            {topic: subscription.text for topic, subscription in subscriptions.items()},
            self.options.broadcast,
            self.options.orderly,
            self.options.strategy_name,
        )
        notes = ListenerNotes(self.group, self._router.clock, self._instruments)
        runner = self._make_executor(listener, self.options.consume_threads, notes)
        return Rebalancer(self._router, self._fetcher, profile, self.options, subscriptions, positions, runner)

    async def _check_filters(self) -> None:
        """InvalidArgumentError for a mistake in SQL.  Only nodes find it, before they look for the message, which no queue has."""
        deadline_ms = self._router.clock.monotonic_ms() + FILTER_MS
        filters = [(topic, subscription.sql) for topic, subscription in self._subscriptions.items() if subscription.sql]
        mistakes = await asyncio.gather(*(self._mistake_in(topic, sql, deadline_ms) for topic, sql in filters))
        for mistake in filter(None, mistakes):
            raise mistake

    async def _mistake_in(self, topic: str, sql: str, deadline_ms: int) -> InvalidArgumentError | None:
        request = broker_pb2.FetchRequest(topic=topic, offset=MAX_OFFSET, group=self.group, sql=sql)
        try:
            for group in list(await self._router.all_groups(deadline_ms))[:1]:
                await self._fetcher.read(group, request, deadline_ms)
        except InvalidArgumentError as error:
            return InvalidArgumentError(f"topic {topic}: {error.message}")
        except DledgerError as error:  # as a rule, that there is no such offset
            _logger.debug("consumer group %s: topic %s: %s", self.group, topic, error.message)
        return None

    def _check_not_ended(self) -> None:
        if self._ending is not None:
            raise InvalidArgumentError("a push consumer that was shut down cannot start again; make a new one")

    def _open_positions(self) -> OffsetStore:
        environment = self._environment
        address = environment.address.rpartition(":")[0]
        if self.options.broadcast:
            self._file = OffsetFile(self.options.offset_folder, address, self.group, self._client_id, environment.run_in_thread)
            self._client_id = self._file.client_id
            return LocalOffsetStore(self._router, self._file, self.options)
        self._client_id = self._client_id or f"{address}@{environment.process_id}@{environment.random.getrandbits(32):08x}"
        return BrokerOffsetStore(self._router, self.group, self.options)

    def assigned(self) -> list[MessageQueue]:
        """The queues that this consumer consumes now.

        Returns:
            The queues, sorted.

        Examples:
            >>> names = [str(queue) for queue in consumer.assigned()]
        """
        queues = self._engine.queues if self._engine is not None else {}
        return sorted(queue for queue, mine in queues.items() if mine.process_queue is not None and mine.end_reason is None)

    async def shutdown(self) -> None:
        """Stop consuming and leave the group. Safe to repeat.

        Waits for running listeners (at most ``await_termination_ms``), commits offsets and releases the queues. A call
        that is cancelled waits no longer, but the shutdown goes on; each further call waits for its end.

        Examples:
            >>> await consumer.shutdown()
        """
        if self._ending is None:
            self._router.channels.require_loop()
            self._ending = asyncio.get_running_loop().create_task(self._shut_down(), name=f"shutdown of group {self.group}")
        caller = asyncio.current_task()
        self._waiting.add(caller)
        try:
            await asyncio.shield(self._ending)  # half a shutdown would leave a member that takes queues and consumes none
        finally:
            self._waiting.discard(caller)

    async def _shut_down(self) -> None:
        if self._engine is not None:
            await self._engine.stop(self._waiting)
        if self._file is not None:
            await self._file.close()
        await self._fetcher.close()
        await self._router.close()

    close = shutdown
