"""The directory of a cluster: all replica groups from one call, with who is in sync, who lags, who is missing."""

from __future__ import annotations

import asyncio

from dledger_cli.cluster_plan import make_plan
from dledger_cli.cluster_text import leaders_by_host, warnings_of
from dledger_client.admin.directory import ClusterDirectory, RegisteredGroup, RegisteredNode
from dledger_client.aio import Message
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
