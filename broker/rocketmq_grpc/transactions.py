"""EndTransaction, and the question to RocketMQ's gRPC producers what became of their transactions, on their streams.

A transaction belongs to the topic of its message: any producer of the topic is asked, in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count

from broker.node import BrokerNode
from broker.remoting.leader import Leader
from broker.remoting.transactions import as_sent
from broker.rocketmq_grpc._pb.definition_pb2 import Code, TransactionResolution
from broker.rocketmq_grpc._pb.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from broker.rocketmq_grpc.client import Client, topic_of
from broker.rocketmq_grpc.outgoing import message_of
from broker.rocketmq_grpc.sessions import Session, Sessions
from broker.rocketmq_grpc.statuses import StatusError, ok
from broker.rocketmq_grpc.transaction_ids import half_of, transaction_id
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import InvalidArgumentError, UnreachableError
from dledger_wire.frames.frame import decode_frame
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.local import LocalCaller
from store.append.half_messages import transaction_id as unique_of
from store.commands.security import Action, Resource

WRITE_S = 1.0
_ENDS = {
    TransactionResolution.COMMIT: transaction_pb2.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: transaction_pb2.TRANSACTION_ROLLBACK,
}


class GrpcTransactions:
    """Serves it for one node.  Implements ``Producers``."""

    def __init__(self, node: BrokerNode, leader: Leader, sessions: Sessions) -> None:
        self._node, self._leader, self._sessions = node, leader, sessions
        self._turns = count()

    async def end(self, request: EndTransactionRequest, client: Client) -> EndTransactionResponse:
        topic, (unique, offset) = topic_of(request.topic), half_of(request.transaction_id)
        if request.resolution not in _ENDS:
            raise StatusError(Code.BAD_REQUEST, "resolution: expected COMMIT or ROLLBACK")
        ends = transaction_pb2.EndTransactionsRequest(producer_group=topic)
        ends.ends.add(half_offset=offset, transaction_id=unique, resolution=_ENDS[request.resolution])
        self._sessions.produces(client, topic)
        (result,) = (await self._leader.call(methods.END_TRANSACTIONS, ends)).results
        if result.HasField("error"):
            error = from_detail(result.error)
            if isinstance(error, InvalidArgumentError):
                raise StatusError(Code.INVALID_TRANSACTION_ID, error.message)
            raise error
        return EndTransactionResponse(status=ok())

    # What the leader asks

    @property
    def producer_groups(self) -> set[str]:
        return self._sessions.topics

    def caller_for(self, group: str) -> LocalCaller:
        return next((session.caller for session in self._producers_of(group)), LocalCaller())

    def _producers_of(self, topic: str) -> list[Session]:
        """Those that may end its transactions, which a check shows."""
        may, found = self._node.security.access.may, self._sessions.producers_of(topic)
        return [session for session in found if may(session.caller.principal, Action.WRITE, Resource.GROUP, topic)]

    async def check(self, group: str, check: transaction_pb2.TransactionCheck) -> None:
        producers = self._producers_of(group)
        if not producers:
            return
        half = decode_frame(check.frame)
        asked = RecoverOrphanedTransactionCommand(
            message=await message_of(as_sent(half)), transaction_id=transaction_id(unique_of(half), check.half_offset)
        )
        with contextlib.suppress(UnreachableError, TimeoutError):  # it has gone, or reads nothing; the leader asks again
            async with asyncio.timeout(WRITE_S):
                await producers[next(self._turns) % len(producers)].write(TelemetryCommand(recover_orphaned_transaction_command=asked))
