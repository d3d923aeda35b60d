"""Topics that had queues in a replica group that was removed: their keys go to the queues that are left, whoever asks and whenever."""

from __future__ import annotations

import asyncio

import pytest

from broker.routes import removed_groups
from dledger_cli.removed_groups import removed_among
from dledger_client.admin import topic_changes
from dledger_client.aio import Message, Producer
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, NotSentError, TopicNotFoundError
from tests.unit.client.sim_rig import Rig
from tests.unit.client.test_sending_over_groups import KEYS, place, queues_of_keys
from tests.unit.client.test_topics_over_groups import kill_group, start_group
from tests.unit.client.test_whole_topics import forget

QUICK = {"send_timeout_ms": 3000}


async def drain(rig: Rig, *topics: str) -> None:
    """g1 has nothing that keeps it from being removed."""
    async with rig.admin() as admin:
        for topic in topics or ("t",):
            await admin.create_topic(topic, queues=4)
        await admin.drain_replica_group("g1")


async def remove(rig: Rig) -> None:
    """Remove g1, and stop its nodes, as its operator is told to."""
    async with rig.admin() as admin:
        await admin.remove_replica_group("g1")
    kill_group(rig, "g1")


async def removed_by_half(rig: Rig) -> None:
    """g1 is removed, and whoever did it died before anybody else was told."""
    async with rig.admin() as admin:
        await admin._set_state("g1", "removed")


async def restart_the_others(rig: Rig) -> None:
    """With a cluster file that does not name g1.  No name server remembers it then."""
    rig.cluster.leave_out("g1")
    await asyncio.sleep(3)  # a registration that was on its way reaches a name server that is to forget it
    servers = rig.cluster.name_servers
    for name in servers.hosts:
        servers.wipe(name)
        servers.ensure_running(name, rig.cluster.config)
    kill_group(rig, "g0")
    for node_id in rig.cluster.groups["g0"].node_ids:
        names = rig.cluster.hosts[node_id].disk.names
        names.pop(removed_groups.PATH, None)
    await start_group(rig, "g0")
    await asyncio.sleep(3)


async def told_groups(rig: Rig, topic: str = "t") -> set[tuple[str, ...]]:
    """Which replica groups have queues of a topic, as those know that have some."""
    async with rig.admin() as admin:
        return {part.replica_groups for part in await admin.list_topics() if part.topic == topic}


async def keys_go_to_g0(rig: Rig) -> None:
    async with rig.producer(**QUICK) as producer:
        assert set((await queues_of_keys(producer)).values()) == {("g0", 0), ("g0", 1)}
    async with rig.consumer() as consumer:
        assert [part.replica_group for part in await consumer.topic("t")] == ["g0"]


async def is_not_known(producer: Producer) -> None:
    with pytest.raises(NotSentError, match="g1 did not answer, so the queues of its keys are not known"):
        await producer.send(Message("t", b"x"), "k")


@pytest.mark.parametrize("name_servers", [0, 3])
def test_keys_go_to_the_groups_that_are_left(name_servers: int) -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig)
        async with rig.producer(**QUICK) as before:
            drained = await queues_of_keys(before)
            await remove(rig)
            assert await told_groups(rig) == {("g0",)}
            await keys_go_to_g0(rig)
            async with rig.producer(**QUICK) as after:
                assert await queues_of_keys(before) == await queues_of_keys(after) == drained
            await restart_the_others(rig)
            await keys_go_to_g0(rig)
            assert await queues_of_keys(before) == drained

    Rig(31, groups=2, name_servers=name_servers).run(scenario)


def test_a_producer_that_has_not_noticed_the_drain_moves_on() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.create_topic("t", queues=4)
        async with rig.producer(**QUICK) as producer:
            assert len(set((await queues_of_keys(producer)).values())) == 4
            await read(rig)
            await drain(rig, "other")
            await remove(rig)
            await until_sent(producer)
            assert set((await queues_of_keys(producer)).values()) == {("g0", 0), ("g0", 1)}

    Rig(32, groups=2, name_servers=3).run(scenario)


async def read(rig: Rig) -> None:
    """A consumer group has everything in g1."""
    async with rig.consumer() as consumer:
        for queue_id in range(2):
            end = (await consumer.offsets("t"))["g1", queue_id].max_offset
            await consumer.commit({("t", queue_id): end}, replica_group="g1")


async def until_sent(producer: Producer) -> None:
    """All keys are sent, within the time that a client takes to look at its topics again."""
    async with asyncio.timeout(30):
        while len(await queues_of_keys(producer)) < len(KEYS):
            pass


@pytest.mark.parametrize("name_servers", [0, 3])
def test_a_removal_that_was_broken_off_keeps_no_key_from_its_queue(name_servers: int) -> None:
    """Others are not told: g1 itself says that it is removed, and when its nodes are stopped the name servers do."""

    async def scenario(rig: Rig) -> None:
        await drain(rig)
        await removed_by_half(rig)
        assert ("g0", "g1") in await told_groups(rig)
        async with rig.producer(**QUICK) as producer:
            assert place(await producer.send(Message("t", b"x"), "k"))[0] == "g0"
        await asyncio.sleep(3)
        kill_group(rig, "g1")
        await keys_go_to_g0(rig)
        await remove(rig)
        assert await told_groups(rig) == {("g0",)}
        await restart_the_others(rig)
        await keys_go_to_g0(rig)

    Rig(33, groups=2, name_servers=name_servers).run(scenario)


