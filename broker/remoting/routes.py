"""What RocketMQ's clients and tools ask name servers: routes of topics, the brokers of the cluster, the list of topics.

Owns how this cluster looks to them.  A replica group is a broker; its leader has the id 0, the others keep ids of their own.  Between two
leaders the last one keeps the id 0: each node takes every request, and without an id 0 clients could not send at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.config.rocketmq import remoting_address
from broker.remoting.codes import Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from broker.remoting.dispatcher import Handlers
from broker.remoting.json_body import answer
from broker.remoting.known_routes import KnownRoutes
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import NotReadyError, TopicNotFoundError
from dledger_wire.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, group_of_topic, reply_topic
from dledger_wire.status import Perm

MASTER = "0"
HOLD_MS = 2_000  # what may still be registered is waited for: clients give up after 3 s


@dataclass(frozen=True, slots=True)
class TopicRow:
    """What a replica group has of a topic; ``addresses`` are where RocketMQ's clients reach its nodes, the leader first."""

    group: str
    read_queues: int
    write_queues: int
    perm: int
    addresses: Sequence[str]


class Routes:
    """Serves them by what a node or a name server knows."""

    def __init__(self, known: KnownRoutes) -> None:
        self._known, self._cluster = known, known.cluster
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
            return await answer(await self._everywhere(self._cluster.broker.defaultTopicQueueNums))
        if name == reply_topic(self._cluster.cluster):
            return await answer(await self._everywhere(1))
        try:
            topic, reply = await self._topic(name)
        except TopicNotFoundError:
            if name.startswith(RETRY_PREFIX) and group_of_topic(name):
                return await answer(await self._everywhere(0))  # tools look for a group's brokers by it; without retries it is not there
            if name not in (self._cluster.cluster, *(group.name for group in self._cluster.groups)):
                raise
            # Programs that create topics ask it where.
            return await answer(await self._everywhere(self._cluster.broker.defaultTopicQueueNums, name))
        queues = [(each.group, each.read_queues, each.write_queues, each.perm) for each in topic.queues]
        wanted = {each.group for each in topic.queues}
        return await answer(self._route(queues, [group for group in reply.groups if group.name in wanted]))

    async def rows(self, name: str) -> Sequence[TopicRow]:
        """Of a topic, by replica group.  TopicNotFoundError, NotReadyError."""
        topic, reply = await self._topic(name)
        brokers = {group.name: self._addresses(group) for group in reply.groups}
        rows = ((each, brokers.get(each.group, {})) for each in sorted(topic.queues, key=lambda each: each.group))
        return [
            TopicRow(each.group, each.read_queues, each.write_queues, each.perm, [addresses[place] for place in sorted(addresses)])
            for each, addresses in rows
            if addresses
        ]

    async def cluster_info(self, _request: Command, _client: RemotingConnection) -> Command:
        brokers = {group.name: self._broker(group) for group in await self._groups()}
        table = {"brokerAddrTable": brokers, "clusterAddrTable": {self._cluster.cluster: sorted(brokers)}}
        return await answer(table)

    async def topics(self, _request: Command, _client: RemotingConnection) -> Command:
        return await answer({"topicList": sorted(self._known.topics), "brokerAddr": ""})

    # Groups as brokers

    def _route(self, queues: Sequence[tuple[str, int, int, int]], groups: Sequence[routes_pb2.GroupRoute]) -> Mapping[str, object]:
        rows = [
            {"brokerName": group, "readQueueNums": reads, "writeQueueNums": writes, "perm": perm, "topicSysFlag": 0}
            for group, reads, writes, perm in queues
        ]
        return {"queueDatas": rows, "brokerDatas": [self._broker(group) for group in groups], "filterServerTable": {}}

    async def _everywhere(self, queues: int, name: str = "") -> Mapping[str, object]:
        """Of a topic that is not there, but may be created in every replica group or the one of that name, or is only passed on."""
        groups = [group for group in await self._groups() if name in ("", self._cluster.cluster, group.name)]
        return self._route([(group.name, queues, queues, int(Perm.READ_WRITE)) for group in groups], groups)

    def _broker(self, group: routes_pb2.GroupRoute) -> Mapping[str, object]:
        addresses = self._addresses(group)
        return {"cluster": self._cluster.cluster, "brokerName": group.name, "brokerAddrs": addresses, "enableActingMaster": False}

    def _addresses(self, group: routes_pb2.GroupRoute) -> Mapping[str, str]:
        """By the id of each node as a broker."""
        leader = self._leader_of(group)
        addresses: dict[str, str] = {}
        for number, node in enumerate(sorted(group.nodes, key=lambda node: node.id), 1):
            address = remoting_address(self._cluster, node.id, node.address)
            if address:
                addresses[MASTER if node.id == leader else str(number)] = address
        return addresses

    def _leader_of(self, group: routes_pb2.GroupRoute) -> str:
        """The leader, as this process itself sees it or by the route; the last one while there is none."""
        ids = sorted(node.id for node in group.nodes)
        leader = self._known.leader(group.name) or group.leader_id
        if leader in ids:
            self._last[group.name] = leader
        last = self._last.get(group.name, "")
        return last if last in ids else next(iter(ids), "")

    async def other_nodes(self, own: str) -> Sequence[str]:
        """Where RocketMQ's clients reach each node of the cluster but ``own``."""
        groups = await self._groups()
        addresses = (remoting_address(self._cluster, node.id, node.address) for group in groups for node in group.nodes if node.id != own)
        return [address for address in addresses if address]

    # Where it is known

    async def _groups(self) -> Sequence[routes_pb2.GroupRoute]:
        """All replica groups, by name."""
        directory = await self._known.directory()
        reply = await self._routes([], [group.name for group in directory.groups])
        return sorted((group for group in reply.groups if group.found), key=lambda group: group.name)

    async def _routes(self, topics: Sequence[str], groups: Sequence[str] = ()) -> routes_pb2.RoutesReply:
        request = routes_pb2.RoutesRequest()
        for name in topics:
            request.topics.add(name=name)
        for name in groups:
            request.groups.add(name=name)
        return await self._known.routes(request)

    async def _topic(self, name: str) -> tuple[routes_pb2.TopicRoute, routes_pb2.RoutesReply]:
        """The route of a topic.  A process that has just started may not have heard of it: that is no topic that does not exist."""
        reply, known = await self._routes([name]), list[routes_pb2.TopicRoute]()
        known.extend(reply.topics)
        if not any(topic.found for topic in known) and not reply.complete:
            waiting = routes_pb2.RoutesRequest(wait_ms=HOLD_MS)
            waiting.topics.add(name=name, version=next((topic.version for topic in known), 0))
            reply = await self._known.routes(waiting)
        found = next((topic for topic in reply.topics if topic.found), None)
        if found is not None:
            return found, reply
        if not reply.complete:
            raise NotReadyError(f"no route of topic {name!r} yet: not all replica groups have registered here")
        raise TopicNotFoundError(f"no route of topic {name!r}: it does not exist", topic=name)
