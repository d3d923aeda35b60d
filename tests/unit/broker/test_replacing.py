"""Members that are away are replaced by spare nodes: groups in virtual time, whose masters, members and spare nodes fail meanwhile.

docs/reference/semantics, row S2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from broker.node import BrokerNode
from dledger.core.messages import Heartbeat
from dledger.core.types import NodeId
from dledger.transport import codec
from dledger_client.aio import Message
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import InvalidArgumentError
from store.commands.replacement import Replacement
from tests.sim.test_runs import quiet
from tests.unit.client.sim_rig import Rig, until

__all__ = ["quiet"]

POLICY = "replicas: {replaceAfter: 3s}\nname_service: {registerInterval: 500ms, expireAfter: 3s}\n"
LEARNERS = "name_service: {registerInterval: 500ms, expireAfter: 3s}\n"


def master(rig: Rig, group: str = "g0") -> BrokerNode | None:
    return rig.cluster.master_node(group)


def voters(rig: Rig, group: str = "g0") -> set[str]:
    node = master(rig, group)
    return set() if node is None else set(node.raft.committed_members()[1].voters)


def learners(rig: Rig, group: str = "g0") -> set[str]:
    node = master(rig, group)
    return set() if node is None else set(node.raft.committed_members()[1].learners)


def under_way(rig: Rig, group: str = "g0") -> Replacement | None:
    node = master(rig, group)
    return None if node is None else node.store.replica_group.replacement


def is_done(rig: Rig, wanted: set[str], group: str = "g0") -> Callable[[], bool]:
    return lambda: voters(rig, group) == wanted and master(rig, group) is not None and under_way(rig, group) is None


def kill_follower(rig: Rig) -> tuple[set[str], str]:
    """The first members of g0, and the one of them that is dead now."""
    nodes, victim = {*rig.cluster.groups["g0"].node_ids}, rig.followers[0]
    rig.cluster.kill(victim)
    return nodes, victim


async def send(rig: Rig, count: int, topic: str = "t") -> None:
    async with rig.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number))


async def stored(rig: Rig, topic: str = "t") -> int:
    async with rig.consumer("readers") as consumer:
        return len(await consumer.fetch(topic, 0, 0, 10_000))


def test_a_spare_node_that_nobody_took_in_is_not_made_a_member_by_command() -> None:
    """It would wait on, and the group would be without the voter that it was to replace."""

    async def scenario(rig: Rig) -> None:
        _nodes, victim = kill_follower(rig)
        address = rig.cluster.spares.hosts["sp0"].address
        async with rig.admin() as admin:
            for work in (admin.add_member("sp0", address), admin.replace_member("sp0", address, replaces=victim)):
                with pytest.raises(
                    InvalidArgumentError, match="sp0 is a spare node that no leader took in: it takes the place of a member"
                ):
                    await work
        assert victim in voters(rig)

    Rig(60, spares=1).run(scenario)


def test_a_member_added_while_the_spare_nodes_are_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change names all members: one thought out before the question would take back what came meanwhile."""

    async def scenario(rig: Rig) -> None:
        leader = master(rig)
        assert leader is not None
        assert leader._registrar is not None
        directory, asked, go_on = leader._registrar.directory, asyncio.Event(), asyncio.Event()

        async def slowly_at_first() -> routes_pb2.DirectoryReply | None:
            if not asked.is_set():
                asked.set()
                await go_on.wait()
            return await directory()

        monkeypatch.setattr(leader._registrar, "directory", slowly_at_first)
        async with rig.admin() as admin:
            first = asyncio.create_task(admin.add_member("n7", "10.0.9.7:10911"))
            await asked.wait()
            await admin.add_member("n8", "10.0.9.8:10911")
            go_on.set()
            await first
        assert learners(rig) == {"n7", "n8"}

    Rig(61).run(scenario)


def test_a_voter_that_is_away_is_replaced_and_nothing_is_lost() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        nodes, victim = kill_follower(rig)
        rest = nodes - {victim}
        await until(is_done(rig, {*rest, "sp0"}))
        await send(rig, 50)
        rig.cluster.start(victim)
        other = next(node_id for node_id in rest if node_id != rig.master)
        rig.cluster.kill(other)  # the spare node and the leader are a quorum
        await send(rig, 50)
        assert await stored(rig) == 150
        assert voters(rig) == {*rest, "sp0"}

    Rig(61, spares=1, settings=POLICY).run(scenario)


