"""Transactions with threads: local transactions run in the caller's thread, the check listener in threads of its own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dledger_client.aio.transaction import Transaction as AsyncTransaction
from dledger_client.aio.transaction import TransactionProducer as AsyncTransactionProducer
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.message import Message
from dledger_client.producer.partitioner import QueueKey, QueueNumber
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.sync.base import SyncHandle
from dledger_client.sync.producer import Producer
from dledger_client.transactions.resolver import CheckListener, TransactionResult, TransactionState

if TYPE_CHECKING:
    from dledger_client.aio.producer import Producer as AsyncProducer
    from dledger_client.sync.transaction import Transaction

LocalTransaction: TypeAlias = Callable[[Message, Any], TransactionState]


class TransactionBase(SyncHandle[AsyncTransaction]):
    """The hand-written part of ``Transaction``."""

    def __init__(self, thread: LoopThread, inner: AsyncTransaction) -> None:
        self._thread, self._inner = thread, inner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner.half.msg_id}>"


class TransactionProducerBase(Producer):
    """The hand-written part of ``TransactionProducer``."""

    _inner: AsyncTransactionProducer
    _sync_notes: ClassVar[str] = """
    Safe to use from many threads. The producer answers the broker's checks as soon as it is made: ``check_listener`` runs in
    ``check_threads`` threads and may use synchronous clients.
    """

    def _open(self, make: Callable[[], AsyncProducer]) -> None:
        super()._open(make)
        inner = self._inner
        pool = self._pool = ThreadPoolExecutor(inner._check_threads, thread_name_prefix="dledger-check")

        async def in_a_thread(listener: CheckListener, message: ReceivedMessage) -> TransactionState:
            context = contextvars.copy_context()  # the span of the check is current in the thread, too
            answer = await asyncio.get_running_loop().run_in_executor(pool, context.run, ask, listener, message)
            state: TransactionState = await answer if inspect.isawaitable(answer) else answer
            return state

        inner._run_listener = in_a_thread
        self._call(inner.start)

    def _sync_send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        argument: Any = None,
        queue_key: QueueKey = None,
        queue_id: QueueNumber | None = None,
    ) -> TransactionResult:
        half = self._run(self._inner.prepare(message, queue_key, queue_id))
        state = local(message, argument)
        return self._run(self._inner._finish(half, state))

    def _sync_prepare(self, message: Message, queue_key: QueueKey = None, queue_id: QueueNumber | None = None) -> Transaction:
        from dledger_client.sync.transaction import Transaction

        return Transaction(self._thread, self._run(self._inner.prepare(message, queue_key, queue_id)))

    def _sync_close(self) -> None:
        super().close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def ask(listener: CheckListener, message: ReceivedMessage) -> Any:
    """Call the listener in a thread of the pool.  An exception that a future cannot carry, or that would end the loop, is wrapped."""
    try:
        return listener(message)
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
