"""Handlers of RocketMQ's requests at every node of a simulated replica group."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from broker.node import BrokerNode
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.leader import Leader
from dledger_wire.tcp.received_bytes import ReceivedBytes
from tests.unit.client.sim_rig import Rig, node_of


class Processor(Protocol):
    def handlers(self) -> Handlers: ...


class Several:
    """Processors as one."""

    def __init__(self, parts: list[Handlers]) -> None:
        self._parts = parts

    def handlers(self) -> Handlers:
        return {code: handler for part in self._parts for code, handler in part.items()}


def stranger() -> RemotingConnection:
    """A connection that has said nothing yet."""

    async def refuse(_connection: RemotingConnection, _request: Command) -> None:
        return None

    return RemotingConnection(None, refuse, ReceivedBytes(1 << 20))


async def ask(handlers: Handlers, code: int, body: bytes = b"", **fields: object) -> Command:
    """The answer of a processor to a stranger."""
    named = {name: str(value) for name, value in fields.items()}
    return await handlers[code](Command(code, named, body), stranger())


def content(answer: Command) -> dict[str, Any]:
    """The body of an answer that is plain JSON."""
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found


@contextlib.asynccontextmanager
async def leader_of(rig: Rig, node_id: str) -> AsyncIterator[Leader]:
    """The way to the leader from a node."""
    node, process = node_of(rig, node_id), rig.cluster.hosts[node_id].process
    assert process is not None
    leader = Leader(node, rig.cluster.net.of(process))
    try:
        yield leader
    finally:
        await leader.close()


@contextlib.asynccontextmanager
async def at_each_node(rig: Rig, processor: Callable[[BrokerNode, Leader], Processor]) -> AsyncIterator[list[Handlers]]:
    """The handlers of a processor at the leader, then at its followers."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for node_id in (rig.master, *rig.followers):
            leader = await stack.enter_async_context(leader_of(rig, node_id))
            found.append(processor(node_of(rig, node_id), leader).handlers())
        yield found
