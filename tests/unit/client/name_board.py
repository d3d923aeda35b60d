"""Name servers and nodes of several replica groups in virtual time, for tests of how a client finds its way.

The name servers run the product's name service over a table that the test fills; the nodes answer METADATA as the test has it.  What a
client asks, and where, is counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from broker.routes.name_service import NameService, ServicePlace
from broker.routes.route_table import RouteTable
from dledger_client.cluster.router import Router
from dledger_wire._pb import broker_pb2, routes_pb2
from dledger_wire.errors import PermissionDeniedError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext
from tests.sim.clock import SimClock
from tests.sim.cluster import SimCluster
from tests.sim.loop import Process
from tests.sim.network import ProcessNetwork
from tests.unit.client.sim_rig import CLIENT_IP

CLUSTER = "c"


@dataclass
class ScriptedGroup:
    """A replica group as its nodes tell of it."""

    name: str
    addresses: list[str]
    term: int = 1
    leader: str = ""  # address; empty: none
    topics: dict[str, int] = field(default_factory=dict)  # queues of each
    version: int = 1  # of the table of topics
    epoch: str = "e"

    def node_id(self, address: str) -> str:
        return f"{self.name}-{self.addresses.index(address)}"


@dataclass
class Asked:
    """What was called where."""

    by_method: Counter[str] = field(default_factory=Counter)
    addresses: dict[str, set[str]] = field(default_factory=dict)

    def note(self, method: str, address: str) -> None:
        name = method.rpartition("/")[2]
        self.by_method[name] += 1
        self.addresses.setdefault(name, set()).add(address)


class Board:
    """``names``: how many name servers; each group has three nodes.  Nothing is registered until ``register`` is called."""

    def __init__(self, groups: int = 2, names: int = 3, seed: int = 1) -> None:
        self._cluster = SimCluster(seed)
        self.loop, self.net = self._cluster.loop, self._cluster.net
        self.clock = SimClock(self.loop)
        self.process, self.network = self._cluster.new_client(CLIENT_IP)
        self.random = random.Random(seed)
        self.asked = Asked()
        self.groups: dict[str, ScriptedGroup] = {}
        for number in range(groups):
            addresses = [f"10.1.{number}.{node}:1" for node in range(1, 4)]
            self.groups[f"g{number}"] = ScriptedGroup(f"g{number}", addresses, leader=addresses[0])
        self.name_addresses = [f"10.2.0.{number + 1}:1" for number in range(names)]
        self.services: dict[str, NameService] = {}
        self._processes: dict[str, Process] = {}
        self._sequence = 0
        self.knows_names = True  # whether nodes tell where the name servers are
        self.nodes_serve_routes = True
        self.denies_directory = False  # name servers: to the user of the tests

    # Clients

    def router(self, bootstrap: str | None = None) -> Router:
        return Router(bootstrap or ",".join(self.name_addresses), _Counting(self.network, self.asked), self.clock, self.random)

    def around(self) -> dict[str, Any]:
        """For ``use_environment``."""
        return {"network": _Counting(self.network, self.asked), "clock": self.clock, "random": self.random}

    # What name servers know

    def register(self, group: str, *, at: Iterable[str] | None = None, term: int | None = None, leader: str | None = None) -> None:
        """The nodes of a group register as it is now, at those name servers; ``leader``: the address of who claims to be the master."""
        told = self.groups[group]
        self._sequence += 1
        master = told.leader if leader is None else leader
        for address in sorted(told.addresses, key=lambda each: each != master):
            registration = routes_pb2.Registration(
                cluster=CLUSTER,
                group=group,
                node_id=told.node_id(address),
                address=address,
                term=term or told.term,
                master=address == master,
                role="leader" if address == master else "follower",
                sequence=self._sequence,
                started_at_ms=1,
                configuration_index=1,
                members=[routes_pb2.Member(id=told.node_id(each), address=each, voter=True) for each in told.addresses],
                topics_version=told.version,
                has_topics=address == master,
            )
            for topic, queues in told.topics.items() if address == master else ():
                registration.topics.add(topic=topic, read_queues=queues, write_queues=queues, perm=6, topic_epoch=told.epoch)
            for server in self.services if at is None else at:
                self.services[server].registered(registration)

    def register_all(self) -> None:
        for group in self.groups:
            self.register(group)

    # Lives

    def kill(self, address: str) -> None:
        """End the process at an address, and its connections."""
        process = self._processes.pop(address)
        self.loop.kill(process, self.services.pop(address, None))
        self.net.process_died(process, silent=False)

    async def start_name_server(self, address: str) -> None:
        """A name server that knows nothing yet."""
        process = self._processes[address] = Process(address.rpartition(":")[0], 1)
        table = RouteTable(list(self.groups))
        service = NameService(table, ServicePlace(CLUSTER, self.name_addresses, 4 << 20, address), self.clock)
        self.services[address] = service

        async def names_alone(request: routes_pb2.DirectoryRequest, context: CallContext) -> routes_pb2.DirectoryReply:
            if not request.names_only:
                raise PermissionDeniedError("user app may not describe the cluster")
            return await service.directory(request, context)

        async def serve() -> None:
            server = self.net.of(process).serve(address)
            service.register(server)
            if self.denies_directory:
                methods.DIRECTORY.serve(server, names_alone)
            await server.start()

        await self.loop.spawn(process, serve(), "name server")

    async def start_node(self, group: ScriptedGroup, address: str) -> None:
        process = self._processes[address] = Process(address.rpartition(":")[0], 1)

        async def metadata(request: broker_pb2.MetadataRequest, _context: CallContext) -> broker_pb2.MetadataResponse:
            return self._metadata(group, address, request)

        async def routes(_request: routes_pb2.RoutesRequest, _context: CallContext) -> routes_pb2.RoutesReply:
            return routes_pb2.RoutesReply(cluster=CLUSTER, name_servers=self.name_addresses if self.knows_names else [])

        async def serve() -> None:
            server = self.net.of(process).serve(address)
            methods.METADATA.serve(server, metadata)
            if self.nodes_serve_routes:
                methods.ROUTES.serve(server, routes)
            await server.start()

        await self.loop.spawn(process, serve(), "node")

    def _metadata(self, group: ScriptedGroup, address: str, request: broker_pb2.MetadataRequest) -> broker_pb2.MetadataResponse:
        reply = broker_pb2.MetadataResponse(cluster=CLUSTER, version=group.version)
        for each in self.groups.values():
            info = reply.groups.add(name=each.name)
            for node in each.addresses:
                info.nodes.add(id=each.node_id(node), address=node, voter=True)
            if each is group:
                info.term, info.leader_address = each.term, each.leader
                info.leader_id = each.node_id(each.leader) if each.leader else ""
        for topic in request.topics:
            queues = group.topics.get(topic, 0)
            reply.topics.add(
                name=topic, group=group.name, read_queues=queues, write_queues=queues, perm=6, found=queues > 0, incarnation=group.epoch
            )
        return reply

    def run(self, scenario: Callable[[], Awaitable[None]], limit_s: float = 300.0) -> None:
        async def main() -> None:
            for address in self.name_addresses:
                await self.start_name_server(address)
            for group in self.groups.values():
                for address in group.addresses:
                    await self.start_node(group, address)
            await self.loop.spawn(self.process, _as_coroutine(scenario), "scenario")

        try:
            self.loop.run_until_complete(asyncio.wait_for(main(), limit_s))
            assert self.loop.unhandled == []
        finally:
            self.loop.close()


async def _as_coroutine(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


class _Counting:
    """A network that notes what is called where."""

    def __init__(self, network: ProcessNetwork, asked: Asked) -> None:
        self._network, self._asked = network, asked

    def connect(self, address: str) -> _CountingChannel:
        return _CountingChannel(self._network.connect(address), address, self._asked)

    def serve(self, address: str) -> Any:
        return self._network.serve(address)


class _CountingChannel:
    def __init__(self, channel: Any, address: str, asked: Asked) -> None:
        self._channel, self._address, self._asked = channel, address, asked

    async def call(self, method: str, request: bytes, *, timeout_s: float) -> bytes:
        self._asked.note(method, self._address)
        answer: bytes = await self._channel.call(method, request, timeout_s=timeout_s)
        return answer

    def open(self, method: str, *, metadata: Any = None) -> Any:
        self._asked.note(method, self._address)
        return self._channel.open(method, metadata=metadata)

    async def close(self) -> None:
        await self._channel.close()
