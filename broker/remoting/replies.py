"""SEND_REPLY_MESSAGE and PUSH_REPLY_MESSAGE_TO_CLIENT: a reply goes to the client that sent the request, at whichever node that is.

Owns the way there.  A reply is stored nowhere: its requester waits for seconds only, and then has a timeout.  It comes to the node that the
replying client knows; one that does not have the requester asks all others at once, by the code 326 and with the reply's fields as they
came.  A node that is asked so looks for the requester among its own clients only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from broker.node import BrokerNode
from broker.remoting.clients import Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.forward import Forwards
from broker.remoting.leader import CALL_S
from broker.remoting.messages import COMPACT, REPLY_TO
from broker.remoting.routes import Routes
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.frames.frame_layout import decode_properties

_NEEDED = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag", "properties")
_OTHERS = {"reconsumeTimes": "0", "unitMode": "false"}
_NO_PLACE = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}  # clients read these from the answer to any send


class Replies:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, clients: Clients, forwards: Forwards, routes: Routes) -> None:
        self._time, self._clients, self._forwards, self._routes = node.store.time, clients, forwards, routes
        self._store_host, self._node_id = node.settings.node.address, node.settings.node.id

    def handlers(self) -> Handlers:
        return {
            Request.SEND_REPLY_MESSAGE: self.reply,
            Request.SEND_REPLY_MESSAGE_V2: self.reply,
            Request.PUSH_REPLY_MESSAGE_TO_CLIENT: self.push,
        }

    async def reply(self, request: Command, client: RemotingConnection) -> Command:
        """Of the client that was asked."""
        end_s = asyncio.get_running_loop().time() + CALL_S
        fields = reply_fields(request)
        requester = requester_of(fields)
        if self._clients.replies_to(requester) is not None:
            return await self._push(requester, request, fields, client, CALL_S)
        asked = [asyncio.ensure_future(self._ask(address, request, end_s)) for address in await self._routes.other_nodes(self._node_id)]
        try:
            for done in asyncio.as_completed(asked):
                if await done:
                    return Command(Answer.SUCCESS, _NO_PLACE)
        finally:
            for task in asked:
                task.cancel()
        return _undelivered(requester)

    async def _ask(self, address: str, request: Command, end_s: float) -> bool:
        """Whether the requester has the reply from that node."""
        try:
            node = await self._forwards.to(address)
            left_s = end_s - asyncio.get_running_loop().time()
            answer = await node.ask(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, request.fields, request.body, left_s)
        except DledgerError:
            return False
        return answer.code == Answer.SUCCESS

    async def push(self, request: Command, client: RemotingConnection) -> Command:
        """Of another node that was given the reply."""
        fields = reply_fields(request)
        return await self._push(requester_of(fields), request, fields, client, CALL_S)

    async def _push(
        self, requester: str, request: Command, fields: Mapping[str, str], client: RemotingConnection, timeout_s: float
    ) -> Command:
        connection = self._clients.replies_to(requester)
        if connection is None:
            return _undelivered(requester)
        whence = {"bornHost": client.peer, "storeHost": self._store_host, "storeTimestamp": str(self._time.now_ms())}
        try:
            answer = await connection.ask(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, {**fields, **whence}, request.body, timeout_s)
        except DledgerError as error:
            return Command(Answer.SYSTEM_ERROR, remark=f"the reply did not reach {requester}: {error.message}")
        if answer.code != Answer.SUCCESS:
            return Command(Answer.SYSTEM_ERROR, remark=f"{requester} did not take the reply: {answer.remark}")
        return Command(Answer.SUCCESS, _NO_PLACE)


def reply_fields(request: Command) -> dict[str, str]:
    """The fields of a reply by their long names, whichever it came with.  InvalidArgumentError when one is missing."""
    compact = COMPACT["topic"] in request.fields
    fields = {name: request.text(COMPACT[name] if compact else name) for name in _NEEDED}
    return fields | {name: request.text(COMPACT[name] if compact else name, default) for name, default in _OTHERS.items()}


def requester_of(fields: Mapping[str, str]) -> str:
    """The client that waits for the reply."""
    requester = decode_properties(fields["properties"].encode()).get(REPLY_TO)
    if not requester:
        raise InvalidArgumentError(f"a reply without {REPLY_TO}")
    return requester


def _undelivered(requester: str) -> Command:
    return Command(Answer.SYSTEM_ERROR, remark=f"no client {requester} is there to take the reply")
