"""Nodes register: each node that runs the name service has the same routes, soon after anything changes."""

from __future__ import annotations

import asyncio

from dledger_wire._pb import admin_pb2, broker_pb2, routes_pb2
from dledger_wire.rpc import methods
from tests.unit.client.sim_rig import Rig, until


async def routes(
    rig: Rig, node_id: str, topics: tuple[str, ...] = (), groups: tuple[str, ...] = (), **request: int
) -> routes_pb2.RoutesReply:
    channel = rig.around()["network"].connect(rig.cluster.hosts[node_id].address)
    asked = routes_pb2.RoutesRequest(**request)  # type: ignore[arg-type]
    asked.topics.extend(routes_pb2.KnownRoute(name=name) for name in topics)
    asked.groups.extend(routes_pb2.KnownRoute(name=name) for name in groups)
    try:
        return await methods.ROUTES.call(channel, asked, timeout_s=5)
    finally:
        await channel.close()


async def leaders(rig: Rig, node_id: str) -> dict[str, str]:
    reply = await routes(rig, node_id, groups=("g0", "g1"))
    return {group.name: group.leader_id for group in reply.groups}


async def until_complete(rig: Rig, *node_ids: str) -> None:
    for node_id in node_ids:
        while not (await routes(rig, node_id)).complete:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.02)


def test_every_node_of_the_first_group_has_all_routes() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=3, replica_group="g1")
        await rig.topic("u", queues=2, replica_group="g0")
        replies = [await routes(rig, node_id, ("t", "u", "none")) for node_id in ("n0", "n1", "n2")]
        for reply in replies:  # at once: the answers that created the topics came after the registrations
            assert [(each.name, each.found, [(q.group, q.write_queues) for q in each.queues]) for each in reply.topics] == [
                ("t", True, [("g1", 3)]),
                ("u", True, [("g0", 2)]),
                ("none", False, []),
            ]
        await until_complete(rig, "n0", "n1", "n2")
        wanted = {"g0": rig.master_of("g0"), "g1": rig.master_of("g1")}
        await asyncio.sleep(0.1)
        assert [await leaders(rig, node_id) for node_id in ("n0", "n1", "n2")] == [wanted] * 3
        first = replies[0]
        assert (first.is_name_server, len(first.name_servers)) == (True, 3)
        assert {each.SerializeToString() for reply in replies for each in reply.topics if each.name == "t"} == {
            replies[0].topics[0].SerializeToString()
        }

    Rig(3, groups=2).run(scenario)


def test_a_node_of_another_group_knows_its_own_and_who_knows_more() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=3, replica_group="g1")
        reply = await routes(rig, rig.master_of("g1"), ("t",), ("g0",))
        assert (reply.is_name_server, reply.complete) == (False, False)
        assert list(reply.name_servers) == [rig.cluster.hosts[node_id].address for node_id in ("n0", "n1", "n2")]
        assert [(group.name, group.found, group.leader_id) for group in reply.groups] == [
            ("g0", False, ""),
            ("g1", True, rig.master_of("g1")),
        ]

    Rig(4, groups=2).run(scenario)


def test_a_failover_is_known_in_the_moment_the_new_master_serves() -> None:
    async def scenario(rig: Rig) -> None:
        await until_complete(rig, "n0", "n1", "n2")
        before = await routes(rig, "n0", groups=("g1",))
        old = rig.master_of("g1")
        request = routes_pb2.RoutesRequest(wait_ms=30_000)
        request.groups.add(name="g1", version=before.groups[0].version)
        channel = rig.around()["network"].connect(rig.cluster.hosts["n0"].address)
        waiting = asyncio.ensure_future(methods.ROUTES.call(channel, request, timeout_s=40))
        rig.cluster.kill(old)
        await until(lambda: rig.cluster.master("g1") not in (None, old))
        mastered_s = rig.cluster.loop.now_s
        reply = await waiting
        assert (reply.groups[0].leader_id, reply.groups[0].term > before.groups[0].term) == (rig.master_of("g1"), True)
        assert rig.cluster.loop.now_s - mastered_s < 0.05
        await channel.close()
        await asyncio.sleep(0.5)
        assert {(await leaders(rig, node_id))["g1"] for node_id in ("n0", "n1", "n2")} == {rig.master_of("g1")}

    Rig(5, groups=2).run(scenario)


def test_a_node_that_is_cut_off_from_the_others_routes_by_its_own_replica() -> None:
    """The leader's registration does not reach it, but its heartbeats do not need the name service."""

    async def scenario(rig: Rig) -> None:
        for node_id in ("n0", "n1", "n2"):
            host = rig.cluster.hosts[node_id]
            assert host.node is not None
            reply = await routes(rig, node_id, groups=("g0",))
            raft = host.node.raft
            assert (reply.groups[0].leader_id, reply.groups[0].term) == (raft.leader, raft.term)

    Rig(6, groups=1).run(scenario)