@pytest.mark.parametrize("name_servers", [0, 3])
def test_a_cluster_that_remembers_no_removal_is_mended_by_the_same_call(name_servers: int) -> None:
    """Nobody knows any more whether g1 was removed or is away: whoever calls does."""

    async def scenario(rig: Rig) -> None:
        await drain(rig)
        await removed_by_half(rig)
        kill_group(rig, "g1")
        await restart_the_others(rig)
        async with rig.producer(**QUICK) as producer:
            await is_not_known(producer)
            async with rig.admin() as admin:
                assert (await admin.remove_replica_group("g1")).state == "removed"
                with pytest.raises(InvalidArgumentError, match="no replica group 'g1' in cluster sim; expected one of g0"):
                    await admin.remove_replica_group("g1")
            assert await told_groups(rig) == {("g0",)}
            await asyncio.sleep(2)
            assert set((await queues_of_keys(producer)).values()) == {("g0", 0), ("g0", 1)}
        await keys_go_to_g0(rig)

    Rig(34, groups=2, name_servers=name_servers).run(scenario)


def test_a_group_that_is_away_is_not_taken_for_a_removed_one() -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig)
        await forget(rig)
        async with rig.admin(timeout_ms=3000) as admin:
            with pytest.raises(NotLeaderError, match="replica group g1"):
                await admin.remove_replica_group("g1")
            assert {part.replica_groups for part in await admin.list_topics(partial=True)} == {("g0", "g1")}
        async with rig.producer(**QUICK) as producer:
            await is_not_known(producer)
        await start_group(rig, "g1")
        await remove(rig)
        await keys_go_to_g0(rig)

    Rig(35, groups=2, name_servers=3).run(scenario)


def test_who_is_not_told_is_named_and_told_by_the_same_call() -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig, "t", "u")
        kill_group(rig, "g2")
        async with rig.admin(timeout_ms=3000) as admin:
            with pytest.raises(NotLeaderError, match="replica group g1 is removed, but topics of g2 still name it: repeat the command"):
                await admin.remove_replica_group("g1")
            await start_group(rig, "g2")
            assert (await admin.remove_replica_group("g1")).state == "removed"
        for topic in ("t", "u"):
            assert await told_groups(rig, topic) == {("g0", "g2")}

    Rig(36, groups=3, name_servers=3).run(scenario)


def test_a_topic_of_the_removed_group_alone_is_gone_with_it() -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig)
        async with rig.admin() as admin, rig.producer(**QUICK) as producer:
            await admin.delete_topic("t", replica_group="g0")
            await remove(rig)
            with pytest.raises(TopicNotFoundError):
                await producer.send(Message("t", b"x"), "k")

    Rig(37, groups=2, name_servers=3).run(scenario)


@pytest.mark.parametrize("name_servers", [0, 3])
def test_a_cluster_file_that_names_a_removed_group_is_told_from_one_whose_group_is_down(name_servers: int) -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig)
        async with rig.admin() as admin:
            kill_group(rig, "g1")
            assert await removed_among(admin, ["g0", "g1", "g9"]) == []
            await start_group(rig, "g1")
            await remove(rig)
            assert await removed_among(admin, ["g0", "g1", "g9"]) == ["g1"]
            kill_group(rig, "g0")
            for name in rig.cluster.name_servers.hosts:
                rig.cluster.name_servers.kill(name)
            assert await removed_among(admin, ["g0", "g1", "g9"]) == []

    Rig(41, groups=2, name_servers=name_servers).run(scenario)


async def restart_names(rig: Rig) -> None:
    """Whoever serves the names, all at once, with the cluster file as it was: it still names g1."""
    await asyncio.sleep(3)  # what is kept is on the disk by then
    servers = rig.cluster.name_servers
    for name in servers.hosts:
        servers.kill(name)
    if not servers.hosts:
        kill_group(rig, "g0")
        await start_group(rig, "g0")
    for name in servers.hosts:
        servers.start(name, rig.cluster.config)


@pytest.mark.parametrize("name_servers", [0, 3])
def test_a_removal_is_remembered_by_who_serves_the_names_over_a_restart_of_all(name_servers: int) -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig)
        await remove(rig)
        for _ in range(2):
            await restart_names(rig)
            await asyncio.sleep(7)
            async with rig.admin() as admin:
                directory = await admin.directory()
                assert {group.name: group.is_removed for group in directory.groups} == {"g0": False, "g1": True}
                assert directory.from_name_server
                assert (await admin.remove_replica_group("g1")).state == "removed"
        rig.cluster.start("n3")  # by mistake, with its data of before
        await asyncio.sleep(7)
        async with rig.admin() as admin:
            assert await removed_among(admin, ["g1"]) == ["g1"]

    Rig(42, groups=2, name_servers=name_servers).run(scenario)


def test_a_name_server_with_a_new_disk_is_told_of_removals() -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig)
        await remove(rig)
        await asyncio.sleep(3)
        servers = rig.cluster.name_servers
        for name in ("ns2", "ns1"):
            servers.wipe(name)
            await asyncio.sleep(6)  # the others notice
            servers.start(name, rig.cluster.config)
            await asyncio.sleep(10)
        for host in servers.hosts.values():
            assert host.node is not None
            assert (host.node.table.knows("g1"), host.node.table.group("g1"), host.node.table.is_complete) == (True, None, True)

    Rig(43, groups=2, name_servers=3).run(scenario)


def test_a_topic_deleted_meanwhile_is_not_missed() -> None:
    async def scenario(rig: Rig) -> None:
        await drain(rig, "t", "u")
        async with rig.admin() as admin:
            deleting = asyncio.ensure_future(admin.delete_topic("t"))
            await asyncio.gather(deleting, topic_changes.forget_group(admin._calls, "g1"))
        assert await told_groups(rig, "t") == set()
        assert ("g0",) in await told_groups(rig, "u")

    for seed in range(3):
        Rig(38 + seed, groups=2).run(scenario)
