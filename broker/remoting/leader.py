"""Calls of the native services for RocketMQ's clients: at the leader of this node's replica group, wherever that is.

Owns the way there, and how long a request waits for a leader.  Every node takes every request: RocketMQ's clients look for a new leader
every 30 s only, so a follower passes on what it gets.  Beside the leader the call stays in the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

from google.protobuf.message import Message

from broker.node import BrokerNode
from dledger_wire.errors import DeadlineExceededError, DledgerError, NotLeaderError, UnreachableError
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.rpc.methods import StreamMethod, UnaryMethod
from dledger_wire.rpc.transport import ByteStream, Channel, Network

CALL_S = 2.4  # clients give up after 3 s: they get an answer that they send again for before that
CALLER: ContextVar[LocalCaller] = ContextVar("caller", default=LocalCaller())  # noqa: B039 - for whom the services are called; frozen
PAUSE_S = 0.02  # before what was refused for want of a leader is tried again

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
T = TypeVar("T")


class Leader:
    """``network`` reaches the other nodes; ``close`` it once.

    ``for_users``: the services are called for ``CALLER``, which the own node alone does: no node may act for a user at another one.
    """

    def __init__(self, node: BrokerNode, network: Network, *, for_users: bool = False) -> None:
        self._node, self._network, self.for_users = node, network, for_users
        self._channels: dict[str, Channel] = {}

    @property
    def term(self) -> tuple[str, int]:
        """Which node leads, and in which term; empty while that is not known here."""
        raft = self._node.raft
        return raft.leader or "", raft.term

    def channel(self) -> Channel:
        """To the leader.  NotLeaderError while there is none."""
        raft, own = self._node.raft, self._node.settings.node.id
        leader = raft.leader
        if leader == own:
            return self._node.local.connect(CALLER.get())
        if self.for_users:
            raise NotLeaderError(f"{own} does not lead", leader_address="")
        address = raft.address_of(leader) if leader is not None else None
        if not address:
            raise NotLeaderError(f"{own} knows no leader", leader_address="")
        return self.to(address)

    def to(self, address: str) -> Channel:
        """To the node at ``address``."""
        if address == self._node.settings.node.address:
            return self._node.local.connect(CALLER.get())
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = self._network.connect(address)
        return found

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, *, timeout_s: float = CALL_S, repeat: bool = True
    ) -> ResponseT:
        """Call a service of the leader; see ``until``."""

        async def attempt(left_s: float) -> ResponseT:
            return await method.call(self.channel(), request, timeout_s=left_s)

        return await self.until(attempt, timeout_s, repeat=repeat)

    async def until(self, attempt: Callable[[float], Awaitable[T]], timeout_s: float = CALL_S, *, repeat: bool = True) -> T:
        """The result of an attempt, which is given the seconds left; one that nothing came of for want of a leader is repeated.

        ``repeat``: also one whose outcome is not known, since it is safe to do twice.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            left_s = end_s - loop.time()
            try:
                return await attempt(max(left_s, PAUSE_S))
            except DledgerError as error:
                again = error.retriable and (repeat or not error.outcome_unknown)
                if not again or end_s - loop.time() <= PAUSE_S:
                    raise
            await asyncio.sleep(PAUSE_S)

    @asynccontextmanager
    async def stream(self, method: StreamMethod[RequestT, ResponseT]) -> AsyncIterator[ByteStream]:
        """A stream to the leader, closed in the end."""
        stream = method.open(self.channel())
        try:
            yield stream
        finally:
            await stream.close()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


async def read(stream: ByteStream, timeout_s: float) -> bytes:
    """The next message of a stream.  UnreachableError when none follows, DeadlineExceededError."""
    try:
        async with asyncio.timeout(timeout_s):
            message = await stream.read()
    except TimeoutError:
        raise DeadlineExceededError(f"no answer within {timeout_s:g} s") from None
    if message is None:
        raise UnreachableError("the stream ended")
    return message
