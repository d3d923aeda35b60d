"""The port for RocketMQ's clients at a node and at a name server: what it takes to serve them, opened and closed as one.

Owns the order of that.  The port is open while the process is; clients that come before get an answer that they try again for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from broker.config.cluster_file import ClusterConfig
from broker.config.memory_shares import MemoryShares
from broker.config.rocketmq import remoting_listens
from broker.nameserver.node import NameServerNode
from broker.node import BrokerNode
from broker.process.machine import Machine
from broker.remoting.admin_brokers import AdminBrokers
from broker.remoting.admin_clients import AdminClients
from broker.remoting.admin_groups import AdminGroups
from broker.remoting.admin_names import AdminNames
from broker.remoting.admin_topics import AdminTopics
from broker.remoting.callers import Callers
from broker.remoting.checks import Checks
from broker.remoting.clients import Clients
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Dispatcher
from broker.remoting.forward import Forwards
from broker.remoting.known_routes import RoutesOfNameServer, RoutesOfNode
from broker.remoting.leader import Leader
from broker.remoting.locks import Locks
from broker.remoting.offsets import Offsets
from broker.remoting.produce_link import ProduceLinks
from broker.remoting.pull import Pulls
from broker.remoting.query import Queries
from broker.remoting.recalls import Recalls
from broker.remoting.replies import Replies
from broker.remoting.resets import Resets
from broker.remoting.routes import Routes
from broker.remoting.send import Senders
from broker.remoting.send_back import SendBacks
from broker.remoting.traffic_windows import TrafficWindows
from broker.remoting.transactions import Transactions
from broker.rocketmq_grpc.face import Work, serve
from broker.rocketmq_grpc.joined import FirstByte
from broker.rocketmq_grpc.users import GrpcUsers
from broker.security.access import AccessControl
from dledger_wire.rpc.grpc_callers import GrpcCallers
from dledger_wire.security.network_security import NetworkSecurity
from dledger_wire.tasks import BackgroundTasks
from dledger_wire.tcp.arrivals import Arrival, Arrivals
from dledger_wire.tcp.counted import Counted
from dledger_wire.tcp.joined_grpc import JoinedGrpc
from dledger_wire.tcp.listener import Listener
from dledger_wire.tcp.received_bytes import ReceivedBytes
from store.state.security import SecurityState

GRACE_S = 0.5  # for calls of gRPC clients that are under way when the node stops
HTTP2_ALPN = "h2"  # gRPC clients insist on it; the others do not ask


class RemotingNode:
    """A node with its port for RocketMQ's clients, where the cluster file gives it one; ``open`` and ``stop`` it in place of the node."""

    def __init__(self, node: BrokerNode, machine: Machine) -> None:
        self._node, self._machine = node, machine
        self._addresses = remoting_listens(node.settings.cluster, node.settings.node.id)
        self._closing = contextlib.AsyncExitStack()

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        return self._node.failed

    async def open(self) -> None:
        await self._node.open()
        if self._addresses:
            try:
                await self._closing.enter_async_context(_served(self._node, self._machine, self._addresses))
            except BaseException:
                await self._node.stop(hand_over=False)
                raise

    async def stop(self, *, hand_over: bool) -> None:
        await self._closing.aclose()
        await self._node.stop(hand_over=hand_over)


class RemotingNameServer:
    """A name server with its port for RocketMQ's clients, where the cluster file gives it one, as ``RemotingNode`` is for a node."""

    def __init__(self, server: NameServerNode, machine: Machine) -> None:
        self._server, self._machine = server, machine
        self._addresses = remoting_listens(server.settings.cluster, server.settings.server.id)
        self._closing = contextlib.AsyncExitStack()

    @property
    def failed(self) -> asyncio.Future[BaseException]:
        return self._server.failed

    async def open(self) -> None:
        await self._server.open()
        try:
            server, machine = self._server, self._machine
            cluster = server.settings.cluster
            handlers = {**Routes(RoutesOfNameServer(server)).handlers(), **AdminNames(cluster).handlers()}
            callers = _callers(machine, server.access, server.known_users)
            dispatcher = Dispatcher(handlers, callers.admit if callers is not None else None)
            await self._closing.enter_async_context(_listening(cluster, machine, self._addresses, dispatcher))
        except BaseException:
            await self._server.stop()
            raise

    async def stop(self) -> None:
        await self._closing.aclose()
        await self._server.stop()


