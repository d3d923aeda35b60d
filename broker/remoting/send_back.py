"""CONSUMER_SEND_MSG_BACK: a message that a consumer could not process, found by its place in the log."""

from __future__ import annotations

from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import Leader
from broker.remoting.query import Queries
from dledger_wire._pb import retry_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail


class SendBacks:
    """Serves it for one node."""

    def __init__(self, leader: Leader, queries: Queries) -> None:
        self._leader, self._queries = leader, queries

    def handlers(self) -> Handlers:
        return {Request.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, request: Command, _client: RemotingConnection) -> Command:
        place, _ = await self._queries.at(request.number("offset"))
        wanted = retry_pb2.SendBackRequest(
            group=request.text("group"),
            topic=place.topic,
            queue_id=place.queue_id,
            offsets=[place.queue_offset],
            delay_level=request.number("delayLevel", 0),
            max_reconsume_times=max(0, request.number("maxReconsumeTimes", 0)),
        )
        reply = await self._leader.call(methods.SEND_BACK, wanted)
        (result,) = reply.results
        if result.outcome == retry_pb2.SEND_BACK_REFUSED:
            refused: DledgerError = from_detail(result.error)
            raise refused
        return Command(Answer.SUCCESS)
