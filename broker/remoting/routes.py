"""What RocketMQ's clients and tools ask name servers: routes of topics, the brokers of the cluster, the list of topics.

Owns how this cluster looks to them.  A replica group is a broker; its leader has the id 0, the others keep ids of their own.  Between two
leaders the last one keeps the id 0: each node takes every request, and without an id 0 clients could not send at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.config.rocketmq import remoting_address
from broker.node import BrokerNode
from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import answer
from broker.remoting.leader import CALL_S, Leader
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError, NotReadyError, TopicNotFoundError
from dledger_wire.names import AUTO_CREATE_TOPIC
from dledger_wire.rpc import methods
from dledger_wire.rpc.local import LocalCaller
from dledger_wire.status import Perm

MASTER = "0"


class Routes:
    """Serves them for one node."""

    def __init__(self, node: BrokerNode, leader: Leader) -> None:
        self._node, self._leader = node, leader
        self._cluster = node.settings.cluster
        self._last: dict[str, str] = {}  # the last leader of each replica group

    def handlers(self) -> Handlers:
        return {
            Request.GET_ROUTEINFO_BY_TOPIC: self.topic_route,
            Request.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            Request.GET_ALL_TOPIC_LIST: self.topics,
            Request.GET_TOPICS_BY_CLUSTER: self.topics,
        }

    async def topic_route(self, request: Command, _client: RemotingConnection) -> Command:
        name = request.text("topic")
        if name == AUTO_CREATE_TOPIC and self._cluster.broker.autoCreateTopicEnable:
            return await answer(await self._default_route())
        reply = await self._routes([name])
        topic = next((topic for topic in reply.topics if topic.found), None)
        if topic is None:
            raise TopicNotFoundError(f"no route of topic {name!r}: it does not exist", topic=name)
        queues = [(each.group, each.read_queues, each.write_queues, each.perm) for each in topic.queues]
        wanted = {each.group for each in topic.queues}
        return await answer(self._route(queues, [group for group in reply.groups if group.name in wanted]))

    async def cluster_info(self, _request: Command, _client: RemotingConnection) -> Command:
        brokers = {group.name: self._broker(group) for group in await self._groups()}
        table = {"brokerAddrTable": brokers, "clusterAddrTable": {self._cluster.cluster: sorted(brokers)}}
        return await answer(table)

    async def topics(self, _request: Command, _client: RemotingConnection) -> Command:
        names = sorted(topic.name for topic in self._node.store.topics)
        return await answer({"topicList": names, "brokerAddr": ""})

    # Groups as brokers

    def _route(self, queues: Sequence[tuple[str, int, int, int]], groups: Sequence[routes_pb2.GroupRoute]) -> Mapping[str, object]:
        rows = [
            {"brokerName": group, "readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicSysFlag": 0}
            for group, reads, writes, perm in queues
        ]
        return {"queueDatas": rows, "brokerDatas": [self._broker(group) for group in groups], "filterServerTable": {}}

    async def _default_route(self) -> Mapping[str, object]:
        """Of a topic that is not there yet: one that may be created in every replica group."""
        groups = await self._groups()
        queues = self._cluster.broker.defaultTopicQueueNums
        return self._route([(group.name, queues, queues, int(Perm.READ_WRITE)) for group in groups], groups)

    def _broker(self, group: routes_pb2.GroupRoute) -> Mapping[str, object]:
        leader = self._leader_of(group)
        addresses: dict[str, str] = {}
        for number, node in enumerate(sorted(group.nodes, key=lambda node: node.id), 1):
            address = remoting_address(self._cluster, node.id, node.address)
            if address:
                addresses[MASTER if node.id == leader else str(number)] = address
        return {"cluster": self._cluster.cluster, "brokerName": group.name, "brokerAddrs": addresses, "enableActingMaster": False}

    def _leader_of(self, group: routes_pb2.GroupRoute) -> str:
        """The leader, as this node itself knows it of its own group; the last one while there is none."""
        ids = sorted(node.id for node in group.nodes)
        leader = group.leader_id
        if group.name == self._node.settings.group.name:
            leader = self._node.raft.leader or leader
        if leader in ids:
            self._last[group.name] = leader
        last = self._last.get(group.name, "")
        return last if last in ids else next(iter(ids), "")

    # Where it is known

    async def _groups(self) -> Sequence[routes_pb2.GroupRoute]:
        """All replica groups, by name."""
        directory = await self._ask_directory()
        reply = await self._routes([], [group.name for group in directory.groups])
        return sorted((group for group in reply.groups if group.found), key=lambda group: group.name)

    async def _routes(self, topics: Sequence[str], groups: Sequence[str] = ()) -> routes_pb2.RoutesReply:
        request = routes_pb2.RoutesRequest()
        for name in topics:
            request.topics.add(name=name)
        for name in groups:
            request.groups.add(name=name)
        if self._node.settings.runs_name_service:
            data = await self._node.name_service.routes(request, LocalCaller())
            return methods.ROUTES.parse_response(data)
        return await self._of_a_name_server(methods.ROUTES, request)

    async def _ask_directory(self) -> routes_pb2.DirectoryReply:
        if self._node.settings.runs_name_service:
            return self._node.name_service.whole_directory()
        return await self._of_a_name_server(methods.DIRECTORY, routes_pb2.DirectoryRequest(names_only=True))

    async def _of_a_name_server(
        self, method: methods.UnaryMethod[methods.Request, methods.Response], request: methods.Request
    ) -> methods.Response:
        """The answer of the first name server that gives one."""
        failed: DledgerError = NotReadyError("no name server is known")
        addresses = self._cluster.registration_addresses
        for address in addresses:
            try:
                return await method.call(self._leader.to(address), request, timeout_s=CALL_S / len(addresses))
            except DledgerError as error:
                failed = error
        raise failed