def test_any_master_finishes_what_another_one_began() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 20)
        nodes, victim = kill_follower(rig)
        await until(lambda: under_way(rig) is not None)
        first = rig.master
        rig.cluster.kill(first)  # the spare node may be bound, and is no member: nobody but the log knows of it
        await until(lambda: rig.cluster.spares.hosts["sp0"].group == "g0")
        rig.cluster.start(first)
        await until(lambda: rig.cluster.master() is not None)
        assert under_way(rig) == Replacement("sp0", "10.0.9.1:10911", victim, voter=True)
        await until(is_done(rig, {*nodes, "sp0"} - {victim}))
        await send(rig, 20)
        assert await stored(rig) == 40

    Rig(62, spares=1, settings=POLICY).run(scenario)


def test_a_member_that_comes_back_in_the_middle_stays_and_the_spare_node_is_ready_for_the_next_time() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        nodes, victim = kill_follower(rig)
        await until(lambda: under_way(rig) is not None)
        rig.cluster.start(victim)
        await until(is_done(rig, nodes))
        await asyncio.sleep(10)
        assert voters(rig) == nodes
        if learners(rig) == {"sp0"}:
            other = rig.followers[0] if rig.followers[0] != "sp0" else rig.followers[1]
            rig.cluster.kill(other)
            await until(is_done(rig, {*nodes, "sp0"} - {other}))

    for seed in (63, 64, 65):
        Rig(seed, spares=1, settings=POLICY).run(scenario)


def test_a_spare_node_that_dies_in_the_middle_is_dropped_for_another_one() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        nodes, victim = kill_follower(rig)
        await until(lambda: under_way(rig) is not None)
        rig.cluster.spares.kill("sp0")
        await until(is_done(rig, {*nodes, "sp1"} - {victim}))
        await send(rig, 10)
        assert learners(rig) == set()

    Rig(66, spares=2, settings=POLICY).run(scenario)


def test_a_spare_node_without_room_on_its_disk_is_dropped_for_another_one() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        nodes, victim = kill_follower(rig)
        spare = rig.cluster.spares.hosts["sp0"]
        await until(lambda: spare.node is not None and spare.node.is_open)
        spare.bad_disk, spare.disk.settings.capacity_bytes = True, spare.disk.used_bytes()
        await until(is_done(rig, {*(nodes - {victim}), "sp1"}))
        assert await stored(rig) == 50
        assert "sp0" in rig.cluster.hosts, "it joined"

    Rig(66, spares=2, settings=POLICY).run(scenario)


def test_a_spare_node_that_answers_and_never_catches_up_is_dropped_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 50)
        nodes, victim = kill_follower(rig)
        spare = rig.cluster.spares.hosts["sp0"]
        await until(lambda: spare.node is not None and spare.node.is_open)
        assert spare.node is not None
        driver = spare.node.raft._replica.driver
        receive = driver.received

        def only_heartbeats(source: NodeId, store: str, data: bytes) -> None:
            if isinstance(codec.decode(data)[0], Heartbeat):
                receive(source, store, data)

        monkeypatch.setattr(driver, "received", only_heartbeats)
        await until(is_done(rig, {*(nodes - {victim}), "sp1"}))
        assert await stored(rig) == 50

    Rig(66, spares=2, settings=POLICY).run(scenario)


def test_a_spare_node_that_is_wiped_while_it_joins_is_taken_anew() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 20)
        nodes, victim = kill_follower(rig)
        await until(lambda: rig.cluster.spares.hosts["sp0"].group == "g0")
        rig.cluster.spares.wipe("sp0")
        rig.cluster.spares.start("sp0")
        await until(is_done(rig, {*nodes, "sp0"} - {victim}))
        await send(rig, 20)
        assert await stored(rig) == 40

    Rig(67, spares=1, settings=POLICY).run(scenario)


def test_missing_learners_are_taken_from_the_spare_nodes_and_replaced() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.update_replica_group("g0", learners=1, replace_after_ms=3_000)
        nodes = {*rig.cluster.groups["g0"].node_ids}
        await until(lambda: learners(rig) == {"sp0"} and under_way(rig) is None)
        rig.cluster.kill("sp0")
        await until(lambda: learners(rig) == {"sp1"} and under_way(rig) is None)
        assert voters(rig) == nodes

    Rig(68, spares=2, settings=LEARNERS).run(scenario)


def test_two_groups_that_lose_members_at_once_replace_them_one_after_the_other() -> None:
    async def scenario(rig: Rig) -> None:
        names = ("g0", "g1", "g2")
        before = {name: {*rig.cluster.groups[name].node_ids} for name in names}
        victims = {name: rig.followers_of(name)[0] for name in names}
        for victim in victims.values():
            rig.cluster.kill(victim)
        turns: list[str] = []

        def all_done() -> bool:
            having = [name for name in names if under_way(rig, name) is not None]
            assert len(having) <= 1
            if having and turns[-1:] != having:
                turns.extend(having)
            return all(
                len(voters(rig, name)) == 3 and victims[name] not in voters(rig, name) and not under_way(rig, name) for name in names
            )

        await until(all_done)
        assert sorted(turns) == sorted(names)
        added = [voters(rig, name) - before[name] for name in names]
        assert set.union(*added) == {"sp0", "sp1", "sp2"}

    for seed in (71, 72, 73):
        Rig(seed, groups=3, spares=3, name_servers=3, settings=POLICY).run(scenario)


