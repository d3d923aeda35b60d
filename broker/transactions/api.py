"""The Transactions service: producers join to be checked and end their transactions, operators list open ones.  Served by the master; open
ones also by any replica.

Owns the calls, and what runs in one term: the producers' sessions (``producer_sessions.py``), the checks (``checker.py``) and the resolver
(``resolver.py``) end with the term, before anything of a later term starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import islice

from broker.context import ServiceContext
from broker.security.access import CLUSTER_NAME
from broker.security.guarded_stream import GuardedStream
from broker.support.limits import in_slices
from broker.transactions.checker import TransactionChecker
from broker.transactions.half_message_reads import read_halves
from broker.transactions.producer_sessions import ProducerSessions
from broker.transactions.resolver import EndRequest, EndResult, TransactionResolver
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, NotReadyError, OutcomeUnknownError
from dledger_wire.frames.frame import Frame
from dledger_wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import to_detail
from dledger_wire.rpc.transport import ByteStream, CallContext, Server
from dledger_wire.tasks import BackgroundTasks
from store.append.half_messages import REAL_QUEUE, REAL_TOPIC, producer_group, transaction_id
from store.commands.security import Action, Resource
from store.state.transactions import Outcome

TIMEOUT_S = 5.0
MAX_ENDS = 10_000
ENDS_AT_ONCE = 500
MAX_SHOWN = 1000

_WANTED = {
    transaction_pb2.TRANSACTION_UNKNOWN: Outcome.OPEN,
    transaction_pb2.TRANSACTION_COMMIT: Outcome.COMMITTED,
    transaction_pb2.TRANSACTION_ROLLBACK: Outcome.ROLLED_BACK,
}
_OUTCOMES = {
    Outcome.OPEN: transaction_pb2.TRANSACTION_OPEN,
    Outcome.COMMITTED: transaction_pb2.TRANSACTION_COMMITTED,
    Outcome.ROLLED_BACK: transaction_pb2.TRANSACTION_ROLLED_BACK,
    Outcome.PARKED: transaction_pb2.TRANSACTION_PARKED,
    Outcome.ENDED: transaction_pb2.TRANSACTION_ENDED,
}


class _Term:
    """Everything about transactions in one term of this master."""

    def __init__(self, context: ServiceContext, term: int, tasks: BackgroundTasks) -> None:
        self.term = term
        self.members = ProducerSessions(context.env.clock)
        self.resolver = TransactionResolver(context, term, tasks)
        tasks.spawn(TransactionChecker(context, self.resolver, self.members).run(), "check")


class TransactionService:
    """Serves the calls; implements ``broker.context.MasterService``."""

    name = "transactions"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._current: _Term | None = None

    def register(self, server: Server) -> None:
        methods.JOIN_PRODUCER_GROUP.serve(server, self.join)
        methods.END_TRANSACTIONS.serve(server, self.end)
        methods.DESCRIBE_TRANSACTIONS.serve(server, self.describe)

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        self._current = _Term(self._context, term, tasks)

    async def stop(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.members.end(NotLeaderError(f"{self._context.settings.node.id} is no longer the master", leader_address=""))

    def _term(self) -> _Term:
        term = self._context.require_master()
        if self._current is None or self._context.roles.services_term != term:
            raise NotReadyError(f"{self._context.settings.node.id}: transactions of term {term} have not started yet")
        return self._current

    async def join(self, stream: ByteStream, caller: CallContext) -> None:
        message = await stream.read()
        if message is not None:
            join = methods.decode(transaction_pb2.ProducerJoin, message)
            access = self._context.access
            check = partial(access.require, caller.principal, Action.WRITE, Resource.GROUP, join.producer_group)
            guarded = GuardedStream(stream, access, check)
            try:
                await self._term().members.join(join, guarded)
            finally:
                guarded.release()

    async def end(self, request: transaction_pb2.EndTransactionsRequest, _caller: CallContext) -> transaction_pb2.EndTransactionsResponse:
        term = self._term()
        if len(request.ends) > MAX_ENDS:
            raise InvalidArgumentError(f"{len(request.ends)} transactions to end; expected at most {MAX_ENDS}")
        ends = []
        async for each in in_slices(request.ends):
            if each.resolution not in _WANTED:
                raise InvalidArgumentError(f"resolution {each.resolution} of a transaction; expected commit, rollback or unknown")
            ends.append(EndRequest(request.producer_group, each.half_offset, each.transaction_id, _WANTED[each.resolution]))
        answers: list[EndResult] = []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for first in range(0, len(ends), ENDS_AT_ONCE):
                    answers += await term.resolver.end(ends[first : first + ENDS_AT_ONCE])
                    await asyncio.sleep(0)
        except TimeoutError:
            raise OutcomeUnknownError(f"ending transactions was not committed within {TIMEOUT_S:g} s; it may still be") from None
        reply = transaction_pb2.EndTransactionsResponse()
        async for each in in_slices(answers):
            error = to_detail(each.error) if each.error is not None else None
            reply.results.add(outcome=_OUTCOMES[each.outcome], now=each.now, error=error)
        return reply

    async def describe(
        self, request: transaction_pb2.DescribeTransactionsRequest, caller: CallContext
    ) -> transaction_pb2.DescribeTransactionsResponse:
        reply = transaction_pb2.DescribeTransactionsResponse(replica=self._context.answering_replica())
        if not request.any_replica:
            self._describe_attending(self._term(), caller, reply)
        elif self._context.roles.master_term:
            with contextlib.suppress(NotReadyError):  # a new master's services begin in a moment
                self._describe_attending(self._term(), caller, reply)
        if not request.only_attending:
            await self._describe_open(request, caller, reply)
        return reply

    def _describe_attending(self, term: _Term, caller: CallContext, reply: transaction_pb2.DescribeTransactionsResponse) -> None:
        for group, count in term.members.counts().items():
            if self._context.access.may(caller.principal, Action.DESCRIBE, Resource.GROUP, group):
                reply.attending.add(producer_group=group, producers=count)

    async def _describe_open(
        self,
        request: transaction_pb2.DescribeTransactionsRequest,
        caller: CallContext,
        reply: transaction_pb2.DescribeTransactionsResponse,
    ) -> None:
        """From replicated state."""
        store = self._context.store
        low, high = store.reader.bounds(HALF_TOPIC, 0, for_service=True)
        parked = store.reader.bounds(CHECK_MAX_TIME_TOPIC, 0, for_service=True)
        if self._context.access.may(caller.principal, Action.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
            reply.open, reply.parked = store.transactions.open_count(high), parked[1] - parked[0]
        sees = partial(self._context.access.may, caller.principal, Action.DESCRIBE, Resource.GROUP)
        offsets = list(islice(store.transactions.open_from(low, high), min(request.max_transactions or MAX_SHOWN, MAX_SHOWN)))
        for half in await read_halves(self._context, offsets):
            if not isinstance(half, Frame):
                continue  # whose it is cannot be said; the checker logs it
            group = producer_group(half)
            if request.producer_group in ("", group) and sees(group):
                self._describe(half, reply)

    def _describe(self, half: Frame, reply: transaction_pb2.DescribeTransactionsResponse) -> None:
        times, checked_ms = self._context.store.transactions.checks(half.queue_offset)
        queue = half.properties.get(REAL_QUEUE, "")
        reply.transactions.add(
            half_offset=half.queue_offset,
            transaction_id=transaction_id(half),
            producer_group=producer_group(half),
            topic=half.properties.get(REAL_TOPIC, ""),
            queue_id=int(queue) if queue.isdecimal() else 0,
            stored_ms=half.store_timestamp,
            check_times=times,
            checked_ms=checked_ms,
        )
