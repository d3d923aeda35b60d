"""Users of the cluster among RocketMQ's gRPC clients: who makes a call, and the way to the leader for it.

No node acts for a user at another one, so a follower passes calls on as they are signed, in a request of RocketMQ's other protocol to the
leader's port, and the leader looks at the signature again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from broker.node import BrokerNode
from broker.remoting.callers import Callers
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.forward import Forwards
from broker.remoting.leader import CALL_S, Leader
from broker.rocketmq_grpc import signature
from broker.rocketmq_grpc.client import CLIENT_ID
from dledger_wire.errors import InvalidArgumentError, UnreachableError
from dledger_wire.rpc.transport import CallContext, UnaryHandler
from dledger_wire.security.principal import ANONYMOUS, Principal

_PASSED = (CLIENT_ID, signature.AUTHORIZATION, signature.DATE_TIME)
_METHOD, _WAIT = "method", "waitMs"
_SIZE = struct.Struct(">I")
MARGIN_S = 0.3  # that a call has left when the leader's answer comes
MOST_S = 60.0  # that a call waits


@dataclass(frozen=True, slots=True)
class _Passed:
    """Implements ``CallContext`` for a call that another node passed on."""

    peer: str
    metadata: dict[str, str]
    end_s: float
    principal: Principal = ANONYMOUS


def pack(parts: Sequence[bytes]) -> bytes:
    """Several answers as one; ``unpack`` parts them again."""
    return b"".join(piece for part in parts for piece in (_SIZE.pack(len(part)), part))


def unpack(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        (size,) = _SIZE.unpack_from(packed, at)
        at += _SIZE.size + size
        yield packed[at - size : at]


class GrpcUsers:
    """``forwards`` has the connections to other nodes."""

    def __init__(self, node: BrokerNode, leader: Leader, callers: Callers, forwards: Forwards) -> None:
        self._node, self._leader, self._callers, self._forwards = node, leader, callers, forwards
        self._served: dict[str, UnaryHandler] = {}

    async def admit(self, caller: CallContext) -> str:
        """Go on as the one who makes the call.  The secret that it is signed with; empty for nobody's."""

        async def is_signed(secret: str) -> bool:
            return signature.is_signed(secret, caller.metadata)

        _, secret = await self._callers.principal(caller.peer, signature.access_key(caller.metadata), is_signed)
        return secret

    @contextlib.asynccontextmanager
    async def ending(self, caller: CallContext, secret: str) -> AsyncIterator[None]:
        """A stream, which ends when its secret counts no more."""
        task, name = asyncio.current_task(), signature.access_key(caller.metadata)
        if not secret or task is None:
            yield
            return
        self._callers.watch(task, name, secret, task.cancel)
        try:
            yield
        finally:
            self._callers.unwatch(task)

    # The way to the leader

    def led(self, method: str, handler: UnaryHandler, *, repeat: bool = True) -> UnaryHandler:
        """The handler of a call that only the leader can serve for a user; see ``Leader.until`` for ``repeat``."""
        self._served[method] = handler

        async def served(data: bytes, caller: CallContext) -> bytes:
            async def attempt(left_s: float) -> bytes:
                leader = self._leader.term[0]
                if leader == self._node.settings.node.id:
                    return await handler(data, caller)
                return await self._pass_on(leader, method, data, caller, left_s)

            left_s = getattr(caller, "end_s", math.inf) - asyncio.get_running_loop().time() - MARGIN_S
            return await self._leader.until(attempt, min(max(left_s, 0.0), MOST_S if not repeat else CALL_S), repeat=repeat)

        return served

    async def _pass_on(self, leader: str, method: str, data: bytes, caller: CallContext, left_s: float) -> bytes:
        peer = await self._forwards.leader_port(leader)
        headers = {name: caller.metadata[name] for name in _PASSED if name in caller.metadata}
        answer = await peer.ask(Request.GRPC_CALL, {**headers, _METHOD: method, _WAIT: str(int(left_s * 1000))}, data, left_s)
        if answer.code != Answer.SUCCESS:
            raise UnreachableError(f"{leader}: {answer.remark}")
        return bytes(answer.body)

    def handlers(self) -> Handlers:
        return {Request.GRPC_CALL: self._passed}

    async def _passed(self, request: Command, client: RemotingConnection) -> Command:
        handler = self._served.get(request.text(_METHOD))
        if handler is None:
            raise InvalidArgumentError(f"method {request.text(_METHOD)[:80]!r} is not passed on")
        headers = {name: request.fields[name] for name in _PASSED if name in request.fields}
        end_s = asyncio.get_running_loop().time() + min(request.number(_WAIT) / 1000, MOST_S)
        return Command(Answer.SUCCESS, body=await handler(bytes(request.body), _Passed(client.peer, headers, end_s)))
