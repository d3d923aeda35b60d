"""The transaction producer for asyncio: a message is delivered only when its local transaction commits.

Owns the steps: store the half message, run the local transaction, report its end; and the answers to checks.  The
half message is stored first, so whatever fails later, the leader checks with a producer of the group, and the
answer decides.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from dledger_client import tracing
from dledger_client.aio.producer import Producer
from dledger_client.cluster.channels import Bootstrap
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.message import Message, SendResult
from dledger_client.producer.half_messages import half_of
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_client.producer.settings import CheckOptions, TransactionSettings, is_of_checks
from dledger_client.runtime.user_callbacks import FAULTS, is_own_end
from dledger_client.transactions.check_stream import TransactionCheckStream
from dledger_client.transactions.resolver import (
    CheckAnswer,
    CheckListener,
    TransactionOutcome,
    TransactionResolver,
    TransactionResult,
    TransactionState,
)
from dledger_wire.errors import DledgerError
from dledger_wire.names import check_group
from dledger_wire.tasks import BackgroundTasks

if TYPE_CHECKING:
    from dledger_client.tracing.otel_spans import Work

LocalTransaction: TypeAlias = Callable[[Message, Any], CheckAnswer]
Runner: TypeAlias = Callable[[CheckListener, ReceivedMessage], Awaitable[TransactionState]]
T = TypeVar("T")

JOIN_TIMEOUT_MS = 5000
LOOK_S = 5.0  # how often is looked for replica groups

_logger = logging.getLogger(__name__)


class Transaction:
    """A stored half message that is neither committed nor rolled back. Made by ``TransactionProducer.prepare``.

    Examples:
        >>> transaction = await producer.prepare(Message("orders", b"created"))
        >>> outcome = await transaction.commit()
    """

    def __init__(self, half: SendResult, ends: TransactionResolver, timeout_ms: int) -> None:
        self._half = half
        self._ends, self._timeout_ms = ends, timeout_ms

    @property
    def half(self) -> SendResult:
        """Where the half message is stored."""
        return self._half

    async def commit(self) -> TransactionOutcome:
        """Deliver the message.

        Returns:
            The state in the cluster; another one than COMMITTED when the transaction had ended before.

        Raises:
            DledgerError: The end could not be reported in time; repeat the call, or leave it to a check.

        Examples:
            >>> outcome = await transaction.commit()
        """
        return await self.end(TransactionState.COMMIT)

    async def rollback(self) -> TransactionOutcome:
        """Discard the message.

        Returns:
            The state in the cluster; another one than ROLLED_BACK when the transaction had ended before.

        Raises:
            DledgerError: The end could not be reported in time; repeat the call, or leave it to a check.

        Examples:
            >>> outcome = await transaction.rollback()
        """
        return await self.end(TransactionState.ROLLBACK)

    async def end(self, state: TransactionState) -> TransactionOutcome:
        """End the transaction. Safe to repeat: the first end counts, and the result says which it was.

        Args:
            state: COMMIT or ROLLBACK.

        Returns:
            The state in the cluster.

        Raises:
            DledgerError: The end could not be reported in time; repeat the call, or leave it to a check.

        Examples:
            >>> outcome = await transaction.end(TransactionState.COMMIT)
        """
        return await self._ends.end(self._half.queue_offset, self._half.msg_id, state, self._timeout_ms)


class TransactionProducer(Producer):
    """Sends messages in transactions, and plain messages like ``Producer``, whose settings it has too.

    ``check_listener(message)`` reports the state of the local transaction of a message: COMMIT, ROLLBACK, or
    UNKNOWN to be asked again later. Any live producer of the group may be asked about any message of the group, so
    keep the answer in shared, durable storage.

    Args:
        bootstrap: Addresses of any nodes: ``host:port,host:port`` or a list of them.
        group: Name of the producer group.
        check_listener: Reports the state of a transaction.
        settings: See ``TransactionSettings``.

    Raises:
        InvalidArgumentError: There is no check listener, or a setting is outside its range.
        ConfigError: A file of ``SecuritySettings`` cannot be used.
        InvalidNameError: The group's name is not valid.

    Examples:
        >>> def check(message):
        ...     return TransactionState.COMMIT if is_paid(message.keys) else TransactionState.ROLLBACK
        >>> async with TransactionProducer("127.0.0.1:10911", "payments", check) as producer:
        ...     message = Message("orders", b"paid", keys="order-7")
        ...     result = await producer.send_in_transaction(message, lambda message, argument: TransactionState.COMMIT)
        ...     print(result.outcome)
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str = "",
        check_listener: CheckListener | None = None,
        **settings: Unpack[TransactionSettings],
    ) -> None:
        checks = CheckOptions.of(check_listener, settings)
        of_producer: Any = {name: value for name, value in settings.items() if not is_of_checks(name)}
        super().__init__(bootstrap, group, **of_producer)
        self.group = check_group(self._options.group)
        self._run_listener: Runner = on_the_loop
        self._check_threads = checks.check_threads
        self._listener: CheckListener = checks.check_listener
        self._check_topics = None if checks.check_topics is None else tuple(checks.check_topics)
        self._questions: asyncio.Queue[ReceivedMessage] = asyncio.Queue(checks.check_requests_held)
        self._ends: dict[str, TransactionResolver] = {}
        self._tasks = BackgroundTasks("transactions")
        self._warned = False  # of a listener's answer that is none
        self._attending: dict[str, None] = {}

    async def __aenter__(self) -> TransactionProducer:
        self.start()
        return self

    def start(self) -> None:
        """Begin to answer checks. The first transaction does so too. Returns at once.

        Examples:
            >>> producer.start()
        """
        if not self._tasks and not self._closed:
            self._tasks.spawn(self._attend_all(), "attend")
            for number in range(self._check_threads):
                self._tasks.spawn(self._answer(), f"answer {number}")

    # Sending

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        argument: Any = None,
        queue_key: QueueKey = None,
        queue_id: QueueNumber | None = None,
    ) -> TransactionResult:
        """Store a half message, run the local transaction, and commit or roll back as it says.

        Args:
            message: The message. Do not change it afterwards.
            local: The local transaction: called as ``local(message, argument)``, returns a ``TransactionState``.
            argument: Given to ``local``.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            The result. Its outcome is OPEN when the end could not be reported in time: a check will decide.

        Raises:
            DledgerError: The half message failed; ``local`` was not called.
            Exception: What ``local`` raised; the transaction stays open and a check decides.

        Examples:
            >>> result = await producer.send_in_transaction(Message("orders", b"paid"), lambda message, argument: TransactionState.COMMIT)
        """
        transaction = await self.prepare(message, queue_key, queue_id)
        state = await _awaited(local(message, argument))
        return await self._finish(transaction, state)

    async def prepare(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> Transaction:
        """The first step alone: store the half message. The caller ends the transaction.

        Args:
            message: The message. Do not change it afterwards.
            queue_key: Messages with equal keys keep their order in one queue; or a function of the number of queues
                that chooses one.
            queue_id: The queue, instead of a key: its number, in the first replica group that has it, or (replica group, number).

        Returns:
            The open transaction.

        Raises:
            DledgerError: The half message failed.

        Examples:
            >>> transaction = await producer.prepare(Message("orders", b"paid"))
        """
        self.start()
        half = await self.send(half_of(message, self.group), queue_key, queue_id)
        self._attend(half.replica_group)
        return Transaction(half, self._ends_of(half.replica_group), self._core.options.send_timeout_ms)

    async def _finish(self, transaction: Transaction, state: TransactionState) -> TransactionResult:
        """The last step: UNKNOWN leaves the transaction open."""
        if not isinstance(state, TransactionState):
            raise TypeError(f"a local transaction ends with a TransactionState, not {state!r}; the transaction is open")
        outcome = TransactionOutcome.OPEN
        if state is not TransactionState.UNKNOWN:
            try:
                outcome = await transaction.end(state)
            except DledgerError as error:
                _logger.warning("transaction %s: its end (%s) is not known: %s", transaction.half.msg_id, state.name, error.message)
        return TransactionResult(state, outcome, transaction.half)

    def _ends_of(self, group: str) -> TransactionResolver:
        ends = self._ends.get(group)
        if ends is None:
            ends = self._ends[group] = TransactionResolver(self._core.router, group, self.group)
        return ends

    # Being asked

    async def _attend_all(self) -> None:
        """In the replica groups of the topics, or in all, also in those that are added later."""
        while True:
            for topic in (None,) if self._check_topics is None else self._check_topics:
                try:
                    for group in await self._groups_of(topic):
                        self._attend(group)
                except DledgerError as error:
                    _logger.info("transactions: %s", error.message)
            await asyncio.sleep(LOOK_S)

    async def _groups_of(self, topic: str | None) -> Iterable[str]:
        router = self._core.router
        deadline_ms = router.clock.monotonic_ms() + JOIN_TIMEOUT_MS
        if topic is None:
            return await router.all_groups(deadline_ms)
        return [queues.replica_group for queues in await router.topic(topic, deadline_ms)]

    def _attend(self, group: str) -> None:
        if group not in self._attending:
            self._attending[group] = None
            client_id = f"{self._environment.address}@{self._environment.process_id}"
            self._tasks.spawn(
                TransactionCheckStream(self._core.router, group, self.group, client_id, self._asked).run(), f"attend at {group}"
            )

    def _asked(self, message: ReceivedMessage) -> None:
        if not self._questions.full():  # the node asks again
            self._questions.put_nowait(message)

    async def _answer(self) -> None:
        while True:
            message = await self._questions.get()
            state = await self._decided(message)
            if state is not TransactionState.UNKNOWN:
                try:
                    timeout_ms = self._core.options.send_timeout_ms
                    await self._ends_of(message.replica_group).end(message.queue_offset, message.msg_id, state, timeout_ms)
                except DledgerError as error:
                    _logger.info("transaction %s: %s", message.msg_id, error.message)

    async def _decided(self, message: ReceivedMessage) -> TransactionState:
        """What the listener says; UNKNOWN when it fails or returns nothing that can be used: the node asks again."""
        spans = tracing.spans()
        if spans is None:
            return await self._answer_of_listener(message, None)
        with spans.processing([message], "", operation="check", in_callback=True) as note:
            return await self._answer_of_listener(message, note)

    async def _answer_of_listener(self, message: ReceivedMessage, note: Work | None) -> TransactionState:
        try:
            state: object = await self._run_listener(self._listener, message)
        except FAULTS as error:
            if is_own_end(error):
                raise
            _logger.exception("the check listener failed for %r", message)
            if note is not None:
                note.failed(error)
            return TransactionState.UNKNOWN
        if isinstance(state, TransactionState):
            return state
        if not self._warned:
            self._warned = True
            name = getattr(self._listener, "__qualname__", repr(self._listener))
            _logger.error("check listener %s answered %r; expected a TransactionState: counts as UNKNOWN; logged once", name, state)
        return TransactionState.UNKNOWN

    async def close(self) -> None:
        """Flush, stop answering checks, close the connections. Safe to repeat.

        Open transactions stay open: other producers of the group are asked.

        Examples:
            >>> await producer.close()
        """
        await super().close()

    async def _shut_down(self) -> None:
        await self.flush()
        await self._tasks.stop()
        for ends in self._ends.values():
            await ends.stop()
        await super()._shut_down()


async def _awaited(answer: T | Awaitable[T]) -> T:
    return await answer if inspect.isawaitable(answer) else answer


async def on_the_loop(listener: CheckListener, message: ReceivedMessage) -> TransactionState:
    """A listener of the asyncio face: a function, or a coroutine function."""
    return await _awaited(listener(message))
