"""What ``Admin`` gives to who looks for the cause of something, against real nodes in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dledger_client.admin.diagnostics import LeaderChange
from dledger_client.aio import AccessRule, Admin, Message
from dledger_wire.errors import InvalidArgumentError
from tests.sim.cluster import are_equal
from tests.sim.security import APPLICATION
from tests.sim.spread.users import EVERYWHERE_S, create_users
from tests.unit.client.sim_rig import Rig, until


def test_details_of_a_node() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            found = await admin.node_details(rig.followers[0])
            assert (found.replica_group, found.id) == ("g0", rig.followers[0])
            assert 0 < found.disk_free_bytes <= found.disk_total_bytes
            files = {each.kind: each for each in found.files}
            assert files["commitlog"].count >= 1
            assert files["commitlog"].size_bytes > 0
            assert files["other"].count >= 3
            assert found.settings["store.flushDiskType"] == "SYNC_FLUSH"
            assert not any("administrators" in name or "secret" in name for name in found.settings)
            assert found.versions["numpy"]
            with pytest.raises(InvalidArgumentError, match="there is no node 'n9'; known: "):
                await admin.node_details("n9")

    Rig().run(scenario)


async def _given(admin: Admin) -> int:
    return sum(node.topics["t"].messages_out for node in await admin.topic_traffic() if "t" in node.topics)


def test_traffic_of_topics_by_node() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.consumer() as consumer, rig.admin() as admin:
            for _ in range(3):
                await producer.send(Message("t", b"12345"))
            assert len(await consumer.fetch("t", 0, 0)) == 3
            nodes = {node.node: node for node in await admin.topic_traffic()}
            assert set(nodes) == set(rig.cluster.hosts)
            assert {name for name, node in nodes.items() if "t" in node.topics and node.topics["t"].messages_in} == {rig.master}
            assert nodes[rig.master].topics["t"].messages_in == 3
            assert nodes[rig.master].topics["t"].bytes_in > 15
            assert await _given(admin) == 3
            assert await admin.fetch_chunks("t", 0, 0)  # what an operator looks at was read by no consumer
            assert await admin.query_by_offset("t", 0, 1) is not None
            assert await admin.query_by_time("t", 0) is not None
            assert await _given(admin) == 3
            assert "t" in nodes[rig.master].topics

    Rig().run(scenario)


def test_messages_that_somebody_may_not_read_take_no_room_from_others_that_wait() -> None:
    async def scenario(rig: Rig) -> None:
        await create_users(rig)
        await rig.topic("secrets")
        await rig.topic()
        async with rig.producer() as producer, rig.admin() as administrator, rig.admin(APPLICATION) as admin:
            timed = {"deliver_at_ms": rig.around()["clock"].wall_ms() + 3_600_000}
            for _ in range(3):
                for how in ({"delay_level": 17}, {"delay_level": 18}, timed):
                    await producer.send(Message("secrets", b"x", **how))
            for how in ({"delay_level": 18}, timed):
                await producer.send(Message("t", b"x", **how))
            await administrator.change_rules([AccessRule(APPLICATION, "deny", "topic", "secrets", "read")])
            await asyncio.sleep(EVERYWHERE_S)
            (waiting,) = await admin.waiting_delays(max_messages=2)
            assert sorted((each.topic, each.level) for each in waiting.messages) == [("t", 0), ("t", 18)]

    Rig(secured=True).run(scenario)


def test_messages_that_wait_are_counted_and_the_next_ones_listed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        async with rig.producer() as producer, rig.admin() as admin:
            now_ms = rig.around()["clock"].wall_ms()
            for number in range(3):
                await producer.send(Message("t", b"x", keys=[f"level-{number}"], delay_level=18))
            for number in (3, 1):
                await producer.send(Message("t", b"x", keys=[f"timed-{number}"], deliver_at_ms=now_ms + number * 3_600_000))
            await until(lambda: are_equal([host.node for host in rig.cluster.running() if host.node is not None]))  # a follower answers
            (waiting,) = await admin.waiting_delays(max_messages=4)
            assert waiting.node in rig.followers
            assert (waiting.delayed, waiting.timed, waiting.exact) == (3, 2, True)
            assert waiting.timed_next_due_ms == now_ms + 3_600_000
            assert [level.level for level in waiting.levels if level.waiting] == [18]
            assert [(each.topic, each.key, each.level) for each in waiting.messages] == [
                ("t", "timed-1", 0),
                *(("t", f"level-{number}", 18) for number in range(3)),
            ]
            assert waiting.messages[1].due_ms == waiting.levels[17].next_due_ms

    Rig().run(scenario)


async def next_leader(rig: Rig, old: str, *, without_it: bool = True) -> LeaderChange:
    """The change of leader after ``old``, once its successor is master and all other nodes know."""
    await until(lambda: rig.cluster.master() not in (None, old))
    new = rig.master
    knowing = [host.node for name, host in rig.cluster.hosts.items() if name != old or not without_it]
    await until(lambda: all(node is not None and node.is_open and node.raft.leader == new for node in knowing))
    async with rig.admin() as admin:
        change = (await admin.leader_history("g0"))[-1]
    assert (change.leader, change.previous) == (new, old)
    return change


def test_a_start_of_all_nodes_is_explained() -> None:
    async def scenario(rig: Rig) -> None:
        async with rig.admin() as admin:
            (change,) = await admin.leader_history()
            assert (change.leader, change.previous, change.kind, change.cause) == (rig.master, "", "start", "start")
            assert change.reason.startswith(f"{rig.master} started ")
            assert set(change.accounts) == set(rig.cluster.hosts)

    Rig().run(scenario)


def test_a_killed_leader_is_explained_also_by_itself_when_it_is_back() -> None:
    async def scenario(rig: Rig) -> None:
        old = rig.master
        rig.cluster.kill(old)
        change = await next_leader(rig, old)
        assert (change.kind, change.cause) == ("election", "link_lost")
        assert f"connection with leader {old} broke" in change.reason
        assert change.took_ms is not None
        assert change.took_ms < 2_000
        rig.cluster.start(old)
        node = rig.cluster.hosts[old].node
        await until(lambda: node is not None and node.is_open and node.raft.leader == change.leader)
        async with rig.admin() as admin:
            told = (await admin.leader_history())[-1]
        assert told.reason == change.reason
        assert "its last run was not stopped in order" in told.accounts[old]

    Rig().run(scenario)


def test_a_paused_leader_is_explained() -> None:
    async def scenario(rig: Rig) -> None:
        old = rig.master
        process = rig.cluster.hosts[old].process
        assert process is not None
        rig.cluster.loop.pause(process)
        change = await next_leader(rig, old)
        assert (change.kind, change.cause) == ("election", "silent")
        assert f"heard nothing of leader {old} for" in change.reason
        rig.cluster.loop.resume(process)

    Rig().run(scenario)


@pytest.mark.parametrize(("of_elected", "expected"), [("silent", "silent"), ("start", "disk_slow")])
def test_who_was_elected_knows_better_than_who_led_before_unless_it_had_just_started(of_elected: str, expected: str) -> None:
    async def scenario(rig: Rig) -> None:
        old = rig.master
        async with rig.admin() as admin:
            await admin.transfer_leader(rig.followers[0])
        change = await next_leader(rig, old, without_it=False)
        kind = "start" if of_elected == "start" else "election"
        for node_id, account in {old: ("transfer", "disk_slow"), change.leader: (kind, of_elected)}.items():
            node = rig.cluster.hosts[node_id].node
            assert node is not None
            kept = node.leader_history._changes
            kept[-1] = replace(kept[-1], kind=account[0], cause=account[1], reason=account[1])
        async with rig.admin() as admin:
            told = (await admin.leader_history())[-1]
        assert (told.cause, told.reason) == (expected, expected)
        assert (told.accounts[old], told.accounts[change.leader]) == ("disk_slow", of_elected)

    Rig().run(scenario)


def test_a_leader_that_is_cut_off_says_why_it_stepped_down() -> None:
    async def scenario(rig: Rig) -> None:
        old = rig.master
        rig.isolate(old)
        change = await next_leader(rig, old)
        assert change.cause == "silent"
        rig.cluster.net.heal_all()
        node = rig.cluster.hosts[old].node
        await until(lambda: node is not None and node.raft.leader == change.leader)
        async with rig.admin() as admin:
            told = (await admin.leader_history())[-1]
        assert "no majority of the voters answered it" in told.accounts[old]

    Rig().run(scenario)


def test_a_full_disk_is_explained() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic("t")
        old, host = rig.master, rig.cluster.hosts[rig.master]
        host.disk.settings.capacity_bytes = host.disk.used_bytes()
        async with rig.producer() as producer:
            while rig.cluster.master() in (None, old):
                await producer.send(Message("t", b"x" * 100_000))
        change = await next_leader(rig, old)
        assert (change.kind, change.cause) == ("transfer", "disk_full")
        assert change.reason == f"leader {old} handed over: its disk is full"
        host.disk.settings.capacity_bytes = 1 << 40

    Rig().run(scenario)


def test_a_transfer_and_an_orderly_stop_are_explained_and_kept_over_a_start_of_all_nodes() -> None:
    async def scenario(rig: Rig) -> None:
        first, second = rig.master, rig.followers[0]
        async with rig.admin() as admin:
            await admin.transfer_leader(second)
        change = await next_leader(rig, first, without_it=False)
        assert (change.leader, change.kind, change.cause) == (second, "transfer", "transfer")
        assert change.reason == f"leader {first} handed over: it was asked to"
        assert set(change.accounts) == set(rig.cluster.hosts)
        await rig.cluster.stop(second)
        stopped = await next_leader(rig, second)
        assert (stopped.kind, stopped.cause) == ("transfer", "stopping")
        await asyncio.sleep(5)  # the files are written
        for name in rig.cluster.hosts:
            if name != second:
                rig.cluster.kill(name)
        for name in rig.cluster.hosts:
            rig.cluster.start(name)
        await until(lambda: rig.cluster.master() is not None)
        async with rig.admin() as admin:
            history = await admin.leader_history("g0")
        assert [each.cause for each in history] == ["start", "transfer", "stopping", "start"]
        assert [each.reason for each in history[1:3]] == [change.reason, stopped.reason]
        assert history[3].previous == stopped.leader

    Rig().run(scenario)


def test_a_preferred_leader_is_explained() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.restart("n2")
        await until(lambda: rig.cluster.master() == "n2")
        await asyncio.sleep(1)
        async with rig.admin() as admin:
            change = (await admin.leader_history())[-1]
        assert (change.leader, change.kind, change.cause) == ("n2", "transfer", "preferred")

    Rig(priorities={"n2": 10}).run(scenario)
