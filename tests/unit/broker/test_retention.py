"""Deleting the log's head on running nodes, in virtual time: on disks that are full, and where messages with a delivery time lie there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger_client.aio import Message, Producer
from dledger_wire._pb import broker_pb2, retention_pb2
from dledger_wire.errors import DeadlineExceededError, DledgerError, ReadOnlyError
from dledger_wire.rpc import methods
from store.durability.disk_reserve import PATH as RESERVE
from tests.unit.client.sim_rig import Rig, node_of, until

SMALL: dict[str, Any] = {"store": "cleanResourceInterval: 1s"}


async def fill(rig: Rig, count: int = 120) -> None:
    async with rig.producer() as producer:
        for number in range(count):
            await producer.send(Message("t", b"%d " % number + b"x" * 2000), queue_id=0)


async def expire(rig: Rig, node_id: str) -> retention_pb2.ExpireReply:
    channel = rig._network.connect(rig.cluster.hosts[node_id].address)
    try:
        request = retention_pb2.ExpireRequest(has_reserved=True, reserved_ms=0)
        return retention_pb2.ExpireReply.FromString(await channel.call(methods.EXPIRE.path, request.SerializeToString(), timeout_s=30))
    finally:
        await channel.close()


def test_a_message_with_a_delivery_time_gives_way_to_a_deletion_and_comes_when_it_is_due() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer, rig.consumer() as consumer:
            due_ms = rig.cluster.hosts[rig.master].clock.wall_ms() + 200_000
            await producer.send(Message("t", b"later", deliver_at_ms=due_ms), queue_id=0)
            await fill(rig)
            await until(lambda: len({node_of(rig, node_id).store.applied_index for node_id in rig.cluster.hosts}) == 1)
            for node_id in (rig.followers[0], rig.master):  # a follower cannot ask for it, and says who can
                done = await expire(rig, node_id)
                assert done.segments == 0
                assert "a message of topic t with a delivery time is stored there (due 2" in done.held_by
                assert "the leader moves it within a minute after it is to delete that itself (dledger expire, without" in done.held_by
            await until(lambda: not node_of(rig, rig.master).store.head_waits_for_timers)
            await asyncio.sleep(5)
            for node_id in rig.cluster.hosts:
                assert (await expire(rig, node_id)).segments > 3
            found = await consumer.fetch("t", 0, 120, wait_ms=0)
            assert found == []
            await asyncio.sleep(200)
            (late,) = await consumer.fetch("t", 0, 120, wait_ms=5000)
            assert late.body == b"later"

    Rig(**SMALL).run(scenario, limit_s=600)


@pytest.mark.parametrize("whose", ["master", "follower"])
def test_a_disk_that_somebody_else_filled_is_cleaned_by_expire(whose: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig)
        victim = rig.master if whose == "master" else rig.followers[0]
        disk = rig.cluster.hosts[victim].disk
        await until(lambda: RESERVE in disk.names)
        await asyncio.sleep(8)  # every replica is as far, and has a snapshot; nothing expires by itself yet
        disk.settings.capacity_bytes = disk.used_bytes()
        done = await expire(rig, victim)
        assert done.segments > 3
        assert node_of(rig, victim).store.reader.bounds("t", 0)[0] > 50
        async with rig.producer() as producer:
            await producer.send(Message("t", b"goes on"), queue_id=0)
        await until(lambda: node_of(rig, victim).store.reader.bounds("t", 0)[1] == 121)

    Rig(**SMALL).run(scenario)


def first_indexes(rig: Rig) -> dict[str, int]:
    return {node_id: node_of(rig, node_id).raft.log.first_index for node_id in rig.cluster.hosts}


CROWDED: dict[str, Any] = {"store": SMALL["store"] + ", diskSpaceEnoughFree: 0, cleanFileForciblyAfter: 20s"}


@pytest.mark.parametrize("whose", ["master", "follower"])
def test_a_full_disk_is_cleaned_by_force_when_it_stays_full_while_another_replica_keeps_the_messages(whose: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig)
        await asyncio.sleep(10)
        victim = rig.master if whose == "master" else rig.followers[0]
        disk = rig.cluster.hosts[victim].disk
        disk.settings.capacity_bytes = disk.used_bytes()
        async with rig.producer(send_timeout_ms=60_000) as producer:
            for number in range(60):
                await producer.send(Message("t", b"%d " % number + b"y" * 2000), queue_id=0)
            await asyncio.sleep(15)
            assert set(first_indexes(rig).values()) == {1}
            await until(lambda: first_indexes(rig)[victim] > 1)
            assert [first for node_id, first in first_indexes(rig).items() if node_id != victim] == [1, 1]

    Rig(**CROWDED).run(scenario)


def test_full_disks_of_all_replicas_lose_no_young_message() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig)
        await asyncio.sleep(10)
        for host in rig.cluster.hosts.values():
            host.disk.settings.capacity_bytes = host.disk.used_bytes()
        await asyncio.sleep(120)
        assert set(first_indexes(rig).values()) == {1}

    Rig(**CROWDED).run(scenario, limit_s=600)


def test_a_full_disk_is_told_without_contradiction_and_room_is_noticed_before_the_next_round() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=2000) as producer:
            await producer.send(Message("t", b"taken"), queue_id=0)
            for host in rig.cluster.hosts.values():
                host.disk.settings.capacity_bytes = host.disk.used_bytes()
            await asyncio.sleep(10)
            assert all(node_of(rig, node_id).store.is_low_on_space for node_id in rig.cluster.hosts)
            with pytest.raises(DledgerError, match="the disk is used to 100") as caught:
                await producer.send(Message("t", b"refused"), queue_id=0)
            assert ("nothing was stored" in caught.value.message) != ("may be stored" in caught.value.message)
        for host in rig.cluster.hosts.values():
            host.disk.settings.capacity_bytes = 1 << 40
        await asyncio.sleep(1.5)
        assert not any(node_of(rig, node_id).store.is_low_on_space for node_id in rig.cluster.hosts)

    Rig(store="cleanResourceInterval: 60s, diskSpaceEnoughFree: 0, cleanFileForciblyEnable: false").run(scenario, limit_s=600)


def test_a_disk_that_fills_is_told_before_the_next_round_where_nobody_can_take_over() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer(send_timeout_ms=3000) as producer:
            await producer.send(Message("t", b"taken"), queue_id=0)
            disk = rig.cluster.hosts[rig.master].disk
            disk.settings.capacity_bytes = disk.used_bytes()
            with pytest.raises(DeadlineExceededError, match=r"may be stored \(replica group g0 waits for its leader's disk, which is full"):
                await producer.send(Message("t", b"x" * 3000), queue_id=0)
            with pytest.raises(DledgerError, match="waits for its leader's disk, which is full"):  # behind the first one
                await producer.send(Message("t", b"refused"), queue_id=1)
            async with rig.producer(send_timeout_ms=8000) as other:
                with pytest.raises(DledgerError, match="the disk is used to 100"):
                    await other.send(Message("t", b"refused"), queue_id=1)
            disk.settings.capacity_bytes = 1 << 40
            assert (await producer.send(Message("t", b"taken again"), queue_id=1)).queue_offset == 0

    Rig(nodes=1, store="cleanResourceInterval: 60s, diskSpaceEnoughFree: 0, cleanFileForciblyEnable: false").run(scenario, limit_s=600)


async def fill_until_refused(producer: Producer) -> None:
    for _ in range(20):
        await producer.send(Message("t", b"x" * 3000), queue_id=0)


def test_full_disks_of_followers_are_named_to_a_producer() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer(send_timeout_ms=8_000) as producer:
            await producer.send(Message("t", b"taken"), queue_id=0)
            for node_id in rig.followers:
                disk = rig.cluster.hosts[node_id].disk
                disk.settings.capacity_bytes = disk.used_bytes()
            named = ", ".join(f"{node_id}: its disk is full or nearly so" for node_id in sorted(rig.followers))
            with pytest.raises(DledgerError, match=rf"waits for its followers, which do not confirm \({named}\)"):
                await fill_until_refused(producer)

    Rig(store="cleanResourceInterval: 60s, diskSpaceEnoughFree: 0, cleanFileForciblyEnable: false").run(scenario, limit_s=600)


def test_full_disks_are_named_when_they_keep_nodes_from_electing_a_leader() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=2)
        async with rig.producer(send_timeout_ms=3000) as producer, rig.producer(send_timeout_ms=8000) as other:
            await producer.send(Message("t", b"taken"), queue_id=0)
            for host in rig.cluster.hosts.values():
                host.disk.settings.capacity_bytes = host.disk.used_bytes()
            with pytest.raises(DledgerError, match="waits for its leader's disk"):
                await producer.send(Message("t", b"x" * 3000), queue_id=0)
            killed = rig.master
            rig.cluster.kill(killed)
            full = ", ".join(sorted(host.address for host in rig.cluster.running()))
            with pytest.raises(DledgerError, match=f"has no leader now .*; full disks: {full}"):
                await other.send(Message("t", b"refused"), queue_id=1)
            for host in rig.cluster.hosts.values():
                host.disk.settings.capacity_bytes = 1 << 40
            rig.cluster.ensure_running(killed)
            await other.send(Message("t", b"taken again"), queue_id=1)

    Rig(store="cleanResourceInterval: 60s, diskSpaceEnoughFree: 0, cleanFileForciblyEnable: false").run(scenario, limit_s=600)


def test_a_new_producer_is_refused_while_the_disk_is_full() -> None:
    """Its registration would go through the log too: it is refused at once, and with the reason."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        for host in rig.cluster.hosts.values():
            host.disk.settings.capacity_bytes = host.disk.used_bytes()
        await until(lambda: all(node_of(rig, node_id).store.is_low_on_space for node_id in rig.cluster.hosts))
        await until(lambda: node_of(rig, rig.master).store.expiry.room.refuses_messages)
        channel = rig.router().channel(rig.cluster.hosts[rig.master].address)
        with pytest.raises(ReadOnlyError, match="the disk is used to 100"):
            await channel.call(methods.INIT_PRODUCER.path, broker_pb2.InitProducerRequest().SerializeToString(), timeout_s=1)
        async with rig.producer(send_timeout_ms=8000) as producer:
            with pytest.raises(DledgerError, match="the disk is used to 100"):
                await producer.send(Message("t", b"refused"), queue_id=0)
        for host in rig.cluster.hosts.values():
            host.disk.settings.capacity_bytes = 1 << 40
        async with rig.producer() as producer:
            await producer.send(Message("t", b"taken"), queue_id=0)

    Rig(store="cleanResourceInterval: 60s, diskSpaceEnoughFree: 0, cleanFileForciblyEnable: false").run(scenario, limit_s=600)


