"""RECALL_MESSAGE, and the handles by which producers recall timed messages.

Owns the handle: base64, URL-safe, of "v1 TOPIC BROKER DUE_MS UNIQ_KEY OFFSET".  RocketMQ's clients look at the broker in it only.  The last
part is this cluster's own: where the message was stored to wait.
"""

from __future__ import annotations

import base64
import binascii

from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import Leader
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.frames.timer import waiting_id
from dledger_wire.rpc import methods

VERSION = "v1"
MAX_HANDLE_CHARS = 1_000
_PARTS = 6
_MAX_DIGITS = 18


def recall_handle(topic: str, broker: str, due_ms: int, unique_id: str, offset: int) -> str:
    text = " ".join((VERSION, topic, broker, str(due_ms), unique_id, str(offset)))
    return base64.urlsafe_b64encode(text.encode()).decode()


def recalled_by(handle: str) -> tuple[str, broker_pb2.RecallMessageRequest]:
    """The id of the message that a handle recalls, and the call for that.  InvalidArgumentError for anything else."""
    try:
        parts = base64.urlsafe_b64decode(handle[:MAX_HANDLE_CHARS]).decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) != _PARTS or parts[0] != VERSION or not parts[-1].isdecimal() or len(parts[-1]) > _MAX_DIGITS:
        raise InvalidArgumentError("recall handle is invalid: expected one that a send was answered with")
    return parts[4], broker_pb2.RecallMessageRequest(topic=parts[1], unique_id=waiting_id(parts[4]), offset=int(parts[5]))


class Recalls:
    """Serves it for one node."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def handlers(self) -> Handlers:
        return {Request.RECALL_MESSAGE: self.recall}

    async def recall(self, request: Command, _client: RemotingConnection) -> Command:
        try:
            unique_id, wanted = recalled_by(request.text("recallHandle"))
            if wanted.topic != request.text("topic"):
                raise InvalidArgumentError(f"the handle is of a message to topic {wanted.topic}")
            await self._leader.call(methods.RECALL_MESSAGE, wanted)
        except InvalidArgumentError as error:
            return Command(Answer.ILLEGAL_OPERATION, remark=f"recall failed: {error.message}")
        return Command(Answer.SUCCESS, {"msgId": unique_id})
