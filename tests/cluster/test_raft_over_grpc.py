"""Three Raft nodes over real gRPC connections and real files, in one process on free loopback ports."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from dledger.core.types import EntryId, EntryKind, Membership, NodeId
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.node import NodeIdentity, RaftNode, RaftSettings
from dledger.runtime.real_env import real_environment
from dledger.snapshot.plan import StateSnapshot
from dledger_cli.local.ports import free_ports
from dledger_wire.errors import BusyError, NotLeaderError, NotReadyError, OutcomeUnknownError
from dledger_wire.rpc.grpc_server import GrpcServer
from tests.grpc_network import GrpcNetwork
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.cluster


class Blob:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)

    def seal(self, _pos: int, _index: int, _term: int) -> Sequence[bytes]:
        return (self.data,)


class Recorder:
    applies_now = True

    def __init__(self) -> None:
        self.applied_index = 0
        self.bodies: list[bytes] = []

    async def apply(self, entries: Sequence[RawEntry]) -> None:
        self.apply_now(entries)

    def apply_now(self, entries: Sequence[RawEntry]) -> None:
        self.applied_index = entries[-1].index
        self.bodies += [entry.body_bytes() for entry in entries if entry.kind is EntryKind.NORMAL]

    def role_changed(self, _event: object) -> None:
        return None

    async def capture_state(self) -> StateSnapshot:
        raise NotImplementedError

    async def suspend(self) -> None:
        raise NotImplementedError


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def log_digests(node: RaftNode, upto_index: int) -> list[str]:
    """One digest an entry: of what stands in the log's files, headers and all."""
    digests: list[str] = []
    while len(digests) < upto_index:
        for entry in await node.log.read(len(digests) + 1, 16 << 20, upto_index):
            digests.append(digest(b"".join(entry.buffers)))
    return digests


class Group:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers = {NodeId(f"n{n}"): f"127.0.0.1:{port}" for n, port in enumerate(free_ports(3))}
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
        node = await RaftNode.open(identity, settings, real_environment(str(self.folder / name), network), machine)
        self.nodes[name] = node
        server = self.servers[name] = network.serve(self.peers[name])
        node.register(server)
        await server.start()

    async def stop(self, name: NodeId, *, hand_over: bool = False) -> None:
        node = self.nodes.pop(name)
        await node.stop(hand_over=hand_over)
        await self.servers.pop(name).stop(0)

    async def leader(self) -> RaftNode:
        async with asyncio.timeout(LIMIT_S):
            while True:
                for node in self.nodes.values():
                    if node.is_confirmed_leader:
                        return node
                await asyncio.sleep(0.01)

    async def write(self, data: bytes) -> EntryId:
        """Write until it is stored, as a client would; the payload may be stored twice when an answer was lost."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    return await (await self.leader()).propose(Blob(data))
                except (BusyError, NotLeaderError, OutcomeUnknownError):
                    await asyncio.sleep(0.02)

    async def hand_over_to(self, name: NodeId) -> None:
        """Once is enough, unless the machine is too busy for it or elects another leader meanwhile."""
        async with asyncio.timeout(LIMIT_S):
            while (leader := await self.leader()) is not self.nodes[name]:
                with contextlib.suppress(BusyError, NotLeaderError, NotReadyError):
                    assert await leader.transfer(name, LIMIT_S) == name
                await asyncio.sleep(0.02)

    async def stop_all(self) -> None:
        for name in list(self.nodes):
            await self.stop(name)

    async def settle(self) -> int:
        """Wait until every replica has applied the same; returns that index.  A busy machine may elect anew at any time after."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                applied = {machine.applied_index for machine in self.machines.values()}
                committed = max(node.status().commit_index for node in self.nodes.values())
                if applied == {committed}:
                    return committed
                await asyncio.sleep(0.01)


async def replicate_change_leaders_and_restart(group: Group) -> None:
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
    await group.hand_over_to(first)
    await asyncio.gather(*[group.write(body) for body in bodies[40:]])
    upto = await group.settle()
    applied = b"".join(group.machines[first].bodies)  # an entry joins what waited together
    assert [n for n, body in enumerate(bodies) if body not in applied] == []
    digests = [await log_digests(node, upto) for node in group.nodes.values()]
    assert digests[0] == digests[1] == digests[2], "replicas are byte-identical"


def test_a_group_replicates_changes_leaders_and_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        group = Group(tmp_path)
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                await replicate_change_leaders_and_restart(group)
        finally:
            await group.stop_all()

    asyncio.run(scenario())
