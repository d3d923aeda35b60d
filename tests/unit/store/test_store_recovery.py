"""A store's start on whatever a stop left behind: clean, killed, powered off, with queue files missing, short, longer or damaged.

Real nodes in virtual time on a simulated disk; what is read afterwards must be exactly what was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dledger.log.bulk_turns import BulkTurns
from dledger.log.segment import log_path
from dledger_client.aio import Message
from dledger_wire.errors import StorageDamagedError, UnreachableError
from store.durability.persistence import ABORT_PATH
from store.log_view import ReadableLog
from store.queues import queue_reader
from store.queues.queue_trim import QueueTrimmer
from store.queues.rebuild import rebuild_files
from store.state.sequences import QueueKey
from tests.sim.cluster import SMALL_LOG
from tests.sim.disk import SimDisk
from tests.sim.disk_content import SECTOR, Content, Loss, Pending
from tests.unit.client.sim_rig import Rig, until

COUNT = 400
QUEUE = "consumequeue/t/0/00000000000000000000"


async def fill(rig: Rig, first: int, upto: int) -> None:
    async with rig.producer() as producer:
        futures = [producer.send_async(Message("t", b"%d" % number), queue_id=0) for number in range(first, upto)]
        await producer.flush()
        assert [future.result().queue_offset for future in futures] == list(range(first, upto))


async def settled(rig: Rig) -> None:
    def equal() -> bool:
        nodes = [host.node for host in rig.cluster.running() if host.node is not None and host.node.is_open]
        marks = {node.store.applied_index for node in nodes} | {node.raft.commit_index for node in nodes}
        return len(nodes) == 3 and len(marks) == 1 and rig.cluster.master() is not None

    await until(equal)


async def assert_whole(rig: Rig, node_id: str, count: int) -> None:
    async with rig.consumer(replica=node_id) as consumer:
        messages = await consumer.fetch("t", 0, 0, count + 10)
        assert [message.body for message in messages] == [b"%d" % number for number in range(count)]
        assert [message.queue_offset for message in messages] == list(range(count))


def remove_file(disk: SimDisk) -> None:
    del disk.names[QUEUE], disk.durable_names[QUEUE]


def cut_short(disk: SimDisk) -> None:
    disk.names[QUEUE].do(Pending(777, None))


def add_units(disk: SimDisk) -> None:
    disk.names[QUEUE].do(Pending(COUNT * 20, b"\x07" * 20 * 13))


def flip(disk: SimDisk) -> None:
    disk.flip_bit(QUEUE, 1234, 3)


def unreadable_sector(disk: SimDisk) -> None:
    disk.break_range(QUEUE, 1024, 512)


def unreadable_last_sector(disk: SimDisk) -> None:
    """Only a part of it holds units."""
    disk.break_range(QUEUE, COUNT * 20 // 512 * 512, 512)


def unreadable_snapshot(disk: SimDisk) -> None:
    for path in ("config/applied.json", "config/topics.json"):
        disk.break_range(path, 0, 100)


def unreadable_key_index(disk: SimDisk) -> None:
    for path in [path for path in disk.names if path.startswith("index/")]:
        disk.break_range(path, 0, disk.names[path].current.size)


def unreadable_index_marks(disk: SimDisk) -> None:
    disk.break_range("config/keyIndex.json", 0, 100)


def unreadable_index_units(disk: SimDisk) -> None:
    for path in [path for path in disk.names if path.startswith("index-units/")]:
        disk.break_range(path, 512, 512)


def wipe_derived(disk: SimDisk) -> None:
    for path in [path for path in disk.names if path.startswith(("consumequeue/", "config/", "checkpoint"))]:
        del disk.names[path]
        disk.durable_names.pop(path, None)


def foreign_queue(disk: SimDisk) -> None:
    content = Content()
    content.do(Pending(0, b"\x01" * 2000))
    for names in (disk.names, disk.durable_names):
        names["consumequeue/gone/3/00000000000000000000"] = content


def damaged_snapshot(disk: SimDisk) -> None:
    disk.flip_bit("config/applied.json", 200, 1)


@pytest.mark.parametrize(
    "tamper",
    [
        remove_file,
        cut_short,
        add_units,
        flip,
        unreadable_sector,
        unreadable_last_sector,
        unreadable_snapshot,
        unreadable_key_index,
        unreadable_index_marks,
        unreadable_index_units,
        wipe_derived,
        foreign_queue,
        damaged_snapshot,
    ],
    ids=lambda tamper: tamper.__name__,
)
def test_queue_files_are_made_right_again_from_the_log(tamper: Callable[[SimDisk], None]) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        victim = rig.followers[0]
        node = rig.cluster.hosts[victim].node
        assert node is not None
        await until(lambda: QUEUE in rig.cluster.hosts[victim].disk.names)
        await until(lambda: "config/applied.json.bak" in rig.cluster.hosts[victim].disk.names or node.store.applied.index > 0)
        await rig.cluster.loop.spawn(rig.cluster.hosts[victim].process, node.stop(), "stop")  # type: ignore[arg-type]
        rig.cluster.kill(victim)
        tamper(rig.cluster.hosts[victim].disk)
        rig.cluster.start(victim)
        await settled(rig)
        await assert_whole(rig, victim, COUNT)
        await fill(rig, COUNT, COUNT + 50)
        await settled(rig)
        await assert_whole(rig, victim, COUNT + 50)
        assert not any("/gone/" in path for path in rig.cluster.hosts[victim].disk.names)
        assert not rig.cluster.problems()

    Rig().run(scenario)


def test_damaged_files_of_many_queues_take_one_pass_over_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[list[QueueKey]] = []
    turns: list[int] = []

    async def take(_turns: BulkTurns, size_bytes: int, _most_s: float = 0.0) -> None:
        turns.append(size_bytes)

    async def counted(log: ReadableLog, wanted: dict[QueueKey, Any], *rest: Any) -> None:
        passes.append(sorted(wanted))
        await rebuild_files(log, wanted, *rest)

    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=4)
        async with rig.producer() as producer:
            for number in range(COUNT):
                producer.send_async(Message("t", b"%d" % number), queue_id=number % 4)
            await producer.flush()
        await settled(rig)
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        assert host.node is not None
        await rig.cluster.loop.spawn(host.process, host.node.stop(), "stop")  # type: ignore[arg-type]
        rig.cluster.kill(victim)
        for queue in range(4):
            host.disk.flip_bit(f"consumequeue/t/{queue}/00000000000000000000", 1000, 3)
        monkeypatch.setattr(queue_reader, "rebuild_files", counted)
        monkeypatch.setattr(BulkTurns, "take", take)
        rig.cluster.start(victim)
        await settled(rig)
        node = host.node
        assert node is not None
        turns.clear()
        # As when the log loses its first byte: every queue is asked for its first message behind it.
        follow = QueueTrimmer(node.store.queues, node.store.reader.repair).follow(1)
        await rig.cluster.loop.spawn(host.process, follow, "follow")  # type: ignore[arg-type]
        assert passes == [[("t", queue) for queue in range(4)]]
        assert sum(turns) >= 0.9 * (node.raft.log.end_pos - node.raft.log.first_pos), "what is read gives way to writes"
        async with rig.consumer(replica=victim) as consumer:
            for queue in range(4):
                messages = await consumer.fetch("t", queue, 0, COUNT)
                assert [int(message.body) for message in messages] == list(range(queue, COUNT, 4))

    Rig().run(scenario)


@pytest.mark.parametrize("stop", ["orderly", "killed", *[f"power, {loss.value}" for loss in Loss]])
def test_both_kinds_of_stop_lose_nothing_and_are_told_apart(stop: str) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        for node_id, host in rig.cluster.hosts.items():
            assert host.node is not None
            assert host.process is not None
            if stop == "orderly":
                await rig.cluster.loop.spawn(host.process, host.node.stop(hand_over=False), "stop")
            if stop.startswith("power"):
                rig.cluster.power_off(node_id, next(loss for loss in Loss if stop.endswith(loss.value)))
            else:
                rig.cluster.kill(node_id)
        assert all((ABORT_PATH in host.disk.names) == (stop != "orderly") for host in rig.cluster.hosts.values())
        for node_id in rig.cluster.hosts:
            rig.cluster.start(node_id)
        await settled(rig)
        for node_id, host in rig.cluster.hosts.items():
            assert host.node is not None
            assert host.node.store.recovery.clean == (stop == "orderly")
            await assert_whole(rig, node_id, COUNT)
        await fill(rig, COUNT, COUNT + 20)

    Rig().run(scenario)


@pytest.mark.parametrize("lost", ["config/", "configuration.json"])
def test_a_node_whose_log_is_gone_does_not_vote_with_what_it_forgot(lost: str) -> None:
    """The files of its log are lost, or their disk is not mounted.  It must not be a majority with one that was away."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        master, (away, victim) = rig.master, rig.followers
        rig.cluster.kill(away)
        await fill(rig, 0, COUNT)
        for node_id in (victim, master):
            await rig.cluster.stop(node_id)
        host = rig.cluster.hosts[victim]
        for names in (host.disk.names, host.disk.durable_names):
            for path in [path for path in names if path.startswith(("commitlog/", "index-units/", lost))]:
                del names[path]
        for node_id in (victim, away):
            rig.cluster.start(node_id)
        await until(lambda: host.ended is not None)
        assert isinstance(host.ended, StorageDamagedError)
        assert (
            "but the log ends at entry 0: its files were lost or replaced, so the node must not vote; put them back" in host.ended.message
        )
        host.problems.clear()
        rig.cluster.start(master)
        await until(lambda: rig.cluster.master() is not None)
        await assert_whole(rig, rig.master, COUNT)

    Rig().run(scenario)


