"""Power lost at any operation, also during the start after it: the derived state is what the log says, to the unit and the sequence.

The oracle is a second store that starts from nothing but the same log.
"""

from __future__ import annotations

import random

import pytest

from dledger_wire.batches.batch import Sequence64
from dledger_wire.errors import DledgerError, StorageFailedError
from store.commands.producers import InitProducer
from store.commands.topics import CreateTopic, DeleteTopic
from store.offline.verify import verify_store
from tests.unit.log.crash_disk import CrashDisk, PowerLost
from tests.unit.store.store_rig import StepClock, StoreRig, batch_of, run

TOPICS = ("a", "b")
WEIGHTS = {"send": 8, "sequenced": 4, "topic": 2, "delete": 1, "producer": 1, "commit": 3, "apply": 2, "save": 3, "flush": 3}


async def live(rig: StoreRig, draw: random.Random, sent: dict[tuple[int, int, str], int], acknowledged: list[int]) -> None:
    """One life of a store: commands, batches with and without sequences, flushes and snapshots at random."""
    rig.promise()
    for _ in range(draw.randint(10, 120)):
        action = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        topic = draw.choice(TOPICS)
        try:
            if action == "send":
                bodies = [draw.randbytes(draw.randint(0, 60)) for _ in range(draw.randint(1, 12))]
                tags = [draw.choice(["", "x", "y"]) for _ in bodies]
                rig.append(rig.store.prepare(batch_of(topic, draw.randrange(2), bodies, tags=tags)))
            elif action == "sequenced":
                append_sequenced(rig, draw, topic, sent)
            elif action == "topic":
                rig.append(rig.store.command(CreateTopic(name=topic, write_queues=2)))
            elif action == "delete":
                rig.append(rig.store.command(DeleteTopic(name=topic)))
            elif action == "producer":
                rig.append(rig.store.command(InitProducer(producer_id=draw.choice([0, 1, 2, 3]))))
        except DledgerError:
            continue
        if action == "commit":
            await rig.commit()
            acknowledged[0] = rig.log.last.index
        elif action == "apply":
            # The group has committed what this replica's own disk does not hold yet.
            await rig.apply(rig.log.last.index)
        elif action == "save" and await rig.save():
            assert rig.log.durable.index >= rig.saved_index
        elif action == "flush":
            await rig.store.queues.flush(sync=draw.random() < 0.5)


def append_sequenced(rig: StoreRig, draw: random.Random, topic: str, sent: dict[tuple[int, int, str], int]) -> None:
    producer, epoch = draw.choice([1, 2]), draw.choice([0, 1])
    first = sent.get((producer, epoch, topic), 0)
    if draw.random() < 0.3:
        first = max(0, first - draw.randint(0, 4))
    bodies = [b"%d/%d" % (producer, first + number) for number in range(draw.randint(1, 4))]
    payload = rig.store.prepare(batch_of(topic, 0, bodies, sequence=Sequence64(producer, epoch, first)))
    if payload.outcomes[0].error is None and payload.size_bytes:
        rig.append(payload)
        if payload.outcomes[0].error is None and not payload.outcomes[0].duplicate:
            sent[producer, epoch, topic] = first + len(bodies)


async def assert_as_from_nothing(rig: StoreRig) -> None:
    """The store of ``rig`` holds what a store makes of the log alone."""
    logs = ("commitlog/", "index-units/", "hardstate")
    bare = CrashDisk({path: data for path, data in contents(rig.disk).items() if path.startswith(logs)})
    oracle = await StoreRig.open(bare)
    assert rig.state() == oracle.state()
    for key in oracle.state()["queues"]:
        # Damage is found, and mended, by whoever reads first.
        frames = await rig.read_all(key)
        assert frames == await oracle.read_all(key)
        assert [frame.queue_offset for frame in frames] == list(range(len(frames)))
        assert (await rig.units(key)).tobytes() == (await oracle.units(key)).tobytes()
    await oracle.close()


def contents(disk: object) -> dict[str, bytes]:
    assert isinstance(disk, CrashDisk)
    return {path: bytes(content.current) for path, content in disk.files.items()}


@pytest.mark.parametrize("seed", range(80))
def test_power_lost_at_any_step_leaves_a_state_that_the_log_confirms(seed: int) -> None:
    async def scenario() -> None:
        draw = random.Random(seed)
        disk = CrashDisk()
        clock = StepClock()
        acknowledged = [0]
        for _ in range(draw.randint(2, 6)):
            if draw.random() < 0.2:
                disk.crash_after = draw.randint(1, 120)
            try:
                rig = await StoreRig.open(disk, clock=clock)
                if draw.random() < 0.8:
                    disk.crash_after = disk.operations + draw.randint(1, 300)
                await live(rig, draw, {}, acknowledged)
                await rig.commit()
                acknowledged[0] = rig.log.last.index
                if draw.random() < 0.5:
                    await rig.close()
            except (PowerLost, StorageFailedError):
                # A task of the log's own may be the one that met it.
                assert disk.has_lost_power
            disk = disk.after_kill() if draw.random() < 0.2 else disk.after_power_loss(draw)
        rig = await StoreRig.open(disk, clock=clock)
        assert rig.log.last.index >= acknowledged[0]
        assert rig.store.recovery.damaged_files == []
        await assert_as_from_nothing(rig)
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []

    run(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_derived_files_are_made_anew_from_the_log(seed: int) -> None:
    async def scenario() -> None:
        draw = random.Random(seed)
        disk, clock = CrashDisk(), StepClock()
        for _ in range(3):
            rig = await StoreRig.open(disk, clock=clock)
            await live(rig, draw, {}, [0])
            await rig.commit()
            await rig.close()
        spoilt = damage(disk, draw)
        found = [finding async for finding in verify_store(disk)]
        assert {finding.file for finding in found} <= {disk.local_path(path) for path in spoilt}
        assert [finding for finding in found if finding.is_damage] or not spoilt
        rig = await StoreRig.open(disk, clock=clock)
        await assert_as_from_nothing(rig)
        # What was made anew is on disk again, and what follows goes on from there.
        await live(rig, draw, {}, [0])
        await rig.commit()
        await assert_as_from_nothing(rig)
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []

    run(scenario)


def damage(disk: CrashDisk, draw: random.Random) -> list[str]:
    """Spoil one to three queue files, or one file of the snapshot; which."""
    queue_files = [path for path, content in disk.files.items() if path.startswith("consumequeue/") and content.current]
    victims = draw.sample(queue_files, min(len(queue_files), draw.randint(1, 3)))
    if not victims or draw.random() < 0.2:
        victims = [draw.choice(["config/applied.json", "config/topics.json"])]
    for path in victims:
        data = bytearray(disk.files[path].current)
        how = draw.choice(["flip", "cut", "remove"] if path.startswith("consumequeue/") else ["flip"])
        if how == "remove":
            del disk.files[path]
            continue
        at = draw.randrange(len(data))
        if how == "flip":
            data[at] ^= 1 << draw.randrange(8)
        else:
            del data[at:]
        disk.files.update(CrashDisk({path: bytes(data)}).files)
    return victims
