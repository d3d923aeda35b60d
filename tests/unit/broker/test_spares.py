"""Spare nodes: which step comes next, and a node that belongs to the first group that asks.

docs/reference/semantics.md, row S2.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.spares.binding import Binding, bound_settings, read_binding
from broker.spares.taking import next_step
from broker.spares.waiting import WaitingSpare
from dledger.core.types import Membership, NodeId
from dledger.runtime.env import Environment
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.rpc import methods
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.loop import Process
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig

__all__ = ["quiet"]

FILE = """\
cluster: c
groups:
  - name: g0
    nodes: [{id: n0, address: "10.0.0.1:1"}, {id: n1, address: "10.0.0.2:1"}, {id: n2, address: "10.0.0.3:1"}]
spares: [{id: sp0, address: "10.0.9.1:1", host: h9}]
"""


def members(*voters: str, learners: tuple[str, ...] = ()) -> Membership:
    return Membership(tuple(NodeId(each) for each in voters), tuple(NodeId(each) for each in learners))


THREE = members("n0", "n1", "n2")


def test_nothing_is_done_before_a_member_has_been_away_long_enough() -> None:
    assert next_step(THREE, {"sp0"}, [], []) is None
    assert next_step(THREE, {"sp0"}, ["n2"], []) is None


def test_a_spare_node_joins_is_promoted_and_then_the_absent_one_goes() -> None:
    first = next_step(THREE, {"sp0"}, ["n2"], ["n2"])
    assert first is not None
    assert first.membership is None
    second = next_step(members("n0", "n1", "n2", learners=("sp0",)), {"sp0"}, ["n2"], ["n2"])
    assert second is not None
    assert second.membership == members("n0", "n1", "n2", "sp0")
    third = next_step(members("n0", "n1", "n2", "sp0"), {"sp0"}, ["n2"], ["n2"])
    assert third is not None
    assert third.membership == members("n0", "n1", "sp0")
    assert next_step(members("n0", "n1", "sp0"), {"sp0"}, [], []) is None


def test_a_member_that_came_back_stays() -> None:
    assert next_step(members("n0", "n1", "n2", learners=("sp0",)), {"sp0"}, [], []) is None
    back = next_step(members("n0", "n1", "n2", "sp0"), {"sp0"}, [], [])
    assert back is not None
    assert back.membership == members("n0", "n1", "n2", learners=("sp0",))
    assert next_step(members("n0", "n1", "n2", "sp0"), {"sp0"}, ["n2"], []) is None, "a new master waits before it removes"


def test_members_that_an_operator_changes_are_left_alone() -> None:
    found = next_step(members("n0", "n1", "n2", learners=("n3",)), {"sp0"}, ["n2"], ["n2"])
    assert found is not None
    assert found.membership is None, "a learner that was never spare is not promoted"
    assert next_step(members("n0", "n1", "n2", "n3"), {"sp0"}, ["n2"], ["n2"]) is None


def test_the_first_group_that_asks_has_the_spare_node_also_after_a_restart() -> None:
    config = ClusterConfig.parse(FILE, "f")
    (spare,) = config.spares

    def request(group: str, cluster: str = "c") -> admin_pb2.TakeSpareRequest:
        voters = [admin_pb2.SpareVoter(id="n0", address="10.0.0.1:1")]
        return admin_pb2.TakeSpareRequest(cluster=cluster, group=group, node_id="sp0", voters=voters)

    async def scenario(rig: Rig) -> None:
        loop = rig.cluster.loop
        process = Process("10.0.9.1", 1)
        disk = SimDisk(loop, "10.0.9.1", random.Random(1), rig.cluster.trace)
        env = Environment(SimClock(loop), random.Random(1), disk.mount(process), rig.cluster.net.of(process), boot_id="b")
        assert await read_binding(env.disk) is None
        waiting = WaitingSpare(config, spare, env)

        async def life() -> None:
            await waiting.open()
            channel = env.network.connect(spare.address)

            async def take(request: admin_pb2.TakeSpareRequest) -> None:
                await methods.TAKE_SPARE.call(channel, request, timeout_s=5)

            with pytest.raises(InvalidArgumentError, match="this is spare node sp0 of cluster c"):
                await take(request("g0", "other"))
            await asyncio.gather(take(request("g0")), take(request("g0")))
            with pytest.raises(InvalidArgumentError, match="spare node sp0 belongs to replica group g0"):
                await take(request("g1"))
            assert waiting.bound is not None
            assert await waiting.bound == Binding("g0", (("n0", "10.0.0.1:1"),))
            await waiting.stop()
            assert await read_binding(env.disk) == Binding("g0", (("n0", "10.0.0.1:1"),))
            await env.disk.write_atomic("spare.json", b"{}")
            with pytest.raises(DataDirectoryError, match="is damaged"):
                await read_binding(env.disk)

        await loop.spawn(process, life(), "spare")

    Rig(41).run(scenario)


def test_a_bound_spare_node_is_one_that_its_group_takes_in() -> None:
    config = ClusterConfig.parse(FILE, "f")
    (spare,) = config.spares
    settings = bound_settings(config, spare, Binding("g0", ()))
    assert [(node.id, node.spare) for node in settings.group.nodes] == [("n0", False), ("n1", False), ("n2", False), ("sp0", True)]
    assert (settings.node.host, settings.runs_name_service, settings.addresses) == ("h9", False, ("10.0.9.1:1",))
    later = bound_settings(config, spare, Binding("g7", (("m0", "10.0.7.1:1"),)))
    assert [(node.id, node.spare) for node in later.group.nodes] == [("m0", False), ("sp0", True)]