def test_a_topic_made_again_never_shows_messages_of_the_old_one_after_a_crash() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 50)
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
        await fill(rig, 0, 7)
        await settled(rig)
        for node_id in rig.cluster.hosts:
            rig.cluster.kill(node_id)
        for node_id in rig.cluster.hosts:
            rig.cluster.start(node_id)
        await settled(rig)
        for node_id in rig.cluster.hosts:
            await assert_whole(rig, node_id, 7)

    Rig().run(scenario)


@pytest.mark.parametrize("everywhere", [False, True], ids=["a peer has it", "nobody has it"])
def test_a_damaged_entry_does_not_end_a_node_whose_key_index_is_made_again(everywhere: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        await asyncio.sleep(10)  # the snapshot covers it all
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        assert host.node is not None
        await rig.cluster.loop.spawn(host.process, host.node.stop(), "stop")  # type: ignore[arg-type]
        rig.cluster.kill(victim)
        for path in [path for path in host.disk.names if path.startswith("index/") or path == "config/keyIndex.json"]:
            del host.disk.names[path], host.disk.durable_names[path]
        damaged = rig.cluster.hosts.values() if everywhere else [host]
        for each in damaged:
            each.disk.flip_bit(log_path(0), 9 * SECTOR)
        rig.cluster.start(victim)
        await settled(rig)
        if everywhere:
            await asyncio.sleep(30)
            assert len([line for line in caplog.messages if "the key index waits for an intact entry" in line]) == 1
            rig.cluster.hosts[rig.master].disk.flip_bit(log_path(0), 9 * SECTOR)
        index = host.node.store.index
        assert index is not None
        assert await index.caught_up(host.node.store.applied_index, 20)

    Rig(log=replace(SMALL_LOG, verify_bytes=SECTOR, cache_bytes=2 << 10)).run(scenario)


@pytest.mark.parametrize("everywhere", [False, True], ids=["a peer has it", "nobody has it"])
@pytest.mark.parametrize("lose", [remove_file, cut_short], ids=["missing", "short"])
def test_a_node_without_a_queue_file_starts_on_a_damaged_log(
    lose: Callable[[SimDisk], None], everywhere: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the entry is whole, messages of that queue are refused here; those of others, and new ones, are there."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await rig.topic("other")
        await fill(rig, 0, COUNT)
        async with rig.producer() as producer:
            await producer.send(Message("other", b"1"))
        await settled(rig)
        await asyncio.sleep(10)  # the snapshot covers it all
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        assert host.node is not None
        await rig.cluster.loop.spawn(host.process, host.node.stop(), "stop")  # type: ignore[arg-type]
        rig.cluster.kill(victim)
        lose(host.disk)
        for each in rig.cluster.hosts.values() if everywhere else [host]:
            each.disk.flip_bit(log_path(0), 9 * SECTOR)
        rig.cluster.start(victim)
        await settled(rig)
        if everywhere:
            await fill(rig, COUNT, COUNT + 50)
            await settled(rig)
            await asyncio.sleep(30)
            assert len([line for line in caplog.messages if "wait for an intact entry" in line and QUEUE in line]) == 1
            async with rig.consumer(replica=victim) as consumer:
                assert [message.body for message in await consumer.fetch("other", 0, 0, 10)] == [b"1"]
                with pytest.raises(UnreachableError, match="checksum does not match"):
                    await consumer.fetch("t", 0, 0, COUNT)
            rig.cluster.hosts[rig.master].disk.flip_bit(log_path(0), 9 * SECTOR)
        await until(lambda: any("rebuilt from the log" in line and QUEUE in line for line in caplog.messages))
        await assert_whole(rig, victim, COUNT + (50 if everywhere else 0))

    Rig(log=replace(SMALL_LOG, verify_bytes=SECTOR, cache_bytes=2 << 10)).run(scenario)


@pytest.mark.parametrize("path", ["configuration.json", "config/applied.json", "config/topics.json", "leaders.json"])
def test_a_node_starts_without_a_file_that_it_can_do_without(path: str) -> None:
    """Of each of these, what is lost is in the log, in the snapshot before, or with the others of the group."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        assert host.node is not None
        await rig.cluster.loop.spawn(host.process, host.node.stop(), "stop")  # type: ignore[arg-type]
        rig.cluster.kill(victim)
        host.disk.break_range(path, 0, SECTOR)
        rig.cluster.start(victim)
        await settled(rig)
        await assert_whole(rig, victim, COUNT)

    Rig().run(scenario)


def test_a_queue_file_whose_last_block_cannot_be_read_is_made_anew_when_it_is_written() -> None:
    """Nobody reads the queue here: what finds it out is the write of its next messages."""

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        await asyncio.sleep(10)  # the snapshot covers it all
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        rig.cluster.kill(victim)
        unreadable_last_sector(host.disk)
        rig.cluster.start(victim)
        await settled(rig)
        await fill(rig, COUNT, 2 * COUNT)
        await settled(rig)
        await asyncio.sleep(10)
        await assert_whole(rig, victim, 2 * COUNT)
        rig.cluster.kill(victim)
        rig.cluster.start(victim)
        await settled(rig)
        await assert_whole(rig, victim, 2 * COUNT)

    Rig().run(scenario)


@pytest.mark.parametrize("stop", ["orderly", "killed"])
@pytest.mark.parametrize("tamper", [None, remove_file, wipe_derived], ids=["whole", "a queue file is missing", "all derived is missing"])
def test_a_start_on_a_full_disk_serves_what_is_there(stop: str, tamper: Callable[[SimDisk], None] | None) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        await asyncio.sleep(10)
        await fill(rig, COUNT, COUNT + 50)
        await settled(rig)
        victim = rig.followers[0]
        host = rig.cluster.hosts[victim]
        assert host.node is not None
        if stop == "orderly":
            await rig.cluster.loop.spawn(host.process, host.node.stop(), "stop")  # type: ignore[arg-type]
        rig.cluster.kill(victim)
        if tamper is not None:
            tamper(host.disk)
        host.disk.settings = replace(host.disk.settings, capacity_bytes=host.disk.used_bytes())
        rig.cluster.start(victim)
        await until(lambda: rig.cluster.is_up(host) and host.node is not None and host.node.store.queues.max_offset(("t", 0)) == COUNT + 50)
        await asyncio.sleep(30)
        host.disk.settings = replace(host.disk.settings, capacity_bytes=1 << 40)
        await fill(rig, COUNT + 50, COUNT + 60)
        await settled(rig)
        await asyncio.sleep(10)
        low, high = host.node.store.reader.bounds("t", 0)  # the oldest were deleted for want of room
        async with rig.consumer(replica=victim) as consumer:
            messages = await consumer.fetch("t", 0, low, 2 * COUNT)
        assert [message.body for message in messages] == [b"%d" % number for number in range(low, COUNT + 60)]
        assert high == COUNT + 60

    Rig().run(scenario)
