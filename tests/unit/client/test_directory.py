"""The directory of a cluster: all replica groups from one call, with who is in sync, who lags, who is missing."""

from __future__ import annotations

import asyncio

import pytest

from broker.config.cluster_file import ClusterConfig
from dledger_cli.cluster_plan import make_plan
from dledger_cli.cluster_text import leaders_by_host, warnings_of
from dledger_client.admin.directory import ClusterDirectory, RegisteredGroup, RegisteredNode
from dledger_client.admin.replica_groups import ReplicaGroupDescription
from dledger_client.aio import Message
from dledger_wire.errors import ConfigError
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig

__all__ = ["quiet"]


async def told(rig: Rig, missing: int) -> ClusterDirectory:
    """The directory, once every group has a leader and so many members of g1 are missing."""
    async with rig.admin() as admin:
        while True:
            found = await admin.directory()
            groups = {group.name: group for group in found.groups}
            if all(group.leader_id for group in found.groups) and len(groups["g1"].missing) == missing and found.from_name_server:
                return found
            await asyncio.sleep(0.5)


def test_a_directory_names_leaders_replicas_wishes_and_rates() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        first = await told(rig, 0)
        assert [(group.name, group.state, group.wanted_voters) for group in first.groups] == [("g0", "active", 3), ("g1", "active", 3)]
        for group in first.groups:
            assert group.leader is not None
            assert group.leader.id == rig.master_of(group.name)
            assert len(group.voters) == 3
        async with rig.admin() as admin:
            while any(group.lagging for group in (await admin.directory()).groups):  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
            assert not warnings_of(await admin.directory())
            assert make_plan(rig.cluster.config, await admin.directory(), {}).steps == []
        async with rig.producer() as producer:
            for number in range(400):
                await producer.send(Message("t", b"%d" % number))
                await asyncio.sleep(0.05)
        assert any(group.messages_in_per_s > 1 for group in (await told(rig, 0)).groups)
        rig.cluster.kill(rig.followers_of("g1")[0])
        lost = await told(rig, 1)
        assert any("do not answer" in text for text in warnings_of(lost))

    Rig(51, groups=2).run(scenario)


def nodes(*hosts: str, rack: str = "") -> tuple[RegisteredNode, ...]:
    return tuple(RegisteredNode(f"n-{host}", f"{host}:1", host, rack, voter=True, in_sync=True) for host in hosts)


def test_what_is_not_as_it_should_be_is_told_with_names() -> None:
    even = ClusterDirectory("c", (RegisteredGroup("g0", "active", 1, "n-a", nodes("a", "b", "c"), wanted_voters=3),))
    assert warnings_of(even) == []
    few = RegisteredGroup("g0", "active", 1, "", nodes("a", "b"), wanted_voters=3, wanted_learners=1)
    assert warnings_of(ClusterDirectory("c", (few,))) == [
        "replica group g0 has no leader",
        "replica group g0: 2 voters, 3 wanted",
        "replica group g0: 0 learners, 1 wanted",
    ]
    groups = tuple(RegisteredGroup(f"g{n}", "active", 1, "n-a", nodes("a", "b", "c")) for n in range(2))
    assert leaders_by_host(ClusterDirectory("c", groups)) == {"a": 2, "b": 0, "c": 0}
    assert warnings_of(ClusterDirectory("c", groups)) == ["leaders are uneven: 2 on a, 0 on b"]
    racks = RegisteredGroup("g0", "active", 1, "n-a", nodes("a", "b", rack="r1"))
    assert warnings_of(ClusterDirectory("c", (racks,))) == ["replica group g0: n-a, n-b are in rack r1"]


def test_a_plan_names_what_differs_and_refuses_what_contradicts() -> None:
    text = """
cluster: c
groups:
  - {name: g0, voters: 5, nodes: [{id: n-a, address: "a:9"}, {id: n-b, address: "b:1", rack: r9}, {id: n-d, address: "d:1"}]}
  - {name: g2, nodes: [{id: x, address: "x:1"}]}
spares: [{id: sp0, address: "s:1"}]
"""
    config = ClusterConfig.parse(text, "f")
    running = ClusterDirectory(
        "c",
        (
            RegisteredGroup("g0", "active", 1, "n-a", nodes("a", "b", "c")),
            RegisteredGroup("g1", "active", 1, "m", (RegisteredNode("m", "m:1"),)),
            RegisteredGroup("g7", "removed", 0, "", ()),
        ),
    )
    plan = make_plan(config, running, {"g0": ReplicaGroupDescription("g0", "active", 0, 3, 0, 0)})
    assert plan.steps == ["set the policy of g0: voters 5", "add replica group g2: x at x:1", "drain replica group g1, then remove it"]
    assert plan.notes == [
        "n-a is at a:1: restart it with this file to move it to a:9",
        "n-b: restart it to take its labels (host b, rack r9)",
        "n-c of g0 is not in the file: dledger member remove --id n-c --replica-group g0",
        "n-d is not a member of g0: dledger member add --id n-d --replica-group g0",
        "spare node sp0 does not run: dledger up, or dledger node --id sp0",
    ]
    wrong = text.replace("name: g2, nodes: [{id: x, ", "name: g7, nodes: [{id: m, ").replace('"s:1"', '"c:1"')
    with pytest.raises(ConfigError) as refused:
        make_plan(ClusterConfig.parse(wrong, "f"), running, {})
    assert refused.value.message.split("; ") == [
        "replica group g7 was removed, and offsets and checkpoints still name its queues",
        "expected a name that was never used",
        "node m of g7: a node of g1 at m:1 has that id",
        "spare node sp0: c:1 is the address of n-c of g0",
    ]


