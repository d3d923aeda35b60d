"""Members that come back at another address, with their data: their group follows, and the log names where they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from dledger.core.types import NodeId
from dledger.node import RaftNode
from tests.unit.dledger.raft_rig import Cluster, Text, run

TIMEOUT_S = 5


def known_addresses(cluster: Cluster) -> list[dict[NodeId, str]]:
    return [{name: node.address_of(name) for name in cluster.names} for node in cluster.nodes.values()]


async def all_know(cluster: Cluster, wanted: Mapping[str, str]) -> None:
    await cluster.until(lambda: all(known == wanted for known in known_addresses(cluster)), f"all know {wanted}")


async def all_have(cluster: Cluster, *bodies: bytes) -> None:
    await cluster.until(lambda: all(machine.bodies == list(bodies) for machine in cluster.machines.values()), "all have all")


async def begun() -> tuple[Cluster, RaftNode]:
    cluster = Cluster()
    await cluster.start()
    leader = await cluster.leader()
    await leader.propose(Text("before"))
    await all_have(cluster, b"before")
    return cluster, leader


def test_a_member_that_comes_back_elsewhere_is_followed_and_registered() -> None:
    async def scenario() -> None:
        cluster, leader = await begun()
        name, other = (node.identity.node_id for node in cluster.followers(leader))
        await cluster.kill(name)
        cluster.addresses[name] = "elsewhere:2"  # the nodes that run do not know
        await leader.propose(Text("meanwhile"))
        await cluster.start_one(name)
        await all_know(cluster, cluster.addresses)
        await cluster.kill(other)
        await leader.propose(Text("with it"))  # its acknowledgement counts
        await cluster.start_one(other)
        await all_have(cluster, b"before", b"meanwhile", b"with it")
        assert (await cluster.leader()).membership.voters == tuple(cluster.names)
        await cluster.stop()

    run(scenario())


def test_a_leader_that_comes_back_elsewhere_leads_again_and_registers_itself() -> None:
    async def scenario() -> None:
        cluster, leader = await begun()
        name = leader.identity.node_id
        await cluster.kill(name)
        cluster.addresses[name] = "elsewhere:2"
        moved = await cluster.start_one(name)
        await (await cluster.leader()).transfer(name, TIMEOUT_S)
        await cluster.until(lambda: moved.is_confirmed_leader)
        await moved.propose(Text("after"))
        await all_know(cluster, cluster.addresses)
        await all_have(cluster, b"before", b"after")
        await cluster.stop()

    run(scenario())


def test_a_group_that_was_stopped_and_moved_as_a_whole_finds_itself_by_the_settings() -> None:
    async def scenario() -> None:
        cluster, _leader = await begun()
        for name in cluster.names:
            await cluster.kill(name)
            cluster.addresses[name] = f"{name}:2"
        await cluster.start()
        await (await cluster.leader()).propose(Text("after"))
        await all_know(cluster, cluster.addresses)
        await all_have(cluster, b"before", b"after")
        for name in cluster.names:
            await cluster.kill(name)
        stale, cluster.addresses = cluster.addresses, dict.fromkeys(cluster.names, "nowhere:1") | cluster.addresses
        await cluster.start()  # what the log says is known after a start, too
        await all_know(cluster, stale)
        await cluster.stop()

    run(scenario())


def test_an_address_that_nobody_can_reach_is_not_registered() -> None:
    async def scenario() -> None:
        cluster, leader = await begun()
        name = cluster.followers(leader)[0].identity.node_id
        await cluster.kill(name)
        member = await cluster.start_one(name, told="nowhere:2")
        await (await cluster.leader()).propose(Text("after"))
        await all_have(cluster, b"before", b"after")
        leader = await cluster.leader()
        await cluster.until(lambda: leader.is_connected(name))
        await leader.transfer(name, TIMEOUT_S)
        await cluster.until(lambda: member.is_confirmed_leader)
        await member.propose(Text("led"))
        await all_have(cluster, b"before", b"after", b"led")
        assert known_addresses(cluster) == [cluster.addresses] * 3
        await cluster.stop()

    run(scenario())


def test_the_folder_left_behind_by_a_move_is_refused_when_it_is_started_again() -> None:
    async def scenario() -> None:
        cluster, leader = await begun()
        name = cluster.followers(leader)[0].identity.node_id
        await cluster.kill(name)
        left_behind, old_address = copy.deepcopy(cluster.disks[name]), cluster.addresses[name]
        cluster.addresses[name] = "elsewhere:2"
        await cluster.start_one(name)
        await all_know(cluster, cluster.addresses)
        await cluster.kill(name)
        cluster.disks[name], cluster.addresses[name] = left_behind, old_address
        old = await cluster.start_one(name)
        await cluster.until(old._replica.failed.done)
        assert "its data folder is older than what it acknowledged" in str(old._replica.failed.result())
        await cluster.stop()

    run(scenario())