def test_a_group_without_a_majority_of_the_name_servers_begins_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        cut = [host.ip for name, host in rig.cluster.name_servers.hosts.items() if name != "ns0"]
        own = [host.ip for host in rig.cluster.hosts_of("g0")]
        for ip in cut:
            for node in own:
                rig.cluster.net.cut(ip, node)
                rig.cluster.net.cut(node, ip)
        victims = {name: rig.followers_of(name)[0] for name in ("g0", "g1")}
        for victim in victims.values():
            rig.cluster.kill(victim)
        await until(lambda: victims["g1"] not in voters(rig, "g1") and under_way(rig, "g1") is None)
        await asyncio.sleep(10)
        assert victims["g0"] in voters(rig, "g0")
        assert under_way(rig, "g0") is None
        for ip in cut:
            for node in own:
                rig.cluster.net.heal(ip, node)
                rig.cluster.net.heal(node, ip)
        await until(lambda: victims["g0"] not in voters(rig, "g0"))

    Rig(74, groups=2, spares=2, name_servers=3, settings=POLICY).run(scenario)


def test_spare_nodes_in_the_first_group_serve_the_names_when_all_its_first_members_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=2)
        first = [*rig.cluster.groups["g0"].node_ids]
        async with rig.producer() as producer:
            for number, victim in enumerate(first):
                await producer.send(Message("t", b"%d" % number))
                rig.cluster.kill(victim)
                await until(lambda victim=victim: victim not in voters(rig) and len(voters(rig)) == 3 and under_way(rig) is None)
            assert voters(rig) == {"sp0", "sp1", "sp2"}
            for number in range(10):
                await producer.send(Message("t", b"later %d" % number))
        async with rig.admin() as admin:  # its bootstrap has the first members, which are gone, and those of g1
            while not (found := await admin.directory()).from_name_server:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
            assert [group.leader_id for group in found.groups] == [rig.master, rig.master_of("g1")]
            leader = rig.master_of("g1")
            rig.cluster.kill(leader)
            while (await admin.directory()).groups[1].leader_id in ("", leader):  # noqa: ASYNC110 - the nodes of g1 register with them, too
                await asyncio.sleep(0.5)

    with caplog.at_level(logging.WARNING, "broker.routes.registrar"):
        Rig(75, groups=2, spares=3, settings=POLICY).run(scenario)
    stale = [record.getMessage() for record in caplog.records if "cluster file is stale" in record.getMessage()]
    assert any("has lost n0 at 10.0.0.1:10911; it has" in text and "sp0 at 10.0.9.1:10911" in text for text in stale)


def test_a_spare_node_that_is_wiped_as_a_voter_is_replaced_and_is_spare_again() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await send(rig, 20)
        nodes, victim = kill_follower(rig)
        await until(is_done(rig, {*nodes, "sp0"} - {victim}))
        rig.cluster.spares.wipe("sp0")
        rig.cluster.spares.start("sp0")
        await until(is_done(rig, {*nodes, "sp1"} - {victim}))
        await send(rig, 20)
        assert await stored(rig) == 40
        async with rig.admin() as admin:
            while [spare.id for spare in (await admin.directory()).spares] != ["sp0"]:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
            with pytest.raises(InvalidArgumentError, match="sp0 is a spare node"):  # though the group took it in once
                await admin.add_member("sp0", rig.cluster.spares.hosts["sp0"].address)
        assert learners(rig) == set()

    Rig(76, spares=2, settings=POLICY).run(scenario)


def test_a_group_that_dies_in_its_turn_does_not_stop_the_others() -> None:
    async def scenario(rig: Rig) -> None:
        victims = {name: rig.followers_of(name)[0] for name in ("g0", "g1")}
        rig.cluster.kill(victims["g0"])
        await until(lambda: under_way(rig, "g0") is not None)
        for node_id in [*rig.cluster.groups["g0"].node_ids]:
            rig.cluster.kill(node_id)
        rig.cluster.kill(victims["g1"])
        await until(lambda: victims["g1"] not in voters(rig, "g1") and len(voters(rig, "g1")) == 3)

    Rig(77, groups=2, spares=2, name_servers=3, settings=POLICY).run(scenario)
