"""What a large cluster does to its name servers: fake nodes that register, and fake clients that wait for routes.  They speak the real
protocol and store nothing.

``benchmarks/scale.py`` starts as many processes as it needs, with ``nodes`` or ``clients``.  Each takes a command a line from its input, as
JSON, and answers with a line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvloop

from dledger_wire._pb import routes_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import methods
from dledger_wire.tcp.network import TcpNetwork

CLUSTER = "scale"
REGISTER_S = 5.0
POLL_MS = 30_000
CALL_S = 60.0
FRAME_BYTES = 20  # about what a call adds to its message

Answer = dict[str, Any]


@dataclass(slots=True)
class Sizes:
    """How large the cluster is.  ``groups_of_topic``: in how many replica groups each topic is."""

    groups: int
    nodes: int
    topics: int
    queues: int
    groups_of_topic: int

    def groups_of(self, topic: int) -> list[int]:
        count = min(self.groups_of_topic, self.groups)
        return sorted({(topic * 7 + place * (self.groups // count or 1)) % self.groups for place in range(count)})


@dataclass(slots=True)
class Traffic:
    """Bytes of calls, both ways."""

    sent: int = 0
    received: int = 0

    def add(self, request: int, response: int) -> None:
        self.sent += request + FRAME_BYTES
        self.received += response + FRAME_BYTES


@dataclass(slots=True)
class FakeGroup:
    """One replica group: its term, and which of its nodes leads."""

    name: str
    term: int = 1
    leader: int = 0
    tables: list[routes_pb2.RouteQueues] = field(default_factory=list)
    members: list[routes_pb2.Member] = field(default_factory=list)


class Nodes:
    """All nodes of a cluster: each registers with every name server, at once and every few seconds."""

    def __init__(self) -> None:
        self._network = TcpNetwork()
        self.traffic = Traffic()
        self._groups: dict[str, FakeGroup] = {}
        self._channels: dict[tuple[str, str], Any] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._started_ms = int(time.time() * 1000)
        self.failed = 0

    async def wait_for(self, addresses: list[str]) -> Answer:
        """Until all name servers answer."""
        for address in addresses:
            for _ in range(200):
                try:
                    await self._network.connect(address).call(methods.DIRECTORY.path, b"", timeout_s=1)
                    break
                except DledgerError:
                    await asyncio.sleep(0.1)
        return {}

    async def setup(self, addresses: list[str], **sizes: int) -> Answer:
        size = Sizes(**sizes)
        for number in range(size.groups):
            group = self._groups[f"g{number}"] = FakeGroup(f"g{number}")
            for node in range(size.nodes):
                place = number * size.nodes + node
                address = f"10.{place >> 16}.{place >> 8 & 255}.{place & 255}:10911"
                group.members.append(
                    routes_pb2.Member(id=f"n{place}", address=address, voter=True, host=f"h{place}", rack=f"r{place % 20}")
                )
        for topic in range(size.topics):
            for number in size.groups_of(topic):
                row = routes_pb2.RouteQueues(topic=f"topic-{topic}", perm=6, topic_epoch="1")
                row.read_queues = row.write_queues = max(1, size.queues // size.groups_of_topic)
                self._groups[f"g{number}"].tables.append(row)
        began = time.monotonic()
        await asyncio.gather(*(self._tell_all(group, addresses) for group in self._groups.values()))
        took_s = time.monotonic() - began
        self._tasks = [
            asyncio.ensure_future(self._repeat(group, node, addresses))
            for group in self._groups.values()
            for node in range(len(group.members))
        ]
        return {"took_s": took_s}

    async def _tell_all(self, group: FakeGroup, addresses: list[str]) -> None:
        for node in range(len(group.members)):
            for address in addresses:
                await self._tell(group, node, address)

    async def _tell(self, group: FakeGroup, node: int, address: str) -> None:
        """As a node does: with the table of topics only when it is asked for."""
        reply = await self._register(group, node, address, with_topics=False)
        if reply.wants_topics:
            await self._register(group, node, address, with_topics=True)

    async def _register(self, group: FakeGroup, node: int, address: str, *, with_topics: bool) -> routes_pb2.RegisterReply:
        member, master = group.members[node], node == group.leader
        told = routes_pb2.Registration(
            cluster=CLUSTER,
            group=group.name,
            node_id=member.id,
            address=member.address,
            host=member.host,
            rack=member.rack,
            version="0.0",
            started_at_ms=self._started_ms,
            term=group.term,
            role="leader" if master else "follower",
            master=master,
            configuration_index=1,
            members=group.members,
            in_sync=[each.id for each in group.members] if master else [],
            topics_version=1,
            has_topics=with_topics,
            topics=group.tables if with_topics else [],
            disk_used_percent=random.random() * 100,
            messages_in_per_s=random.random() * 1000,
            applied_index=random.randrange(1 << 40),
        )
        data = told.SerializeToString()
        channel = self._channels.get((member.id, address))
        if channel is None:
            channel = self._channels[member.id, address] = self._network.connect(address)
        answer = await channel.call(methods.REGISTER.path, data, timeout_s=CALL_S)
        self.traffic.add(len(data), len(answer))
        reply: routes_pb2.RegisterReply = routes_pb2.RegisterReply.FromString(answer)
        return reply

    async def _repeat(self, group: FakeGroup, node: int, addresses: list[str]) -> None:
        await asyncio.sleep(random.random() * REGISTER_S)
        while True:
            for address in addresses:
                try:
                    await self._tell(group, node, address)
                except DledgerError:
                    self.failed += 1
            await asyncio.sleep(REGISTER_S)

    async def failover(self, groups: list[str], addresses: list[str]) -> Answer:
        """The next node of each group leads in a new term, and registers with all name servers at once."""
        at = {}
        for name in groups:
            group = self._groups[name]
            group.term, group.leader = group.term + 1, (group.leader + 1) % len(group.members)
            at[name] = time.monotonic()
            await asyncio.gather(*(self._tell(group, group.leader, address) for address in addresses))
        return {"at": at, "term": {name: self._groups[name].term for name in groups}}

    async def figures(self) -> Answer:
        return {"sent": self.traffic.sent, "received": self.traffic.received, "failed": self.failed}


class Clients:
    """Clients with one waiting poll each, as ``dledger_client`` has: it knows versions, and asks for what changed."""

    def __init__(self) -> None:
        self._network = TcpNetwork()
        self.traffic = Traffic()
        self._tasks: list[asyncio.Task[None]] = []
        self.learned: dict[tuple[str, int], list[float]] = {}  # (group, term) -> when each client heard of it
        self.ready = self.failed = 0

    async def start(self, addresses: list[str], first: int, count: int, topics: int, topics_of_client: int) -> Answer:
        began = time.monotonic()
        for number in range(first, first + count):
            draw = random.Random(number)
            names = [f"topic-{draw.randrange(topics)}" for _ in range(topics_of_client)]
            self._tasks.append(asyncio.ensure_future(self._follow(addresses[number % len(addresses)], names)))
            if number % 200 == 199:
                await self._settled(number + 1 - first)
        await self._settled(count)
        gc.freeze()
        return {"took_s": time.monotonic() - began, "ready": self.ready, "failed": self.failed}

    async def _settled(self, count: int) -> None:
        while self.ready + self.failed < count:  # noqa: ASYNC110 - a condition over thousands of tasks
            await asyncio.sleep(0.005)

    async def _follow(self, address: str, names: list[str]) -> None:
        channel = self._network.connect(address)
        topics, groups = dict.fromkeys(names, 0), dict[str, int]()
        is_first = True
        while True:
            request = routes_pb2.RoutesRequest(wait_ms=0 if is_first else POLL_MS)
            for name, version in topics.items():
                request.topics.add(name=name, version=version)
            for name, version in groups.items():
                request.groups.add(name=name, version=version)
            data = request.SerializeToString()
            try:
                answer = await channel.call(methods.ROUTES.path, data, timeout_s=CALL_S)
            except DledgerError:
                self.failed += 1
                await asyncio.sleep(1)
                continue
            at = time.monotonic()
            self.traffic.add(len(data), len(answer))
            reply = routes_pb2.RoutesReply.FromString(answer)
            for topic in reply.topics:
                topics[topic.name] = topic.version
            for group in reply.groups:
                groups[group.name] = group.version
                if not is_first:
                    self.learned.setdefault((group.name, group.term), []).append(at)
            if is_first:
                self.ready += 1
                is_first = False

    async def learnt(self, groups: dict[str, int]) -> Answer:
        return {name: self.learned.get((name, term), []) for name, term in groups.items()}

    async def figures(self) -> Answer:
        return {"sent": self.traffic.sent, "received": self.traffic.received, "failed": self.failed}


async def serve(actor: Nodes | Clients) -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        work: Callable[..., Awaitable[Answer]] = getattr(actor, command.pop("do"))
        print(json.dumps(await work(**command)), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(Nodes() if sys.argv[1] == "nodes" else Clients()))
