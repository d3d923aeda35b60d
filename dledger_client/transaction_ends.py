"""Telling masters how transactions end, many in one call.

Owns what waits to be told to one replica group.  While calls are under way what comes meanwhile is gathered for the next.  A call is tried
at whoever leads until its time is over: repeating it changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum

from dledger_client.answers import garbage, parse
from dledger_client.router import Router
from dledger_wire._pb import transaction_pb2
from dledger_wire.error_detail import from_detail
from dledger_wire.errors import DledgerError, NotSentError

END = "/dledger.v1.Transactions/EndTransactions"
MAX_ENDS = 1000
CALLS_AT_ONCE = 2


class TransactionState(Enum):
    """What a producer says of its local transaction.  UNKNOWN: it will be asked later."""

    COMMIT = transaction_pb2.TRANSACTION_COMMIT
    ROLLBACK = transaction_pb2.TRANSACTION_ROLLBACK
    UNKNOWN = transaction_pb2.TRANSACTION_UNKNOWN


class TransactionOutcome(Enum):
    """What the cluster says has become of a transaction.  ENDED: so long ago that it is not known any more how."""

    OPEN = transaction_pb2.TRANSACTION_OPEN
    COMMITTED = transaction_pb2.TRANSACTION_COMMITTED
    ROLLED_BACK = transaction_pb2.TRANSACTION_ROLLED_BACK
    PARKED = transaction_pb2.TRANSACTION_PARKED
    ENDED = transaction_pb2.TRANSACTION_ENDED


@dataclass(slots=True)
class _Waiting:
    end: transaction_pb2.TransactionEnd
    deadline_ms: int
    answer: asyncio.Future[TransactionOutcome]


class GroupEnds:
    """Ends for one replica group, of one producer group."""

    def __init__(self, router: Router, group: str, producer_group: str) -> None:
        self._router, self._group, self._producer_group = router, group, producer_group
        self._waiting: deque[_Waiting] = deque()
        self._calls: dict[asyncio.Task[None], None] = {}

    async def end(self, half_offset: int, transaction_id: str, state: TransactionState, timeout_ms: int) -> TransactionOutcome:
        """End a transaction; what it is then.  Raises what kept the cluster from answering in time, or why it refused."""
        end = transaction_pb2.TransactionEnd(half_offset=half_offset, transaction_id=transaction_id, resolution=state.value)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(end, self._router.clock.monotonic_ms() + timeout_ms, loop.create_future())
        self._waiting.append(waiting)
        if len(self._calls) < CALLS_AT_ONCE:
            task = loop.create_task(self._call(), name=f"end transactions at {self._group}")
            self._calls[task] = None
            task.add_done_callback(lambda done: self._calls.pop(done, None))
        return await waiting.answer

    async def _call(self) -> None:
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_ENDS))]
            try:
                outcomes = await self._ask(taken)
            except DledgerError as error:
                outcomes = [error] * len(taken)
            for waiting, outcome in zip(taken, outcomes, strict=True):
                if waiting.answer.done():
                    continue
                if isinstance(outcome, DledgerError):
                    waiting.answer.set_exception(outcome)
                else:
                    waiting.answer.set_result(outcome)

    async def _ask(self, taken: list[_Waiting]) -> list[TransactionOutcome | DledgerError]:
        request = transaction_pb2.EndTransactionsRequest(producer_group=self._producer_group, ends=[each.end for each in taken])
        deadline_ms = max(each.deadline_ms for each in taken)
        answer = await self._router.call_leader(self._group, END, request.SerializeToString(), deadline_ms=deadline_ms)
        results = parse(transaction_pb2.EndTransactionsResponse, answer, self._group).results
        if len(results) != len(taken):
            raise garbage(self._group, f"{len(results)} answers for {len(taken)} transactions")
        return [from_detail(each.error) if each.HasField("error") else TransactionOutcome(each.outcome) for each in results]

    async def stop(self) -> None:
        """Give up what waits."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for waiting in self._waiting:
            waiting.answer.set_exception(NotSentError("the producer was closed; the transaction is open"))
        self._waiting.clear()
