"""The push consumer for asyncio: messages are given to a listener, queues are shared with the other members of the group."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, Unpack

from dledger_client.cluster.metadata import Bootstrap, parse_bootstrap
from dledger_client.consumer.allocation import MessageQueue
from dledger_client.consumer.executors import ListenerExecutor, TaskExecutor
from dledger_client.consumer.group_offsets import BrokerOffsetStore, LocalOffsetStore, OffsetStore
from dledger_client.consumer.group_session import MemberInfo
from dledger_client.consumer.listener import Listener
from dledger_client.consumer.offset_file import OffsetFile
from dledger_client.consumer.rebalancer import Rebalancer
from dledger_client.consumer.settings import PushOptions, PushSettings
from dledger_client.fetch.fetcher import Replicas
from dledger_client.fetch.subscription import Subscription
from dledger_client.runtime.environment import environment_for, takes_old_environment
from dledger_client.unclosed import warn as warn_unclosed
from dledger_wire.errors import BusyError, InvalidArgumentError
from dledger_wire.names import check_group, check_topic, retry_topic

ADMISSION_S = 3.0  # longer than a member that died is kept
IDLE_STREAMS = 64  # every queue polls on one of its own


class PushConsumer:
    """Gives messages to ``listener(messages, context)``, a function or coroutine function that answers ``Action.COMMIT`` when they are
    consumed.  Anything else, an exception too, and they come again: after a delay that grows (through the group's retry topic, dead
    letters in the end), or, orderly, here and in order after ``suspend_current_queue_time_ms``.

    ``orderly``: one queue's messages one batch at a time, by one consumer of the group at a time.  ``broadcast``: every consumer gets
    everything; positions are kept in a file under ``offset_folder``.  ``consume_from_where``: first (default), last, or timestamp (with
    ``consume_timestamp`` in ms), for queues the group has not read yet.  ``consume_message_batch_max_size``: messages a call at most.
    ``consume_threads``: calls at once.  ``pull_threshold_for_queue`` and ``pull_threshold_size_for_queue``: messages and bytes fetched
    ahead of a queue's listeners, ``consume_concurrently_max_span``: how far the newest may be from the oldest unfinished one.
    ``max_reconsume_times``: attempts before the dead letters (-1: the group's setting; orderly: no limit).  ``allocate_strategy``: AVG,
    AVG_BY_CIRCLE, CONSISTENT_HASH, MACHINE_ROOM, MACHINE_ROOM_NEARBY (with ``allocate_options``), or a function of
    ``dledger_client.consumer.allocation``; the same for all members.  ``client_id``: this member's name, drawn unless given.  RocketMQ's
    names of the settings are taken too (docs/reference/semantics.md).
    """

    @takes_old_environment
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
        parse_bootstrap(bootstrap)
        self.group = check_group(group)
        self.listener = listener
        self.options = PushOptions.of(settings)
        if self.options.orderly and not self.options.broadcast and read_from != "leader":
            raise InvalidArgumentError(f"read_from {read_from!r}: an orderly consumer reads at the leader, which knows who holds its locks")
        self._bootstrap, self._read_from, self._client_id, self._timeout_ms = bootstrap, read_from, client_id, timeout_ms
        self._environment = environment_for(bootstrap)
        self._make_executor: Callable[[Listener, int], ListenerExecutor] = TaskExecutor
        self._subscriptions: dict[str, Subscription] = {}
        self._router = self._environment.open_router(bootstrap)
        self._replicas = Replicas(self._router, read_from, None, idle_streams=IDLE_STREAMS)
        self._engine: Rebalancer | None = None
        self._file: OffsetFile | None = None
        self._started = self._ended = False
        self._is_wrapped = False  # by a synchronous client, which warns itself when it is left open

    @property
    def _description(self) -> str:
        """What tells this consumer from others, for people."""
        return f"{self._client_id or 'a member'!r} of group {self.group!r} at {self._bootstrap}"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down."""
        return self._started and not self._ended

    @property
    def _is_left_open(self) -> bool:
        return self.is_running

    def __repr__(self) -> str:
        return f"<aio.{type(self).__name__} {self._description}>"

    def __del__(self) -> None:
        if not getattr(self, "_is_wrapped", True) and self.is_running:
            warn_unclosed(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.shutdown()

    def subscribe(self, topic: str, expression: str = "*", *, sql: str = "") -> None:
        """Before ``start``: consume this topic too; ``expression`` is ``tag || tag`` or ``*``, ``sql`` an SQL92 filter of properties."""
        if self._started:
            raise InvalidArgumentError("subscribe before the consumer is started")
        self._subscriptions[check_topic(topic)] = Subscription(expression, sql)

    def set_listener(self, listener: Listener) -> None:
        """Before ``start``: what messages are given to."""
        self.listener = listener

    @property
    def client_id(self) -> str:
        """This member's name in the group; drawn at the start unless given."""
        return self._client_id

    async def start(self) -> None:
        """Join the group and begin.  InvalidArgumentError without listener or subscription, UnreachableError when no node answers,
        BusyError when ``client_id`` was given and is that of another member."""
        if self._started:
            return
        if self.listener is None or not self._subscriptions:
            raise InvalidArgumentError("a push consumer needs a listener and at least one subscription before it starts")
        await self._router.ensure_groups(self._router.clock.monotonic_ms() + self._timeout_ms)
        self._started, given = True, bool(self._client_id)
        subscriptions, positions = self._subscriptions, self._open_positions()
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
        runner = self._make_executor(self.listener, self.options.consume_threads)
        self._engine = Rebalancer(self._router, self._replicas, profile, self.options, subscriptions, positions, runner)
        self._engine.start()
        if given and not self.options.broadcast:
            try:
                await self._engine.admitted(ADMISSION_S)
            except BusyError:
                await self.shutdown()
                raise

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
        """The queues that are consumed here now."""
        queues = self._engine.queues if self._engine is not None else {}
        return sorted(queue for queue, mine in queues.items() if mine.buffer is not None and mine.over is None)

    async def shutdown(self) -> None:
        """Wait for listeners at work (``await_termination_ms`` at most), commit, give everything back, leave.  Idempotent."""
        if self._ended:
            return
        self._ended = True
        if self._engine is not None:
            await self._engine.stop()
        if self._file is not None:
            await self._file.close()
        await self._replicas.close()
        await self._router.close()

    close = shutdown
