"""Simulated clusters of several replica groups: each elects, stores and fails on its own, and what mixes two of them is found."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client.aio import Message
from tests.sim.invariants import check_logs_match
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig, until

__all__ = ["quiet"]


def topics_of(rig: Rig, group: str) -> set[str]:
    """Which of our topics the master of a group knows."""
    node = rig.cluster.hosts[rig.master_of(group)].node
    assert node is not None
    return {name for name in ("t0", "t1") if node.store.topics.get(name) is not None}


def test_two_groups_elect_and_store_beside_each_other() -> None:
    async def scenario(rig: Rig) -> None:
        assert {rig.cluster.hosts[rig.master_of(group)].group for group in ("g0", "g1")} == {"g0", "g1"}
        async with rig.admin() as admin:
            await admin.create_topic("t0", queues=1, replica_group="g0")
            await admin.create_topic("t1", queues=1, replica_group="g1")
        async with rig.producer() as producer:
            for topic in ("t0", "t1"):
                sent = await producer.send(Message(topic, b"x"))
                assert sent.replica_group == f"g{topic[1]}"
        assert (topics_of(rig, "g0"), topics_of(rig, "g1")) == ({"t0"}, {"t1"})
        for group in rig.cluster.groups.values():
            nodes = [host.node for host in rig.cluster.hosts_of(group.name) if host.node is not None]
            assert len(nodes) == 3
            await check_logs_match(nodes)
            assert len(group.invariants.committed) > 1

    Rig(1, groups=2).run(scenario)


def test_the_fall_of_one_groups_master_changes_nothing_in_the_other() -> None:
    async def scenario(rig: Rig) -> None:
        before, fallen = rig.master_of("g0"), rig.master_of("g1")
        await rig.restart(fallen)
        await until(lambda: rig.is_group_up("g1"))
        assert rig.master_of("g0") == before
        assert rig.cluster.groups["g0"].invariants.leaders.keys() != rig.cluster.groups["g1"].invariants.leaders.keys()

    Rig(2, groups=2).run(scenario)


def test_a_group_is_added_while_the_first_one_works() -> None:
    async def scenario(rig: Rig) -> None:
        old = rig.master
        added = rig.cluster.add_group()
        for node_id in added.node_ids:
            rig.cluster.start(node_id)
        await until(lambda: rig.is_group_up("g1"))
        assert rig.master == old
        assert len(rig.cluster.hosts) == 6

    Rig(3).run(scenario)


def test_a_message_of_a_node_of_another_group_is_a_violation() -> None:
    async def scenario(rig: Rig) -> None:
        rig.cluster.groups["g1"].invariants.strangers.add(rig.followers_of("g1")[0])
        await asyncio.sleep(1)

    with pytest.raises(AssertionError) as found:
        Rig(4, groups=2).run(scenario)
    assert "groups mixed" in str(found.value)
