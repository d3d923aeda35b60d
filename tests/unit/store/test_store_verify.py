"""The offline check of queue files and snapshots names the file and the byte; a store that was killed is not accused of what it may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.log.report import DamageKind, Finding
from dledger.runtime.env import Disk
from dledger_client.aio import Message
from dledger_wire.names import TIMER_TOPIC
from store.offline.verify import verify_store
from tests.sim.disk import SimDisk
from tests.sim.loop import Process
from tests.unit.client.sim_rig import Rig
from tests.unit.store.test_store_recovery import (
    COUNT,
    QUEUE,
    add_units,
    cut_short,
    damaged_snapshot,
    fill,
    flip,
    remove_file,
    settled,
    unreadable_index_marks,
    unreadable_sector,
)

SNAPSHOT = "config/applied.json"
Place = tuple[str, int, DamageKind, str]


def flip_tag_hash(disk: SimDisk) -> None:
    disk.flip_bit(QUEUE, 100 * 20 + 19, 0)


def remove_log(disk: SimDisk) -> None:
    for path in [path for path in disk.names if path.startswith(("commitlog/", "index-units/"))]:
        del disk.names[path], disk.durable_names[path]


def nothing(_disk: SimDisk) -> None:
    return None


async def check(disk: Disk) -> list[Finding]:
    return [finding async for finding in verify_store(disk)]


async def findings(rig: Rig, node_id: str, *, clean: bool, tamper: Callable[[SimDisk], None]) -> list[Finding]:
    """Stop a node, spoil its disk, check what is left as another process would."""
    host = rig.cluster.hosts[node_id]
    assert host.node is not None
    assert host.process is not None
    if clean:
        await rig.cluster.loop.spawn(host.process, host.node.stop(hand_over=False), "stop")
    rig.cluster.kill(node_id)
    tamper(host.disk)
    process = Process(host.ip, host.runs + 1)
    found = await rig.cluster.loop.spawn(process, check(host.disk.mount(process)), "check")
    return list(found)


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (nothing, []),
        (flip, [(QUEUE, 1220, DamageKind.QUEUE_FILE, "unit of offset 61")]),
        (flip_tag_hash, [(QUEUE, 2000, DamageKind.QUEUE_FILE, "unit of offset 100: not the hash of the message's tag")]),
        (cut_short, [(QUEUE, 760, DamageKind.QUEUE_FILE, f"38 units; expected {COUNT}")]),
        (add_units, [(QUEUE, COUNT * 20, DamageKind.QUEUE_FILE, f"units from offset {COUNT} on that nothing belongs to")]),
        (unreadable_sector, [(QUEUE, 0, DamageKind.QUEUE_FILE, "cannot be read: input/output error")]),
        (
            remove_log,
            [("commitlog/00000000000000000000", 0, DamageKind.MISSING_SEGMENT, "the log's files end at position 0, but the state")],
        ),
        (unreadable_index_marks, [("config/keyIndex.json", 0, DamageKind.INDEX_FILE, "not what was written")]),
        (remove_file, [(QUEUE, 0, DamageKind.QUEUE_FILE, f"0 units; expected {COUNT}")]),
        (damaged_snapshot, [(SNAPSHOT, 0, DamageKind.SNAPSHOT, "not what was written")]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_named_by_file_and_byte(tamper: Callable[[SimDisk], None], expected: list[Place]) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, COUNT)
        await settled(rig)
        found = await findings(rig, rig.followers[0], clean=True, tamper=tamper)
        assert len(found) == len(expected)
        for finding, (path, pos, kind, text) in zip(found, expected, strict=True):
            assert finding.file.endswith(path)
            assert (finding.pos, finding.kind, finding.is_damage) == (pos, kind, True)
            assert finding.text.startswith(text)

    Rig().run(scenario)


def test_a_bad_due_time_is_named_where_it_is() -> None:
    def flip_due_time(disk: SimDisk) -> None:
        disk.flip_bit(f"consumequeue/{TIMER_TOPIC}/0/{0:020d}", 7 * 20 + 19, 0)

    async def scenario(rig: Rig) -> None:
        await rig.topic()
        due_ms = rig.around()["clock"].wall_ms() + 3_600_000
        async with rig.producer() as producer:
            for number in range(20):
                await producer.send(Message("t", b"%d" % number, deliver_at_ms=due_ms + number))
        await settled(rig)
        (found,) = await findings(rig, rig.followers[0], clean=True, tamper=flip_due_time)
        assert (found.pos, found.text[:61]) == (140, "unit of offset 7: not the time at which the message is due, 1"[:61])

    Rig().run(scenario)


def test_a_killed_store_with_a_topic_made_again_is_sound() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        await fill(rig, 0, 50)
        await settled(rig)
        async with rig.admin() as admin:
            await admin.delete_topic("t")
            await admin.create_topic("t", queues=1)
        await fill(rig, 0, 70)
        await settled(rig)
        assert await findings(rig, rig.followers[0], clean=False, tamper=nothing) == []

    Rig().run(scenario)
