"""Replacing a member whose folder was lost: removed, added as a learner, caught up, promoted (rows K12, M21)."""

from __future__ import annotations

import asyncio

import pytest

from dledger.core.types import Membership, NodeId, Role
from dledger.node import RaftNode
from dledger_wire.errors import DledgerError, NoLiveMajorityError, OutcomeUnknownError
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Text, run

TIMEOUT_S = 10


async def change(leader: RaftNode, cluster: Cluster, voters: list[NodeId], learners: list[NodeId]) -> None:
    """A change, asked for until it is taken."""
    for _ in range(200):
        try:
            await leader.change_members(voters, learners, cluster.addresses, TIMEOUT_S)
        except DledgerError:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the change is not taken")


async def wiped(cluster: Cluster, name: NodeId) -> None:
    await cluster.kill(name)
    cluster.disks[name] = MemoryDisk()


def test_M21_a_wiped_member_comes_back_as_a_learner_and_is_promoted() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("before"))
        name = cluster.followers(leader)[0].identity.node_id
        others = [other for other in cluster.names if other != name]
        await wiped(cluster, name)
        await change(leader, cluster, others, [])
        node = await cluster.start_one(name, store_id="new folder")
        await asyncio.sleep(2)
        assert node.log.last.index == 0
        await change(leader, cluster, others, [name])
        await cluster.until(lambda: cluster.machines[name].bodies == [b"before"], "the learner catches up")
        assert node.role is Role.LEARNER
        await change(leader, cluster, [*others, name], [])
        await cluster.until(lambda: node.role is Role.FOLLOWER)
        second = next(other for other in others if other != leader.identity.node_id)
        await cluster.kill(second)
        await leader.propose(Text("after"))
        stores = {other: f"store-{other}" for other in others} | {name: "new folder"}
        assert leader.membership == Membership((*others, name)).with_stores(stores)
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("restart", [False, True], ids=["the same process", "after a restart of the others"])
def test_M21_a_wiped_member_is_refused_as_long_as_it_was_not_removed(restart: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("before"))
        name = cluster.followers(leader)[0].identity.node_id
        await wiped(cluster, name)
        if restart:
            for other in [other for other in cluster.names if other != name]:
                await cluster.kill(other)
                await cluster.start_one(other)
        node = await cluster.start_one(name, store_id="new folder")
        await asyncio.sleep(5)
        assert (node.leader, node.log.last.index) == (None, 0)
        leader = await cluster.leader()
        await leader.propose(Text("after"))
        shown = {peer.node_id: peer for peer in leader.status().peers}
        assert {peer for peer in shown if shown[peer].acknowledges} == {other for other in cluster.names if other != name}
        assert not shown[name].connected
        assert "data folder new folder" in shown[name].refused
        await cluster.stop()

    run(scenario())


def test_M21_a_removed_member_that_still_runs_does_not_keep_its_place() -> None:
    """It goes on dialling; its old folder must not be what its successor is compared with."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = cluster.followers(leader)[0].identity.node_id
        others = [other for other in cluster.names if other != name]
        await change(leader, cluster, others, [])
        await asyncio.sleep(3)
        await wiped(cluster, name)
        await cluster.start_one(name, store_id="new folder")
        await change(leader, cluster, others, [name])
        await leader.propose(Text("x"))
        await cluster.until(lambda: cluster.machines[name].bodies == [b"x"])
        await cluster.stop()

    run(scenario())


def test_M21_a_member_that_was_away_follows_a_leader_that_was_replaced_meanwhile() -> None:
    """Seed 209 of ``members``: only the new leader could tell it of its own replacement, and it would not listen to a folder unknown."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        first, name, away = leader.identity.node_id, *(node.identity.node_id for node in cluster.followers(leader))
        await change(leader, cluster, [first, name], [])
        await cluster.kill(away)
        await change(leader, cluster, [first], [])
        await wiped(cluster, name)
        node = await cluster.start_one(name, store_id="new folder")
        await change(leader, cluster, [first], [name])
        await cluster.until(lambda: node.role is Role.LEARNER)
        await change(leader, cluster, [first, name], [])
        await leader.transfer(name, 5)
        await cluster.until(lambda: node.role is Role.LEADER)
        await cluster.start_one(away)
        await change(node, cluster, [first, name], [away])
        await node.propose(Text("x"))
        await cluster.until(lambda: cluster.machines[away].bodies == [b"x"], "the one that was away follows")
        await cluster.stop()

    run(scenario())


