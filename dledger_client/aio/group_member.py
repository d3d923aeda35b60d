"""What a consumer in a group is before anything is consumed: its name, its connections, its subscriptions, and how it begins and ends.

Owns the life of the engine (``consumer/rebalancer.py``), which the push consumer and the polled one share.  How messages are consumed
is theirs: a subclass says which executor and which queues the engine works with.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from dledger_client.aio.base import AsyncClient
from dledger_client.cluster.channels import Bootstrap, parse_bootstrap
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import ListenerExecutor
from dledger_client.consumer.group_offsets import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from dledger_client.consumer.group_session import MemberInfo
from dledger_client.consumer.offset_file import OffsetFile
from dledger_client.consumer.queue_consumer import OpenQueue
from dledger_client.consumer.rebalancer import Rebalancer
from dledger_client.consumer.settings import PushOptions
from dledger_client.consumer.topic_patterns import Pattern, TopicPatterns
from dledger_client.fetch.fetch_metrics import FetchMetrics
from dledger_client.fetch.fetcher import Fetcher
from dledger_client.fetch.subscription import Subscription
from dledger_client.metrics.instruments import installed
from dledger_client.runtime.argument_ranges import MAX_OFFSET, MAX_U32, check_text, within
from dledger_client.runtime.environment import environment_for
from dledger_client.runtime.security import SecuritySettings
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError
from dledger_wire.names import MAX_ID_CHARS, check_group, check_topic, retry_topic

ADMISSION_S = 3.0  # longer than a member that died is kept
ENDS_S = 3.0  # for replica groups to say where their queues end
FILTER_MS = 2000  # for a node to say whether it understands a filter
IDLE_STREAMS = 64  # every queue polls on one of its own

_logger = logging.getLogger(__name__)


class GroupMember(AsyncClient):
    """A consumer in a group; use ``PushConsumer`` or ``Consumer``."""

    options: PushOptions

    def _set_up(
        self, bootstrap: Bootstrap, group: str, read_from: str, client_id: str, timeout_ms: int, security: SecuritySettings
    ) -> None:
        """The part of a constructor that all share; ``options`` are there already."""
        self._bootstrap = ",".join(parse_bootstrap(bootstrap))
        self.group = check_group(group)
        within(1, MAX_U32, timeout_ms=timeout_ms)
        check_text(client_id=client_id)
        if len(client_id) > MAX_ID_CHARS or not client_id.isprintable():
            raise InvalidArgumentError(f"client_id {client_id[:40]!r}: expected at most {MAX_ID_CHARS} printable characters")
        self._client_id, self._timeout_ms = client_id, timeout_ms
        self._environment = environment_for(bootstrap, **security)
        self._subscriptions: dict[str, Subscription] = {}
        self._router = self._environment.open_router(bootstrap)
        self._patterns = TopicPatterns(self._router)
        self._following: asyncio.Task[None] | None = None  # what looks for topics of patterns
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

    @property
    def client_id(self) -> str:
        """This consumer's name in the group; chosen by ``start`` unless given."""
        return self._client_id

    def subscribe(self, topic: str | Pattern, expression: str = "*", *, sql: str = "") -> None:
        """Consume a topic, or consume it with another filter. While the consumer runs, its queues are shared out within moments.

        Args:
            topic: The topic; or a pattern, of ``re.compile``, that the whole name of a topic has to match: all topics that this user may
                see, also those that are created later, are found within some seconds. The user needs the right to read them.
            expression: Tags to consume: ``a || b``; ``*``: all.
            sql: An SQL92 filter of properties, instead of tags.

        Raises:
            InvalidArgumentError: The tags have a mistake, or the consumer was shut down. A mistake in ``sql`` is found by the nodes: when
                the consumer starts, or later in its log.

        Examples:
            >>> consumer.subscribe("orders", "created || paid")
            >>> consumer.subscribe(re.compile(r"orders-.*"))
        """
        self._check_not_ended()
        subscription = Subscription(expression, sql)
        if isinstance(topic, re.Pattern):
            self._patterns.add(topic, subscription)
        else:
            self._subscriptions[check_topic(topic)] = subscription
        self._apply_subscriptions()

    def unsubscribe(self, topic: str | Pattern) -> None:
        """Consume a topic no more. What was consumed of it is committed, and the other members get its queues.

        Args:
            topic: The topic, or the pattern.

        Raises:
            InvalidArgumentError: The consumer does not consume the topic, or was shut down.

        Examples:
            >>> consumer.unsubscribe("orders")
        """
        self._check_not_ended()
        removed = self._patterns.remove(topic) if isinstance(topic, re.Pattern) else self._subscriptions.pop(topic, None)
        if removed is None:
            raise InvalidArgumentError(f"topic {topic!r}: not subscribed")
        self._apply_subscriptions()

    def _apply_subscriptions(self) -> None:
        """While the engine runs: let it know, and look for the topics of patterns."""
        if self._engine is not None:
            self._engine.subscribe(self._wanted())
            if self._patterns and self._following is None:
                self._following = self._engine.spawn(self._follow_patterns(self._engine), "topics by patterns")

    async def _follow_patterns(self, engine: Rebalancer) -> None:
        while True:
            await self._patterns.look()
            engine.subscribe(self._wanted())
            await self._patterns.wait()

    def _wanted(self) -> dict[str, Subscription]:
        """All topics to consume, with that from which the group's messages come again."""
        again = {} if self.options.broadcast else {retry_topic(self.group): Subscription()}
        return self._patterns.matches() | self._subscriptions | again

    async def _begin(self) -> None:
        """Join the group, once."""
        async with self._starting:
            self._check_not_ended()
            self._router.channels.require_loop()
            if not self._started:
                self._check_complete()
                await self._join()

    def _check_complete(self) -> None:
        """InvalidArgumentError while something is missing to begin."""
        raise NotImplementedError

    def _consuming(self) -> tuple[ListenerExecutor, OpenQueue | None]:
        """What consumes, and what keeps the messages of a queue for it."""
        raise NotImplementedError

    async def _join(self) -> None:
        await self._router.reach(self._router.clock.monotonic_ms() + self._timeout_ms)
        await self._check_filters()
        self._check_not_ended()
        given = bool(self._client_id)
        positions = self._positions = self._positions or self._open_positions()
        if self._patterns:
            await self._patterns.look()
        await positions.fix_ends(self._patterns.matches() | self._subscriptions, min(self._timeout_ms / 1000, ENDS_S))
        self._check_not_ended()
        self._engine = self._make_engine(positions)
        self._engine.show_in(self._instruments)
        self._engine.start()
        self._started = True
        self._apply_subscriptions()
        if given and not self.options.broadcast:
            try:
                await self._engine.wait_until_joined(ADMISSION_S)
            except BusyError:
                await self._end()
                raise
            self._check_not_ended()

    def _make_engine(self, positions: OffsetStore) -> Rebalancer:
        subscriptions = self._wanted()
        profile = MemberInfo(
            self.group,
            self._client_id,
            f"{self._environment.random.getrandbits(64):016x}",
            {topic: subscription.text for topic, subscription in subscriptions.items()},
            self.options.broadcast,
            self.options.orderly,
            self.options.strategy_name,
        )
        executor, open_queue = self._consuming()
        engine = Rebalancer(self._router, self._fetcher, profile, self.options, subscriptions, positions, executor)
        engine.open_queue = open_queue or engine.open_queue
        return engine

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
            raise InvalidArgumentError("a consumer that was shut down cannot start again; make a new one")

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

    async def _end(self) -> None:
        """Stop consuming and leave the group, once, whatever becomes of its callers."""
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
