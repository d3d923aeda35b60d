"""QueryRoute and QueryAssignment: which queues a topic has, and where.

Owns how a replica group looks to RocketMQ's gRPC clients: as one broker of id 0, whose addresses are all its nodes.  Each node takes every
request, so a client that connects to the next one when its node is gone needs no new route.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from broker.remoting.leader import CALLER
from broker.remoting.routes import Routes, TopicRow
from broker.rocketmq_grpc._pb import definition_pb2 as pb
from broker.rocketmq_grpc._pb.definition_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
)
from broker.rocketmq_grpc._pb.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from broker.rocketmq_grpc.client import NODE, Client, group_of, topic_of
from broker.rocketmq_grpc.statuses import StatusError, ok
from broker.security.access import AccessControl
from dledger_wire.errors import TopicNotFoundError
from dledger_wire.status import Perm
from store.commands.security import Action, Resource

# Topics have no types here.  PRIORITY is not among them, because older clients cannot read it.
TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
ANY_QUEUE = -1
_PERMISSIONS = {Perm.READ: Permission.READ, Perm.WRITE: Permission.WRITE, Perm.READ_WRITE: Permission.READ_WRITE}


class GrpcRoutes:
    """Serves them by what RocketMQ's other clients are answered from.

    ``only_leaders``: where a cluster has users their transactions are asked for at the leader only, so that is the one address of a broker.
    """

    def __init__(self, routes: Routes, access: AccessControl, *, only_leaders: bool) -> None:
        self._routes, self._access, self._only_leaders = routes, access, only_leaders

    async def query_route(self, request: QueryRouteRequest, client: Client) -> QueryRouteResponse:
        answer = QueryRouteResponse(status=ok())
        for row in await self._rows(request.topic, Action.DESCRIBE):
            broker = self._broker(row, client)
            for number, perm in _queues(row.read_queues, row.write_queues, row.perm):
                queue = answer.message_queues.add(topic=request.topic, id=number, permission=_PERMISSIONS[perm], broker=broker)
                queue.accept_message_types.extend(TYPES)
        if not answer.message_queues:
            raise StatusError(Code.FORBIDDEN, f"topic {request.topic.name} is neither read nor written")
        return answer

    async def query_assignment(self, request: QueryAssignmentRequest, client: Client) -> QueryAssignmentResponse:
        """Any number of consumers share a queue, so each is given one that stands for all queues of a replica group."""
        self._access.require(CALLER.get().principal, Action.READ, Resource.GROUP, group_of(request.group))
        answer = QueryAssignmentResponse(status=ok())
        for row in await self._rows(request.topic, Action.READ):
            if row.perm & Perm.READ and row.read_queues:
                broker = self._broker(row, client)
                queue = MessageQueue(topic=request.topic, id=ANY_QUEUE, permission=Permission.READ_WRITE, broker=broker)
                queue.accept_message_types.extend(TYPES)
                answer.assignments.append(Assignment(message_queue=queue))
        if not answer.assignments:
            raise StatusError(Code.FORBIDDEN, f"topic {request.topic.name} is not read")
        return answer

    def _broker(self, row: TopicRow, client: Client) -> Broker:
        endpoints = endpoints_of(row.addresses[:1] if self._only_leaders else row.addresses)
        if client.language == NODE and endpoints.addresses and endpoints.scheme != AddressScheme.DOMAIN_NAME:
            _for_node(endpoints.addresses)
        return Broker(name=row.group, id=0, endpoints=endpoints)

    async def _rows(self, topic: pb.Resource, action: Action) -> Sequence[TopicRow]:
        name = topic_of(topic)
        self._access.require_topic(CALLER.get().principal, action, name)
        try:
            return await self._routes.rows(name)
        except TopicNotFoundError:
            # In the words of RocketMQ's broker, which its clients' own tests compare.
            raise StatusError(Code.TOPIC_NOT_FOUND, f"CODE: 17  DESC: No topic route info in name server for the topic: {name}") from None


def _queues(read_queues: int, write_queues: int, perm: int) -> Iterator[tuple[int, Perm]]:
    """Each queue once, those that are read and written first: some clients use queue 0 only."""
    reads, writes = read_queues if perm & Perm.READ else 0, write_queues if perm & Perm.WRITE else 0
    for number in range(max(reads, writes)):
        yield number, (Perm.READ if number < reads else Perm.NONE) | (Perm.WRITE if number < writes else Perm.NONE)


def endpoints_of(addresses: Sequence[str]) -> Endpoints:
    """Clients take several addresses of one family, or one name."""
    scheme = _scheme(addresses[0]) if addresses else AddressScheme.IPv4
    same = [each for each in addresses if _scheme(each) == scheme]
    found = Endpoints(scheme=scheme)
    for each in same[:1] if scheme == AddressScheme.DOMAIN_NAME else same:
        host, _, port = each.rpartition(":")
        found.addresses.append(Address(host=host.strip("[]"), port=int(port)))
    return found


def _for_node(addresses: Sequence[Address]) -> None:
    """The client for Node.js joins addresses to one target of gRPC, which it takes for a name: the first host says that it is none."""
    for address in addresses:
        address.host = f"[{address.host}]" if ":" in address.host else address.host
    addresses[0].host = ("ipv6:" if addresses[0].host.startswith("[") else "ipv4:") + addresses[0].host


def _scheme(address: str) -> AddressScheme.ValueType:
    try:
        found = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv6 if found.version == 6 else AddressScheme.IPv4