def test_a_plan_does_not_undo_what_a_spare_node_has_replaced() -> None:
    text = """
cluster: c
groups: [{name: g0, nodes: [{id: n-a, address: "a:1"}, {id: n-b, address: "b:1"}, {id: n-c, address: "c:1"}]}]
spares: [{id: n-s, address: "s:1"}]
"""
    running = ClusterDirectory("c", (RegisteredGroup("g0", "active", 1, "n-a", nodes("a", "b", "s")),))
    config = ClusterConfig.parse(text, "f")
    plan = make_plan(config, running, {"g0": ReplicaGroupDescription("g0", "active", 0, 3, 0, config.replace_after_ms(config.groups[0]))})
    assert (plan.steps, plan.notes) == ([], ["n-c is not a member of g0: n-s took its place"])


def test_a_group_that_has_never_had_a_leader_is_still_to_be_added() -> None:
    """A node of it that runs alone registers; a command that says that there is nothing to change would leave it at that."""
    text = """
cluster: c
groups:
  - {name: g0, nodes: [{id: n-a, address: "a:1"}]}
  - {name: g1, nodes: [{id: x, address: "x:1"}]}
  - {name: g2, nodes: [{id: y, address: "y:1"}]}
"""
    alone = RegisteredGroup("g1", "active", 0, "", (RegisteredNode("x", "x:1"),))
    dead = RegisteredGroup("g2", "active", 7, "", (RegisteredNode("y", "y:1", missing=True),))
    running = ClusterDirectory("c", (RegisteredGroup("g0", "active", 1, "n-a", nodes("a")), alone, dead))
    assert make_plan(ClusterConfig.parse(text, "f"), running, {}).steps == ["add replica group g1: x at x:1"]


def test_a_group_that_is_dead_is_told_by_the_name_server_with_its_members_missing() -> None:
    async def scenario(rig: Rig) -> None:
        await told(rig, 0)
        for node_id in rig.cluster.groups["g1"].node_ids:
            rig.cluster.kill(node_id)
        await asyncio.sleep(30)  # longer than expireAfter
        async with rig.admin() as admin:
            began_s = rig.cluster.loop.now_s
            found = await admin.directory()
            assert rig.cluster.loop.now_s - began_s < 1.0
        assert found.from_name_server
        assert [(group.name, group.wanted_voters, len(group.missing)) for group in found.groups] == [("g0", 3, 0), ("g1", 3, 3)]

    Rig(52, groups=2).run(scenario)


def test_who_takes_whose_place_is_told() -> None:
    def texts(absent: str) -> list[str]:
        group = RegisteredGroup("g0", "active", 1, "n-a", nodes("a", "b", "c"), wanted_voters=3, spare="sp0", absent=absent)
        return warnings_of(ClusterDirectory("c", (group,)))

    assert texts("n-c") == ["replica group g0: spare node sp0 takes the place of n-c"]
    assert texts("") == ["replica group g0: spare node sp0 becomes a learner"]


def test_a_name_server_that_has_heard_of_nobody_is_not_taken_for_an_empty_cluster() -> None:
    """Wiped, and cut off from the nodes: what it says is true of itself only."""

    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        servers, net = rig.cluster.name_servers, rig.cluster.net
        servers.wipe("ns0")
        nodes = [host.ip for host in rig.cluster.hosts.values()]
        for ip in nodes:
            net.cut(servers.hosts["ns0"].ip, ip)
            net.cut(ip, servers.hosts["ns0"].ip)
        servers.start("ns0", rig.cluster.config)
        async with rig.admin() as admin:
            assert "t" in {found.topic for found in await admin.list_topics()}

    Rig(52, name_servers=1).run(scenario)