def test_a_name_server_that_is_gone_delays_a_topic_once() -> None:
    async def scenario(rig: Rig) -> None:
        follower = rig.followers_of("g0")[0]
        await rig.topic("before", replica_group="g1")
        rig.isolate(follower)
        channel = rig.around()["network"].connect(rig.cluster.hosts[rig.master_of("g1")].address)
        took = []
        for name in ("one", "two", "three"):
            start_s = rig.cluster.loop.now_s
            await methods.CREATE_TOPIC.call(channel, admin_pb2.TopicSpec(name=name), timeout_s=5)
            took.append(rig.cluster.loop.now_s - start_s)
        await channel.close()
        assert took[0] < 2.5
        assert max(took[1:]) < 0.2

    Rig(7, groups=2).run(scenario)


def test_a_node_that_starts_again_knows_everything_within_seconds() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=3, replica_group="g1")
        await until_complete(rig, "n0")
        before = await routes(rig, "n0", ("t",), ("g0", "g1"))
        rig.cluster.kill("n0")
        await asyncio.sleep(1)
        rig.cluster.start("n0")
        await until(lambda: rig.cluster.is_up(rig.cluster.hosts["n0"]))
        started_s = rig.cluster.loop.now_s
        await until_complete(rig, "n0")
        while (await leaders(rig, "n0"))["g1"] == "":  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.02)
        assert rig.cluster.loop.now_s - started_s < 6
        after = await routes(rig, "n0", ("t",), ("g0", "g1"))
        assert after.topics == before.topics
        assert after.groups[1] == before.groups[1]

    Rig(8, groups=2).run(scenario)


def test_many_topics_come_as_changes_of_the_table() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            for number in range(30):
                await admin.create_topic(f"t{number}", queues=1, replica_group="g1")
            await admin.delete_topic("t7")
        reply = await routes(rig, "n1", tuple(f"t{number}" for number in range(30)))
        assert [each.name for each in reply.topics if not each.found] == ["t7"]
        late = [each for each in registered if each.has_topics and each.topics_version > 20]
        assert late
        assert max(len(each.topics) for each in late) <= 2  # never the whole table again

    registered: list[routes_pb2.Registration] = []

    async def watched(rig: Rig) -> None:
        node = rig.cluster.hosts["n1"].node
        assert node is not None
        table = node.name_service.table
        taken = table.register
        table.register = lambda told, *args, **more: registered.append(told) or taken(told, *args, **more)  # type: ignore[method-assign]
        await scenario(rig)

    Rig(9, groups=2).run(watched)


def test_metadata_has_the_other_groups() -> None:
    async def scenario(rig: Rig) -> None:
        await until_complete(rig, "n0")
        channel = rig.around()["network"].connect(rig.cluster.hosts["n0"].address)
        reply = await methods.METADATA.call(channel, broker_pb2.MetadataRequest(), timeout_s=5)
        assert [(group.name, len(group.nodes)) for group in reply.groups] == [("g0", 3), ("g1", 3)]

        async def leaders() -> list[tuple[str, str, set[bool]]]:
            directory = await methods.DIRECTORY.call(channel, routes_pb2.DirectoryRequest(), timeout_s=5)
            in_sync = [{node.in_sync for node in group.nodes if node.id == group.leader_id} for group in directory.groups]
            return [(group.name, group.leader_id, found) for group, found in zip(directory.groups, in_sync, strict=True)]

        # A leader that has only just been elected is not in sync in its first registration, and registers again at once.
        while await leaders() != [(name, rig.master_of(name), {True}) for name in ("g0", "g1")]:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.02)
        await channel.close()

    Rig(10, groups=2).run(scenario)


def test_a_group_made_anew_behind_the_same_name_servers_is_found() -> None:
    async def scenario(rig: Rig) -> None:
        for host in rig.cluster.name_servers.hosts.values():
            assert host.node is not None
            member = routes_pb2.Member(id="x0", address="10.0.0.99:1", voter=True)
            told = routes_pb2.Registration(
                cluster="sim",
                group="g0",
                node_id="x0",
                address="10.0.0.99:1",
                term=900,
                started_at_ms=1,
                sequence=1,
                role="leader",
                master=True,
            )
            told.members.append(member)
            told.has_topics, told.topics_version, told.configuration_index = True, 500, 400
            told.topics.add(topic="of-the-old-cluster", read_queues=1, write_queues=1, perm=6)
            assert host.node.service.registered(told).accepted
        await asyncio.sleep(10)
        async with rig.admin() as admin:
            await admin.create_topic("t", queues=1)
            (group,) = (await admin.directory()).groups
            assert group.leader_id == rig.master
            assert [node.id for node in group.nodes] == ["n0", "n1", "n2"]
        for host in rig.cluster.name_servers.hosts.values():
            assert host.node is not None
            assert not host.node.table.groups_of("of-the-old-cluster")

    Rig(31, name_servers=3).run(scenario)
