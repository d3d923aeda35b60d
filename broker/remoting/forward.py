"""Requests about what only the leader's own table of clients knows, passed on to the leader's port as they came.

RocketMQ's clients look for a new leader every 30 s only.  Until then their requests about locks and offsets come to a follower.
"""

from __future__ import annotations

import asyncio

from broker.config.rocketmq import remoting_address
from broker.node import BrokerNode
from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handler, Handlers
from broker.remoting.leader import CALL_S, Leader
from broker.remoting.messages import COMPACT
from broker.remoting.pull import wait_ms_of
from dledger.core.types import NodeId
from dledger_wire.errors import NotLeaderError, UnreachableError
from dledger_wire.names import RETRY_PREFIX
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tcp.received_bytes import ReceivedBytes

CONNECT_S = 1.0
ANSWER_BYTES = 32 << 20  # of the leader, that are not complete
_ANYWHERE = frozenset(
    (
        Request.HEART_BEAT,
        Request.UNREGISTER_CLIENT,
        Request.CHECK_CLIENT_CONFIG,
        Request.GET_ROUTEINFO_BY_TOPIC,
        Request.GET_BROKER_CLUSTER_INFO,
        Request.GET_BROKER_RUNTIME_INFO,
        Request.GET_BROKER_CONFIG,
        Request.SEND_REPLY_MESSAGE,
        Request.SEND_REPLY_MESSAGE_V2,
        Request.PUSH_REPLY_MESSAGE_TO_CLIENT,
    )
)


class Forwards:
    """Wraps handlers: beside the leader they are called, elsewhere the request goes there.  ``close`` it once."""

    def __init__(self, node: BrokerNode, leader: Leader, security: NetworkSecurity) -> None:
        self._node, self._leader, self._security = node, leader, security
        self._connections: dict[str, RemotingConnection] = {}
        self._received = ReceivedBytes(ANSWER_BYTES)
        self._connecting: dict[str, asyncio.Lock] = {}

    def at_leader(self, handlers: Handlers) -> Handlers:
        return {code: self._forwarded(handler) for code, handler in handlers.items()}

    def _forwarded(self, handler: Handler) -> Handler:
        async def handle(request: Command, client: RemotingConnection) -> Command:
            body = request.body

            async def attempt(left_s: float) -> Command:
                leader = self._leader.term[0]
                if leader == self._node.settings.node.id:
                    request.body = body
                    return await handler(request, client)
                peer = await self.leader_port(leader)
                return await peer.ask(request.code, dict(request.fields), bytes(body), left_s)

            is_retry = request.fields.get("topic", request.fields.get(COMPACT["topic"], "")).startswith(RETRY_PREFIX)
            wait_s = wait_ms_of(request) / 1000 if request.code in (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE) else 0.0
            return await self._leader.until(attempt, CALL_S + wait_s, repeat=not is_retry)

        return handle

    def for_users(self, handlers: Handlers) -> Handlers:
        """Where requests are served for users: as they are signed, the leader checks them again.  Of handlers that run anywhere."""
        return {code: handler if code in _ANYWHERE else self._forwarded(handler) for code, handler in handlers.items()}

    async def leader_port(self, leader: str) -> RemotingConnection:
        """A connection to the port of the node that leads.  NotLeaderError while that is not known."""
        address = self._node.raft.address_of(NodeId(leader)) if leader else None
        remoting = remoting_address(self._node.settings.cluster, leader, address) if address else ""
        if not remoting:
            raise NotLeaderError("no leader is known", leader_address="")
        return await self.to(remoting)

    async def to(self, address: str) -> RemotingConnection:
        """A connection to the port of another node."""
        async with self._connecting.setdefault(address, asyncio.Lock()):
            found = self._connections.get(address)
            if found is None or not found.is_open:
                found = self._connections[address] = await self._connect(address)
            return found

    async def _connect(self, address: str) -> RemotingConnection:
        host, _, port = address.rpartition(":")
        host, security = host.strip("[]"), self._security
        tls = security.tls.client() if security.tls is not None and security.dials_tls else None

        async def refuse(_connection: RemotingConnection, _request: Command) -> None:
            return None

        def made() -> RemotingConnection:
            return RemotingConnection(None, refuse, self._received)

        try:
            async with asyncio.timeout(CONNECT_S):
                loop, name = asyncio.get_running_loop(), host if tls is not None else None
                _, connection = await loop.create_connection(made, host, int(port), ssl=tls, server_hostname=name)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{address}: {error or 'no connection in time'}", address=address) from None
        return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.abort()
