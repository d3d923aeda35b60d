"""Ending transactions: commits and rollbacks of one producer, sent to the leader of their replica group in batches.

Owns the ends that are not acknowledged.  Ends that arrive while calls are in flight go into the next one.  A call is retried at the current
leader until its deadline; it is idempotent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from dledger_client.cluster.responses import garbage
from dledger_client.cluster.router import Router
from dledger_client.fetch.records import ReceivedMessage
from dledger_client.message import SendResult, SendStatus
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import ClientClosedError, DledgerError, NotSentError, OutcomeUnknownError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.tasks import BackgroundTasks

MAX_ENDS = 1000
CALLS_AT_ONCE = 2
CLOSED = "the producer was closed; the transaction is open"
NOT_KNOWN = "the producer was closed, or failed, before the end of the transaction was acknowledged"


class TransactionState(Enum):
    """How a local transaction ended, as its producer reports it.

    Attributes:
        COMMIT: Deliver the message.
        ROLLBACK: Discard the message.
        UNKNOWN: Not known yet; the broker checks again later.
    """

    COMMIT = transaction_pb2.TRANSACTION_COMMIT
    ROLLBACK = transaction_pb2.TRANSACTION_ROLLBACK
    UNKNOWN = transaction_pb2.TRANSACTION_UNKNOWN


class TransactionOutcome(Enum):
    """The state of a transaction in the cluster.

    Attributes:
        OPEN: Neither committed nor rolled back.
        COMMITTED: Consumers get the message.
        ROLLED_BACK: The message is discarded.
        PARKED: No producer reported an end within ``transactionCheckMax`` checks; the message is in TRANS_CHECK_MAX_TIME_TOPIC.
        ENDED: It ended too long ago to know how.
    """

    OPEN = transaction_pb2.TRANSACTION_OPEN
    COMMITTED = transaction_pb2.TRANSACTION_COMMITTED
    ROLLED_BACK = transaction_pb2.TRANSACTION_ROLLED_BACK
    PARKED = transaction_pb2.TRANSACTION_PARKED
    ENDED = transaction_pb2.TRANSACTION_ENDED


CheckAnswer: TypeAlias = TransactionState | Awaitable[TransactionState]
CheckListener: TypeAlias = Callable[[ReceivedMessage], CheckAnswer]


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The result of a transaction.

    Attributes:
        state: What the local transaction returned.
        outcome: The state in the cluster; OPEN when the end could not be reported in time: a check will decide.
        half: Where the half message is stored.
    """

    state: TransactionState
    outcome: TransactionOutcome
    half: SendResult

    @property
    def status(self) -> SendStatus:
        """SEND_OK: the half message is stored."""
        return self.half.status

    @property
    def msg_id(self) -> str:
        """The unique id of the message."""
        return self.half.msg_id

    @property
    def transaction_id(self) -> str:
        """The id of the transaction: that of the message."""
        return self.half.msg_id


@dataclass(slots=True)
class _Waiting:
    end: transaction_pb2.TransactionEnd
    deadline_ms: int
    answer: asyncio.Future[TransactionOutcome]


class TransactionResolver:
    """Ends the transactions of one producer group in one replica group."""

    def __init__(self, router: Router, group: str, producer_group: str) -> None:
        self._router, self._group, self._producer_group = router, group, producer_group
        self._waiting: deque[_Waiting] = deque()
        self._calls = BackgroundTasks(f"end transactions at {group}", self._fail_waiting)
        self._calling = 0  # calls that will check the queue once more; a task that ends is counted out before others run
        self._stopped = False

    async def end(self, half_offset: int, transaction_id: str, state: TransactionState, timeout_ms: int) -> TransactionOutcome:
        """End a transaction; what it is then.  Raises what kept the cluster from answering in time, or why it refused."""
        if self._stopped:
            raise ClientClosedError(CLOSED)
        end = transaction_pb2.TransactionEnd(half_offset=half_offset, transaction_id=transaction_id, resolution=state.value)
        waiting = _Waiting(end, self._router.clock.monotonic_ms() + timeout_ms, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._calling < CALLS_AT_ONCE:
            self._calling += 1
            self._calls.spawn(self._call(), "call")
        return await waiting.answer

    async def _call(self) -> None:
        try:
            while self._waiting:
                await self._call_once([self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_ENDS))])
        finally:
            self._calling -= 1

    async def _call_once(self, taken: list[_Waiting]) -> None:
        outcomes: Sequence[TransactionOutcome | DledgerError] = [OutcomeUnknownError(NOT_KNOWN)] * len(taken)
        try:
            outcomes = await self._ask(taken)
        except DledgerError as error:
            outcomes = [error] * len(taken)
        finally:  # cancelled, or an internal error: the callers get a result
            for waiting, outcome in zip(taken, outcomes, strict=True):
                _settle(waiting, outcome)

    async def _ask(self, taken: list[_Waiting]) -> list[TransactionOutcome | DledgerError]:
        request = transaction_pb2.EndTransactionsRequest(producer_group=self._producer_group, ends=[each.end for each in taken])
        deadline_ms = max(each.deadline_ms for each in taken)
        results = (await self._router.call_leader(self._group, methods.END_TRANSACTIONS, request, deadline_ms=deadline_ms)).results
        if len(results) != len(taken):
            raise garbage(self._group, f"{len(results)} answers for {len(taken)} transactions")
        return [self._outcome(each) for each in results]

    def _outcome(self, result: transaction_pb2.TransactionEnded) -> TransactionOutcome | DledgerError:
        if result.HasField("error"):
            return from_detail(result.error)
        try:
            return TransactionOutcome(result.outcome)
        except ValueError:
            return garbage(self._group, f"unknown transaction outcome ({result.outcome})")

    async def stop(self) -> None:
        """Fail what waits, and what is in flight."""
        self._stopped = True
        await self._calls.stop()
        self._fail_waiting()

    def _fail_waiting(self, bug: BaseException | None = None) -> None:
        error: DledgerError = ClientClosedError(CLOSED)
        if bug is not None:
            error = NotSentError(f"the transaction is open; ending it failed with an internal error ({bug!r})")
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            _settle(each, error)


def _settle(waiting: _Waiting, outcome: TransactionOutcome | DledgerError) -> None:
    """Give a caller its result, unless it was cancelled meanwhile."""
    if waiting.answer.done():
        return
    if isinstance(outcome, DledgerError):
        waiting.answer.set_exception(outcome)
    else:
        waiting.answer.set_result(outcome)
