"""What a process that RocketMQ's clients ask for routes knows of the cluster: a node, or a name server.

Owns where routes come from.  A node that knows its own replica group only asks the name servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from broker.config.cluster_file import ClusterConfig
from broker.nameserver.node import NameServerNode
from broker.node import BrokerNode
from broker.remoting.leader import CALL_S, CALLER, Leader
from broker.routes.name_service import NameService
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError, NotReadyError
from dledger_wire.rpc import methods


class KnownRoutes(Protocol):
    """``cluster`` is the file that the process was started with."""

    @property
    def cluster(self) -> ClusterConfig: ...
    @property
    def topics(self) -> Iterable[str]: ...
    def leader(self, group: str) -> str:
        """The leader of a replica group as the process itself sees it, which is newer than a route; empty where it does not."""

    async def routes(self, request: routes_pb2.RoutesRequest) -> routes_pb2.RoutesReply: ...
    async def directory(self) -> routes_pb2.DirectoryReply: ...


class RoutesOfNode:
    """Implements ``KnownRoutes`` for a node."""

    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self.cluster = node.settings.cluster
        self._node, self._leader = node, leader

    @property
    def topics(self) -> Iterable[str]:
        return (topic.name for topic in self._node.store.topics)

    def leader(self, group: str) -> str:
        return self._node.raft.leader or "" if group == self._node.settings.group.name else ""

    async def routes(self, request: routes_pb2.RoutesRequest) -> routes_pb2.RoutesReply:
        if self._node.settings.runs_name_service:
            return await _routes(self._node.name_service, request)
        return await self._of_a_name_server(methods.ROUTES, request)

    async def directory(self) -> routes_pb2.DirectoryReply:
        if self._node.settings.runs_name_service:
            return self._node.name_service.whole_directory()
        return await self._of_a_name_server(methods.DIRECTORY, routes_pb2.DirectoryRequest(names_only=True))

    async def _of_a_name_server(
        self, method: methods.UnaryMethod[methods.Request, methods.Response], request: methods.Request
    ) -> methods.Response:
        """The answer of the first name server that gives one."""
        failed: DledgerError = NotReadyError("no name server is known")
        addresses = self.cluster.registration_addresses
        for address in addresses:
            try:
                return await method.call(self._leader.to(address), request, timeout_s=CALL_S / len(addresses))
            except DledgerError as error:
                failed = error
        raise failed


class RoutesOfNameServer:
    """Implements ``KnownRoutes`` for a name server."""

    def __init__(self, server: NameServerNode) -> None:
        self.cluster = server.settings.cluster
        self._server = server

    @property
    def topics(self) -> Iterable[str]:
        return self._server.table.topics

    def leader(self, _group: str) -> str:
        return ""

    async def routes(self, request: routes_pb2.RoutesRequest) -> routes_pb2.RoutesReply:
        return await _routes(self._server.service, request)

    async def directory(self) -> routes_pb2.DirectoryReply:
        return self._server.service.whole_directory()


async def _routes(service: NameService, request: routes_pb2.RoutesRequest) -> routes_pb2.RoutesReply:
    return methods.ROUTES.parse_response(await service.routes(request, CALLER.get()))
