"""Three Raft nodes over real gRPC connections and real files, in one process on free loopback ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger.core.types import EntryId, EntryKind, Membership, NodeId
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.node import NodeIdentity, RaftNode, RaftSettings
from dledger.real_env import real_environment
from dledger_wire.errors import BusyError, NotLeaderError, OutcomeUnknownError
from dledger_wire.grpc_network import GrpcNetwork, GrpcServer

pytestmark = pytest.mark.cluster


class Blob:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)

    def seal(self, _pos: int, _index: int, _term: int) -> Sequence[bytes]:
        return (self.data,)


class Recorder:
    def __init__(self) -> None:
        self.applied_index = 0
        self.bodies: list[bytes] = []

    async def apply(self, entries: Sequence[RawEntry]) -> None:
        self.applied_index = entries[-1].index
        self.bodies += [entry.body_bytes() for entry in entries if entry.kind is EntryKind.NORMAL]

    def role_changed(self, _event: object) -> None:
        return None


def free_addresses(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


async def whole_log(node: RaftNode) -> list[bytes]:
    entries: list[bytes] = []
    while len(entries) < node.log.last.index:
        entries += [b"".join(entry.buffers) for entry in await node.log.read(len(entries) + 1, 16 << 20, node.log.last.index)]
    return entries


class Group:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers = {NodeId(f"n{n}"): address for n, address in enumerate(free_addresses(3))}
        self.nodes: dict[NodeId, RaftNode] = {}
        self.servers: dict[NodeId, GrpcServer] = {}
        self.machines: dict[NodeId, Recorder] = {}

    async def start(self, name: NodeId) -> None:
        network = GrpcNetwork()
        settings = RaftSettings(
            peers=self.peers,
            membership=Membership(tuple(self.peers)),
            log=LogConfig(segment_bytes=8 << 20, fill_window_bytes=0),
        )
        machine = self.machines[name] = Recorder()
        identity = NodeIdentity("test", "g", name, f"store-{name}", self.peers[name])
        node = self.nodes[name] = RaftNode(identity, settings, real_environment(str(self.folder / name), network), machine)
        server = self.servers[name] = network.serve(self.peers[name])
        node.register(server)
        await node.start()
        await server.start()

    async def stop(self, name: NodeId, *, hand_over: bool = False) -> None:
        node = self.nodes.pop(name)
        await node.stop(hand_over=hand_over)
        await self.servers.pop(name).stop(0)

    async def leader(self) -> RaftNode:
        async with asyncio.timeout(15):
            while True:
                for node in self.nodes.values():
                    if node.is_confirmed_leader:
                        return node
                await asyncio.sleep(0.01)

    async def write(self, data: bytes) -> EntryId:
        """Write until it is stored, as a client would; the payload may be stored twice when an answer was lost."""
        async with asyncio.timeout(20):
            while True:
                try:
                    return await (await self.leader()).propose(Blob(data))
                except (BusyError, NotLeaderError, OutcomeUnknownError):
                    await asyncio.sleep(0.02)

    async def settle(self) -> None:
        async with asyncio.timeout(15):
            # Whole logs, applied: a no-op of a new term is on its way to the others too.
            while len({(node.log.last.index, self.machines[name].applied_index) for name, node in self.nodes.items()}) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_a_group_replicates_changes_leaders_and_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        group = Group(tmp_path)
        for name in group.peers:
            await group.start(name)
        bodies = [bytes([n]) * (n * 40_000 + 1) for n in range(60)]
        await asyncio.gather(*[group.write(body) for body in bodies[:20]])
        first = (await group.leader()).identity.node_id
        await group.stop(first)
        await asyncio.gather(*[group.write(body) for body in bodies[20:40]])
        second = (await group.leader()).identity.node_id
        assert second != first
        await group.start(first)
        await group.settle()  # only a replica that has caught up can take over
        await (await group.leader()).transfer(first, 10)
        assert (await group.leader()).identity.node_id == first
        await asyncio.gather(*[group.write(body) for body in bodies[40:]])
        await group.settle()
        applied = [b"".join(group.machines[name].bodies) for name in group.nodes]
        assert applied[0] == applied[1] == applied[2]
        for body in bodies:
            assert body in applied[0]
        contents = [await whole_log(node) for node in group.nodes.values()]
        assert contents[0] == contents[1] == contents[2], "replicas are byte-identical"
        for name in list(group.nodes):
            await group.stop(name)

    asyncio.run(asyncio.wait_for(scenario(), 90))