def test_an_address_in_a_change_that_came_to_nothing_is_forgotten() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        name = old.identity.node_id
        followers = [node.identity.node_id for node in cluster.followers(old)]
        cluster.net.isolate(name, cluster.names)
        wrong: dict[str, str] = dict.fromkeys([*cluster.names], "nowhere:1") | {"n3": "nowhere:2"}
        with pytest.raises(OutcomeUnknownError):
            await old.change_members(cluster.names, [NodeId("n3")], wrong, TIMEOUT_S)
        assert old.address_of(NodeId("n3")) == "nowhere:2", "a configuration counts from the moment it is in the log"
        others = [cluster.nodes[follower] for follower in followers]
        new: RaftNode = await cluster.until(lambda: next((node for node in others if node.is_confirmed_leader), None))
        await new.propose(Text("new"))
        cluster.net.heal()
        await cluster.until(lambda: cluster.machines[name].bodies == [b"new"])
        assert {other: old.address_of(other) for other in cluster.names} == cluster.addresses
        assert not old.address_of(NodeId("n3"))
        # It leads again, and reaches everybody.
        await new.transfer(name, 5)
        await old.propose(Text("again"))
        await cluster.until(lambda: all(machine.bodies == [b"new", b"again"] for machine in cluster.machines.values()))
        await old.change_members(cluster.names, [NodeId("n3")], {"n3": "elsewhere:1"}, TIMEOUT_S)
        await old.change_members(cluster.names, [], {}, TIMEOUT_S)
        await old.change_members(cluster.names, [NodeId("n3")], {"n3": "elsewhere:2"}, TIMEOUT_S)
        assert old.address_of(NodeId("n3")) == "elsewhere:2", "a committed one is where the member is from now on"
        await cluster.stop()

    run(scenario())


def test_M23_removing_the_wrong_member_while_another_is_dead_is_refused_and_changes_nothing() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("before"))
        dead, other = (follower.identity.node_id for follower in cluster.followers(leader))
        await cluster.kill(dead)
        await cluster.until(lambda: not leader._replica.links.connected(dead))
        own = leader.identity.node_id
        with pytest.raises(NoLiveMajorityError, match="bring the silent ones back or remove those first; nothing was changed"):
            await leader.change_members([own, dead], [], cluster.addresses, TIMEOUT_S)
        await leader.propose(Text("after"))
        assert (await leader.change_members([own, other], [], cluster.addresses, TIMEOUT_S)).voters == (own, other)
        await cluster.stop()

    run(scenario())


def test_a_member_that_comes_back_follows_a_leader_that_no_configuration_in_its_log_goes_by() -> None:
    """Seed 1687478737 of ``swarm``: it left as the leader when the one was out that leads when it returns, and had no way to answer."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = leader.identity.node_id
        first, second = (other for other in cluster.names if other != name)
        await change(leader, cluster, [name, second], [])
        await cluster.until(lambda: cluster.nodes[second].membership.voters == (name, second))
        await change(leader, cluster, [second], [])
        await cluster.until(lambda: cluster.nodes[second].is_confirmed_leader)
        await cluster.until(lambda: cluster.nodes[name].commit_index == cluster.nodes[name].log.last.index)
        cluster.net.isolate(name, cluster.names)
        leader = cluster.nodes[second]
        await change(leader, cluster, [second], [first])
        await change(leader, cluster, [second, first], [])
        await leader.transfer(first, 5)
        await cluster.until(lambda: cluster.nodes[first].is_confirmed_leader)
        leader = cluster.nodes[first]
        await leader.propose(Text("meanwhile"))
        cluster.net.heal()
        await change(leader, cluster, [second, first], [name])
        await cluster.until(lambda: cluster.machines[name].bodies == [b"meanwhile"], "the member that came back catches up")
        await cluster.stop()

    run(scenario())
