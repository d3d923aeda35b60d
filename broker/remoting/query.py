"""VIEW_MESSAGE_BY_ID and QUERY_MESSAGE: single messages, by their place in the log or by a key."""

from __future__ import annotations

from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import CALL_S, Leader
from dledger_wire._pb import query_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import envelope, methods

MOST_BYTES = 8 << 20
MOST_MESSAGES = 64


class Queries:
    """Serves them for one node."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def handlers(self) -> Handlers:
        return {Request.VIEW_MESSAGE_BY_ID: self.view, Request.QUERY_MESSAGE: self.query}

    async def at(self, pos: int) -> tuple[query_pb2.FoundMessage, memoryview]:
        """The message whose frame begins at ``pos`` of the log, and the frame.  InvalidArgumentError when none does."""
        reply, frames = await self._ask(query_pb2.QueryMessagesRequest(pos=max(0, pos), max_messages=1))
        if not reply.messages:
            raise InvalidArgumentError(f"no message begins at {pos} of the log")
        return reply.messages[0], frames

    async def view(self, request: Command, _client: RemotingConnection) -> Command:
        try:
            _, frame = await self.at(request.number("offset"))
        except InvalidArgumentError as error:
            return Command(Answer.SYSTEM_ERROR, remark=error.message)
        return Command(Answer.SUCCESS, body=frame)

    async def query(self, request: Command, _client: RemotingConnection) -> Command:
        wanted = query_pb2.QueryMessagesRequest(
            topic=request.text("topic"),
            begin_ms=max(0, request.number("beginTimestamp", 0)),
            end_ms=max(0, min(request.number("endTimestamp", 0), (1 << 62))),
            max_messages=max(1, min(request.number("maxNum", MOST_MESSAGES), MOST_MESSAGES)),
            max_bytes=MOST_BYTES,
        )
        if request.is_true("_UNIQUE_KEY_QUERY"):
            wanted.unique_id = request.text("key")
        else:
            wanted.key = request.text("key")
        reply, frames = await self._ask(wanted)
        if not reply.messages:
            return Command(Answer.QUERY_NOT_FOUND, remark="no such message")
        newest = str(max(message.pos for message in reply.messages))
        return Command(Answer.SUCCESS, {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": newest}, frames)

    async def _ask(self, wanted: query_pb2.QueryMessagesRequest) -> tuple[query_pb2.QueryMessagesResponse, memoryview]:
        async def attempt(left_s: float) -> bytes:
            return await methods.QUERY_MESSAGES.call_bytes(self._leader.channel(), wanted, timeout_s=left_s)

        return envelope.decode(query_pb2.QueryMessagesResponse, await self._leader.until(attempt, CALL_S))
