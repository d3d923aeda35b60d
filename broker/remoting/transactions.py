"""END_TRANSACTION and CHECK_TRANSACTION_STATE: how RocketMQ's producers end transactions, and are asked for what became of them.

Owns one attendance at the leader for each producer group that has a producer here; a check goes to one of its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from itertools import count

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import CALLER, Leader
from dledger_wire._pb import transaction_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.frames.frame import Frame, decode_frame, encode_frame
from dledger_wire.frames.message_id import offset_message_id
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream
from store.append.half_messages import REAL_QUEUE, REAL_TOPIC, transaction_id

LOOK_S = 0.2  # for producer groups that are new
RETRY_S = 0.5
HEARTBEAT_S = 1.0
_ENDS = {8: transaction_pb2.TRANSACTION_COMMIT, 12: transaction_pb2.TRANSACTION_ROLLBACK, 0: transaction_pb2.TRANSACTION_UNKNOWN}

_logger = logging.getLogger(__name__)


class Transactions:
    """Serves them for one node; ``run`` it until it is cancelled."""

    def __init__(self, node: BrokerNode, leader: Leader, clients: Clients) -> None:
        self._leader, self._clients = leader, clients
        self._node_id = node.settings.node.id
        self._store_host = node.store.settings.store_host_bytes
        self._attending: dict[str, asyncio.Task[None]] = {}
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

    async def run(self) -> None:
        """Attend for the producer groups that are here, until cancelled."""
        try:
            while True:
                groups = self._clients.producer_groups
                for group in groups - self._attending.keys():
                    self._attending[group] = asyncio.get_running_loop().create_task(self._attend(group), name=f"remoting checks of {group}")
                for group in self._attending.keys() - groups:
                    self._attending.pop(group).cancel()
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._attending.values():
                task.cancel()

    async def _attend(self, group: str) -> None:
        while True:
            term = self._leader.term
            CALLER.set(self._clients.caller_for(group))
            try:
                async with self._leader.stream(methods.JOIN_PRODUCER_GROUP) as stream:
                    join = methods.encode(transaction_pb2.ProducerJoin(producer_group=group, client_id=f"remoting@{self._node_id}"))
                    await stream.write(join)
                    beating = asyncio.get_running_loop().create_task(_beat(stream, join), name="remoting heartbeats")
                    try:
                        while (data := await stream.read()) is not None:
                            check = methods.JOIN_PRODUCER_GROUP.parse_response(data, "leader")
                            if check.frame:
                                self._check(group, check)
                    finally:
                        beating.cancel()
            except DledgerError as error:
                if term == self._leader.term:
                    _logger.debug("producers of group %s attend again: %s", group, error.message)
            await asyncio.sleep(RETRY_S)

    def _check(self, group: str, check: transaction_pb2.TransactionCheck) -> None:
        producers = self._clients.producers_of(group)
        if not producers:
            return
        half = decode_frame(check.frame)
        fields = {
            "topic": half.properties.get(REAL_TOPIC, ""),
            "tranStateTableOffset": str(check.half_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": transaction_id(half),
            "transactionId": transaction_id(half),
            "offsetMsgId": offset_message_id(self._store_host, half.physical_offset),
        }
        producer = producers[next(self._turns) % len(producers)]
        producer.notify(Request.CHECK_TRANSACTION_STATE, fields, encode_frame(_as_sent(half)))


async def _beat(stream: ByteStream, join: bytes) -> None:
    """Keep attending."""
    with contextlib.suppress(DledgerError):  # the reader learns it, too
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await stream.write(join)


def _as_sent(half: Frame) -> Frame:
    """The message as its producer knows it."""
    queue = half.properties.get(REAL_QUEUE, "0")
    return replace(half, topic=half.properties.get(REAL_TOPIC, ""), queue_id=int(queue) if queue.isdecimal() else 0)