def beyond_the_warning_level(rig: Rig, node_id: str) -> None:
    disk = rig.cluster.hosts[node_id].disk
    disk.settings.capacity_bytes = disk.used_bytes() * 100 // 95


WATERMARK: dict[str, Any] = {"store": "cleanResourceInterval: 1s, diskSpaceEnoughFree: 0, cleanFileForciblyEnable: false"}


def test_a_leader_beyond_the_warning_level_hands_over_to_a_node_with_room() -> None:
    """docs/guides/operate/disk.md: it refuses messages before its disk is full, so no write ever tells the core."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        first = rig.master
        beyond_the_warning_level(rig, first)
        async with rig.producer(send_timeout_ms=10_000) as producer:
            await until(lambda: node_of(rig, first).store.is_low_on_space)
            low_ms = rig.cluster.hosts[first].clock.monotonic_ms()
            await producer.send(Message("t", b"taken"), queue_id=0)
            await until(lambda: rig.cluster.master() not in (None, first))
            assert rig.cluster.hosts[first].clock.monotonic_ms() - low_ms < 1_500
            second = rig.master
            beyond_the_warning_level(rig, second)
            await until(lambda: node_of(rig, second).store.is_low_on_space)
            await producer.send(Message("t", b"taken"), queue_id=0)
            await until(lambda: rig.cluster.master() not in (None, first, second))
            third = rig.master
            beyond_the_warning_level(rig, third)
            await until(lambda: node_of(rig, third).store.is_low_on_space)
            term = node_of(rig, third).raft.term
            with pytest.raises(DledgerError, match="above diskSpaceWarningLevelRatio 90"):
                await producer.send(Message("t", b"refused"), queue_id=0)
            assert node_of(rig, third).raft.term == term, "nobody has room: leadership stays where it is"

    Rig(**WATERMARK).run(scenario, limit_s=600)


def test_the_preferred_leader_leads_again_once_its_disk_has_room() -> None:
    async def scenario(rig: Rig) -> None:
        await until(lambda: rig.cluster.master() == "n2")
        beyond_the_warning_level(rig, "n2")
        await until(lambda: rig.cluster.master() in ("n0", "n1"))
        leader = rig.master
        await asyncio.sleep(30)
        assert rig.master == leader
        rig.cluster.hosts["n2"].disk.settings.capacity_bytes = 1 << 40
        await until(lambda: rig.cluster.master() == "n2")

    Rig(priorities={"n2": 10}, **WATERMARK).run(scenario, limit_s=600)
