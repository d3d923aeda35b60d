"""END_TRANSACTION and CHECK_TRANSACTION_STATE: how RocketMQ's producers end transactions, and are asked for what became of them.

Owns which producer is asked: one of those at this node, in turn.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import Leader
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.message_id import offset_message_id
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller
from store.append.half_messages import REAL_QUEUE, REAL_TOPIC, transaction_id

_ENDS = {8: transaction_pb2.TRANSACTION_COMMIT, 12: transaction_pb2.TRANSACTION_ROLLBACK, 0: transaction_pb2.TRANSACTION_UNKNOWN}


class Transactions:
    """Serves them for one node.  Implements ``Producers``."""

    def __init__(self, node: BrokerNode, leader: Leader, clients: Clients) -> None:
        self._leader, self._clients = leader, clients
        self._store_host = node.store.settings.store_host_bytes
        self._turns = count()

    def handlers(self) -> Handlers:
        return {Request.END_TRANSACTION: self.end}

    async def end(self, request: Command, _client: RemotingConnection) -> Command:
        wanted = request.number("commitOrRollback")
        if wanted not in _ENDS:
            raise InvalidArgumentError(f"commitOrRollback {wanted}: expected 0, 8 or 12")
        ends = transaction_pb2.EndTransactionsRequest(producer_group=request.text("producerGroup"))
        place = request.number("tranStateTableOffset")
        ends.ends.add(half_offset=max(0, place), transaction_id=request.text("msgId"), resolution=_ENDS[wanted])
        reply = await self._leader.call(methods.END_TRANSACTIONS, ends)
        (result,) = reply.results
        if result.HasField("error"):
            return Command(Answer.SYSTEM_ERROR, remark=result.error.message)
        return Command(Answer.SUCCESS)

    @property
    def producer_groups(self) -> set[str]:
        return self._clients.producer_groups

    def caller_for(self, group: str) -> LocalCaller:
        return self._clients.caller_for(group)

    async def check(self, group: str, check: transaction_pb2.TransactionCheck) -> None:
        producers = self._clients.producers_of(group)
        if not producers:
            return
        half = as_sent(decode_frame(check.frame))
        fields = {
            "topic": half.topic,
            "tranStateTableOffset": str(check.half_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": transaction_id(half),
            "transactionId": transaction_id(half),
            "offsetMsgId": offset_message_id(self._store_host, half.physical_offset),
        }
        producer = producers[next(self._turns) % len(producers)]
        producer.notify(Request.CHECK_TRANSACTION_STATE, fields, encode_frame(half))


def as_sent(half: Frame) -> Frame:
    """The message as its producer knows it."""
    queue = half.properties.get(REAL_QUEUE, "0")
    return replace(half, topic=half.properties.get(REAL_TOPIC, ""), queue_id=int(queue) if queue.isdecimal() else 0)
