"""Spare nodes: which step comes next, and a node that belongs to the first group that asks.

docs/reference/semantics, row S2.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config.cluster_file import ClusterConfig
from broker.membership.replacement import SpareReplacement
from broker.membership.replacement_steps import (
    Begin,
    Change,
    End,
    Seen,
    Take,
    free_spares,
    may_ask,
    must_give_way,
    next_step,
    turns_of_others,
)
from broker.membership.spare_binding import Binding, bound_settings, read_binding
from broker.membership.waiting_spare import WaitingSpare
from dledger.core.types import Membership, NodeId
from dledger.runtime.env import Environment
from dledger.settings import PeerStatus
from dledger_wire._pb import admin_pb2, routes_pb2
from dledger_wire.errors import DataDirectoryError, InvalidArgumentError
from dledger_wire.rpc import methods
from store.commands.replacement import Replacement
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


def voter_of(spare: str = "sp0", absent: str = "n2") -> Replacement:
    return Replacement(spare, "10.0.9.1:1", absent, voter=True)


def learner_of(spare: str = "sp0", absent: str = "") -> Replacement:
    return Replacement(spare, "10.0.9.1:1", absent, voter=False)


AWAY = Seen(away=["n2"], settled=["n2"], gone=["n2"])


def test_nothing_is_done_before_a_member_has_been_away_long_enough() -> None:
    assert next_step(THREE, None, 0, Seen()) is None
    assert next_step(THREE, None, 0, Seen(away=["n2"], settled=["n2"])) is None


def test_a_spare_node_joins_and_takes_the_place_of_the_absent_voter() -> None:
    first = next_step(THREE, None, 0, AWAY)
    assert isinstance(first, Begin)
    assert (first.absent, first.voter, first.ready) == ("n2", True, "")
    assert isinstance(next_step(THREE, voter_of(), 0, AWAY), Take)
    joined = members("n0", "n1", "n2", learners=("sp0",))
    assert next_step(joined, voter_of(), 0, AWAY) is None, "it has not caught up"
    caught_up = replace(AWAY, in_sync=["sp0"])
    removed = next_step(joined, voter_of(), 0, caught_up)
    assert isinstance(removed, Change)
    assert removed.membership == members("n0", "n1", learners=("sp0",))
    promoted = next_step(removed.membership, voter_of(), 0, replace(caught_up, away=[], gone=[], settled=[]))
    assert isinstance(promoted, Change)
    assert promoted.membership == members("n0", "n1", "sp0")
    assert isinstance(next_step(promoted.membership, voter_of(), 0, Seen()), End)


def test_a_new_master_listens_before_it_removes_a_member() -> None:
    joined = members("n0", "n1", "n2", learners=("sp0",))
    assert next_step(joined, voter_of(), 0, Seen(away=["n2"], in_sync=["sp0"])) is None


def test_a_member_that_came_back_stays_unless_it_was_removed() -> None:
    for now in (THREE, members("n0", "n1", "n2", learners=("sp0",))):
        assert isinstance(next_step(now, voter_of(), 0, Seen(in_sync=["sp0"])), End)
    removed = members("n0", "n1", learners=("sp0",))
    promoted = next_step(removed, voter_of(), 0, Seen(in_sync=["sp0"]))
    assert isinstance(promoted, Change)
    assert promoted.membership.voters == ("n0", "n1", "sp0")


def test_a_spare_node_that_fails_meanwhile_is_dropped_for_another_one() -> None:
    seen = replace(AWAY, away=["n2", "sp0"], gone=["n2", "sp0"], late=["n2", "sp0"])
    for now in (members("n0", "n1", "n2", learners=("sp0",)), members("n0", "n1", learners=("sp0",))):
        step = next_step(now, voter_of(), 0, seen)
        assert isinstance(step, Change)
        assert (step.dropped, step.membership) == (True, members(*now.voters))
    assert isinstance(next_step(members("n0", "n1"), voter_of("sp1"), 0, seen), Take), "the voter that was removed is still replaced"


def test_a_spare_node_without_room_for_what_it_lacks_is_dropped_for_another_one() -> None:
    full = replace(AWAY, full=["sp0"])
    for under_way, now in (
        (voter_of(), members("n0", "n1", "n2", learners=("sp0",))),
        (voter_of(), members("n0", "n1", learners=("sp0",))),
        (learner_of(), members("n0", "n1", "n2", learners=("sp0",))),
    ):
        step = next_step(now, under_way, 1, full)
        assert isinstance(step, Change)
        assert (step.dropped, step.membership) == (True, members(*now.voters))
        assert next_step(now, under_way, 1, AWAY) is None, "one that has room is waited for"
        stuck = next_step(now, under_way, 1, replace(AWAY, stuck=["sp0"]))
        assert isinstance(stuck, Change)
        assert (stuck.dropped, stuck.why) == (True, "spare node sp0 does not catch up")
    caught_up = replace(full, in_sync=["sp0"])
    assert next_step(members("n0", "n1", "n2", learners=("sp0",)), voter_of(), 0, caught_up) == Change(
        "n2 is removed, sp0 has caught up", members("n0", "n1", learners=("sp0",))
    )


def test_only_a_member_that_is_behind_and_gets_no_further_lacks_room_or_is_stuck() -> None:
    """A learner with a nearly full disk that keeps up is not given up for lagging one moment, nor one that still catches up."""
    sp0 = PeerStatus(
        node_id=NodeId("sp0"),
        address="sp0:1",
        connected=True,
        voter=False,
        match_index=0,
        silent_ms=0,
        acknowledges=True,
        low_on_space=True,
    )
    told: list[PeerStatus] = [sp0]

    def status() -> Any:
        return SimpleNamespace(node_id="n0", commit_index=10**6, peers=told)

    raft = SimpleNamespace(status=status, membership=members("n0", "n1", "n2", learners=("sp0",)))
    cluster = ClusterConfig.parse("cluster: shop\ngroups: [{name: g0, nodes: [{id: n0, address: '127.0.0.1:1'}]}]\n", "cluster.yaml")
    store = SimpleNamespace(replica_group=SimpleNamespace(taken=()))
    context = SimpleNamespace(raft=raft, settings=SimpleNamespace(cluster=cluster), store=store)
    taking = SpareReplacement(cast(Any, context), cast(Any, None), cast(Any, None))

    def seen(now_ms: int, peer: PeerStatus) -> Seen:
        told[0] = peer
        taking._find_absent(now_ms)
        return taking._seen(now_ms, 0, 60_000)

    def full(now_ms: int, match_index: int) -> list[str]:
        return list(seen(now_ms, replace(sp0, match_index=match_index)).full)

    assert not full(0, 10**6)
    assert not full(100_000, 10**6)
    assert not full(100_001, 1), "it kept up until now"
    assert not full(160_000, 2)
    assert not full(200_000, 3), "it catches up"
    assert full(260_000, 3) == ["sp0"]
    copies = replace(sp0, low_on_space=False, match_index=3, copied_bytes=10)
    for now_ms in (300_000, 350_000):
        assert not seen(now_ms, copies).stuck
    assert not seen(360_000, replace(copies, copied_bytes=11)).stuck, "it copies"
    assert not seen(400_000, replace(copies, copied_bytes=11)).stuck
    found = seen(420_000, replace(copies, copied_bytes=11))
    assert (found.stuck, found.full) == (["sp0"], [])
    for now_ms in (500_000, 600_000):
        assert not seen(now_ms, replace(copies, copied_bytes=None)).stuck, "its release does not tell"


def test_members_that_an_operator_changes_are_left_alone() -> None:
    found = next_step(members("n0", "n1", "n2", learners=("n3",)), None, 0, replace(AWAY, spares=["sp0"]))
    assert isinstance(found, Begin)
    assert found.ready == "", "a learner that was never spare is not promoted"
    assert next_step(members("n0", "n1", "n2", "n3"), None, 0, AWAY) is None
    assert isinstance(next_step(members("n0", "n1", "n3"), voter_of(), 0, AWAY), End), "an operator was faster"


def test_a_learner_that_was_spare_is_used_at_once_if_it_is_one_more_than_wanted() -> None:
    now = members("n0", "n1", "n2", learners=("sp0",))
    for wanted, at_once in ((0, True), (1, False)):
        step = next_step(now, None, wanted, replace(AWAY, spares=["sp0"]))
        assert isinstance(step, Begin)
        assert (step.ready, step.at_once) == ("sp0", at_once)


def test_learners_that_are_missing_or_away_are_replaced() -> None:
    assert next_step(THREE, None, 1, Seen()) is None
    missing = next_step(THREE, None, 1, Seen(lacks_learners=True))
    assert isinstance(missing, Begin)
    assert (missing.absent, missing.voter) == ("", False)
    assert isinstance(next_step(THREE, learner_of(), 1, Seen()), Take)
    now = members("n0", "n1", "n2", learners=("sp0",))
    assert next_step(now, learner_of(), 1, Seen()) is None
    assert isinstance(next_step(now, learner_of(), 1, Seen(in_sync=["sp0"])), End)
    gone = Seen(away=["sp0"], settled=["sp0"], gone=["sp0"])
    lost = next_step(now, None, 1, gone)
    assert isinstance(lost, Begin)
    assert (lost.absent, lost.voter) == ("sp0", False)
    two = members("n0", "n1", "n2", learners=("sp0", "sp1"))
    removed = next_step(two, learner_of("sp1", "sp0"), 1, replace(gone, in_sync=["sp1"]))
    assert isinstance(removed, Change)
    assert removed.membership == members("n0", "n1", "n2", learners=("sp1",))
    assert next_step(two, None, 1, gone) is None, "one is there, which is what the group wants"


def told(**replacing: int) -> list[routes_pb2.DirectoryReply]:
    groups = [routes_pb2.RegisteredGroup(name=name, replacing=turn) for name, turn in replacing.items()]
    return [routes_pb2.DirectoryReply(groups=groups)]


def test_of_groups_that_ask_at_once_the_one_with_the_first_name_stays() -> None:
    assert turns_of_others("g1", told(g0=0, g1=1)) == {}
    assert turns_of_others("g1", [*told(g0=0), *told(g0=1)]) == {"g0": 1}, "any name server counts"
    assert must_give_way("g1", {"g0": 1})
    assert not must_give_way("g0", {"g1": 1})
    assert must_give_way("g0", {"g1": 2}), "who has its turn, keeps it"
    assert may_ask({})
    assert not may_ask({"g1": 1})


def test_a_spare_node_on_another_host_and_in_another_rack_is_taken_first() -> None:
    node, group = routes_pb2.RegisteredNode, routes_pb2.RegisteredGroup(name="g0")
    group.nodes.extend([node(id="n0", host="h0", rack="r0"), node(id="n1", host="h1", rack="r1"), node(id="n2", host="h2", rack="r2")])
    spares = [("sp0", "h0", "r0"), ("sp1", "h8", "r1"), ("sp2", "h2", "r2"), ("sp3", "h9", "r9")]
    reply = routes_pb2.DirectoryReply(
        groups=[group], spares=[node(id=name, address=name, host=host, rack=rack) for name, host, rack in spares]
    )
    reply.spares.add(id="sp4", host="h7", rack="r7", expired=True)
    found = [name for name, _address in free_spares([reply], "g0", ["n2"], ["sp3"])]
    assert found == ["sp2", "sp1", "sp0"]


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
    assert (settings.node.host, settings.runs_name_service, settings.addresses) == ("h9", True, ("10.0.9.1:1",))
    later = bound_settings(config, spare, Binding("g7", (("m0", "10.0.7.1:1"),)))
    assert [(node.id, node.spare) for node in later.group.nodes] == [("m0", False), ("sp0", True)]