@contextlib.asynccontextmanager
async def _served(node: BrokerNode, machine: Machine, addresses: Sequence[str]) -> AsyncIterator[None]:
    """Serve RocketMQ's clients at these addresses of an open node."""
    callers = _callers(machine, node.security.access, node.security.known_users)
    leader, memory = Leader(node, machine.network, for_users=callers is not None), machine.stats().memory_bytes
    links, clients, queries, windows = ProduceLinks(leader), Clients(node, leader), Queries(leader), TrafficWindows(node)
    forwards, routes = Forwards(node, leader, machine.network.security), Routes(RoutesOfNode(node, leader))
    resets, transactions = Resets(node, leader, clients), Transactions(node, leader, clients)
    offsets, senders = Offsets(node, leader, clients, resets, memory), Senders(node, leader, links, clients)
    anywhere = {
        **routes.handlers(),
        **AdminNames(node.settings.cluster).handlers(),
        **senders.handlers(),
        **Replies(node, clients, forwards, routes).handlers(),
        **Pulls(leader, clients, offsets).handlers(),
        **clients.handlers(),
        **queries.handlers(),
        **Recalls(leader).handlers(),
        **SendBacks(leader, queries).handlers(),
        **transactions.handlers(),
        **AdminBrokers(node, leader, windows).handlers(),
        **AdminTopics(node, leader).handlers(),
        **AdminGroups(node, leader).handlers(),
    }
    led = {
        **offsets.handlers(),
        **Locks(node, clients).handlers(),
        **AdminClients(node, leader, clients, queries).handlers(),
        **resets.handlers(),
    }
    handlers, users = {**anywhere, **forwards.at_leader(led)}, None
    if callers is not None:
        users = GrpcUsers(node, leader, callers, forwards)
        handlers |= {**forwards.for_users(anywhere), **users.handlers()}
    dispatcher = Dispatcher(handlers, callers.admit if callers is not None else None)
    grpc = machine.network.grpc_behind(addresses[0], GrpcCallers())
    faces = serve(grpc, node, leader, routes, senders, users)
    tasks = _running(node, [clients, offsets, Checks(leader, f"remoting@{node.settings.node.id}", transactions), windows, *faces])

    async def end() -> None:
        clients.close()
        await tasks.stop()
        await grpc.stop(GRACE_S)
        forwards.close()
        await links.close()
        await leader.close()

    async with _listening(node.settings.cluster, machine, addresses, dispatcher, end, grpc):
        yield


def _running(node: BrokerNode, works: Sequence[Work]) -> BackgroundTasks:
    tasks = BackgroundTasks("remoting", node.fail)
    for work in works:
        tasks.spawn(work.run(), type(work).__name__.lower())
    return tasks


def _callers(machine: Machine, access: AccessControl, users: Callable[[], SecurityState | None]) -> Callers | None:
    """What lets requests in, where the cluster has users."""
    admission = machine.security.admission
    return Callers(admission, access, users) if admission is not None and machine.security.has_users else None


async def _nothing() -> None:
    """Only the listeners are closed."""


@contextlib.asynccontextmanager
async def _listening(
    cluster: ClusterConfig,
    machine: Machine,
    addresses: Sequence[str],
    dispatcher: Dispatcher,
    end: Callable[[], Awaitable[None]] = _nothing,
    grpc: JoinedGrpc | None = None,
) -> AsyncIterator[None]:
    """Take connections at these addresses; after the last one came, ``end`` what serves them, so that none stays open."""
    security, arrivals = _open_to_clients(machine.network.security), Arrivals(machine.network.security.limits)
    received = ReceivedBytes(MemoryShares.of(cluster, machine.stats().memory_bytes).received // 4)

    def remoting(counted: Counted) -> RemotingConnection:
        return RemotingConnection(counted, dispatcher.serve, received)

    def made(arrival: Arrival) -> asyncio.Protocol:
        counted = Counted(arrivals, arrival)
        return remoting(counted) if grpc is None else FirstByte(counted, grpc, received, remoting)

    listeners = [Listener(address, security, arrivals, made) for address in addresses]
    try:
        if grpc is not None:
            await grpc.start()
        for listener in listeners:
            await listener.start()
        yield
    finally:
        for listener in listeners:
            listener.close()
        await end()
        for listener in listeners:
            await listener.closed()


def _open_to_clients(security: NetworkSecurity) -> NetworkSecurity:
    """As the node's other ports, without a certificate of the client; RocketMQ's clients choose TLS by their first byte."""
    if security.tls is None:
        return security
    return replace(security, tls=security.tls.without_client_certificates((HTTP2_ALPN,)))
