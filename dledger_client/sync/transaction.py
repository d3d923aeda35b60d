"""The synchronous producer of transactions: the asyncio one on the shared loop thread; local transactions run in the caller's thread, the
check listener in threads of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from dledger_client.aio.transaction import Transaction as AsyncTransaction
from dledger_client.aio.transaction import TransactionProducer as AsyncTransactionProducer
from dledger_client.cluster.metadata import Bootstrap
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.message import Message, SendResult
from dledger_client.producer.partitioner import QueueKey
from dledger_client.runtime.loop_thread import LoopThread
from dledger_client.sync.producer import Producer
from dledger_client.transactions.resolver import CheckListener, TransactionOutcome, TransactionResult, TransactionState

LocalTransaction: TypeAlias = Callable[[Message, Any], TransactionState]


def ask(listener: CheckListener, message: ReceivedMessage) -> Any:
    """In a thread of the pool: an exception that a future does not take, or the loop would end of, is an ordinary one outside."""
    try:
        return listener(message)
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class Transaction:
    """A half message that is stored, and waits for its end.  See ``dledger_client.aio.Transaction``."""

    def __init__(self, thread: LoopThread, inner: AsyncTransaction) -> None:
        self._thread, self.inner = thread, inner

    @property
    def half(self) -> SendResult:
        return self.inner.half

    def commit(self) -> TransactionOutcome:
        """Let consumers see the message."""
        return self._thread.run(self.inner.commit())

    def rollback(self) -> TransactionOutcome:
        """Let nobody ever see it."""
        return self._thread.run(self.inner.rollback())


class TransactionProducer(Producer):
    """Sends messages in transactions; safe to use from many threads.  See ``dledger_client.aio.TransactionProducer`` for the settings.

    Attends from the moment it is made; ``check_listener`` may use synchronous clients.
    """

    _inner: AsyncTransactionProducer

    def __init__(self, bootstrap: Bootstrap, group: str = "", check_listener: CheckListener | None = None, **settings: Any) -> None:
        inner = LoopThread.shared().call(lambda: AsyncTransactionProducer(bootstrap, group, check_listener, **settings))
        pool = self._pool = ThreadPoolExecutor(inner.check_threads, thread_name_prefix="dledger-check")

        async def in_a_thread(listener: CheckListener, message: ReceivedMessage) -> TransactionState:
            answer = await asyncio.get_running_loop().run_in_executor(pool, ask, listener, message)
            state: TransactionState = await answer if inspect.isawaitable(answer) else answer
            return state

        inner.run_listener = in_a_thread
        self._serve(inner)
        self._thread.call(inner.start)

    def send_in_transaction(
        self, message: Message, local: LocalTransaction, argument: Any = None, queue_key: QueueKey = None, queue_id: int | None = None
    ) -> TransactionResult:
        """Store ``message`` where nobody sees it, run ``local(message, argument)`` here, and end the transaction as it says."""
        transaction = self.prepare(message, queue_key, queue_id)
        state = local(message, argument)
        return self._thread.run(self._inner.finish(transaction.inner, state))

    def prepare(self, message: Message, queue_key: QueueKey = None, queue_id: int | None = None) -> Transaction:
        """The first step alone: the half message is stored; the caller ends the transaction."""
        return Transaction(self._thread, self._thread.run(self._inner.prepare(message, queue_key, queue_id)))

    def close(self) -> None:
        """Flush, stop being asked, close the connections.  Idempotent."""
        super().close()
        self._pool.shutdown(wait=False, cancel_futures=True)
