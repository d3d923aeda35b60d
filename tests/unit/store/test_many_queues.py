"""Tens of thousands of used queues cost what changes, not what there is: snapshots, flushes, and the start."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

import store.durability.recovery
from dledger_wire.errors import TopicNotFoundError
from store.durability.snapshots import Snapshots
from store.queues.consume_queue import ConsumeQueue, QueueMark
from store.queues.queue_files import Units
from store.queues.queue_table import QueueTable
from store.queues.queue_trim import QueueTrimmer
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import StoreRig, batch_of, run

QUEUES = 50


async def used(disk: CrashDisk, queues: int = QUEUES) -> StoreRig:
    rig = await StoreRig.open(disk)
    await rig.topic("t", queues)
    for number in range(queues):
        await rig.send(batch_of("t", number, [b"one"]))
    return rig


def queue_rows(disk: CrashDisk) -> list[list[object]]:
    rows: list[list[object]] = json.loads(bytes(disk.files["config/applied.json"].current).split(b"\n")[1])["queues"]
    return rows


def test_a_snapshot_looks_only_at_queues_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    mark = ConsumeQueue.mark

    def counted(queue: ConsumeQueue) -> QueueMark:
        looked.append(queue.key[1])
        return mark(queue)

    monkeypatch.setattr(ConsumeQueue, "mark", counted)

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk)
        assert await rig.save()
        assert sorted(looked) == list(range(QUEUES))
        looked.clear()
        await rig.send(batch_of("t", 7, [b"two"]))
        assert await rig.save()
        assert looked == [7]
        assert [row[3] for row in queue_rows(disk)] == [1] * 7 + [2] + [1] * (QUEUES - 8)
        # Each snapshot on disk is whole, and what was taken before does not change by what comes later.
        held = rig.store.queues.capture()
        await rig.send(batch_of("t", 7, [b"three"]))
        rig.store.queues.capture()
        assert held["t", 7].max_offset == 2
        found = (await Snapshots(disk).load())[0]
        assert found.queues == held
        await rig.close()

    run(scenario)


def test_the_marks_follow_what_becomes_of_a_topic() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk, 3)
        await rig.save()
        await rig.send(batch_of("t", 1, [b"two"]))
        queue = rig.store.queues.get(("t", 1))
        assert queue is not None
        rig.store.queues.drop_topic("t")
        rig.store.queues.mark_changed(queue)  # by a repair that was at work meanwhile
        assert rig.store.queues.capture() == {}
        assert rig.store.queues.obtain(("t", 1)) is not queue
        assert [mark.max_offset for mark in rig.store.queues.capture().values()] == [0]

    run(scenario)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_start_asks_the_disk_a_few_times_for_all_queues(monkeypatch: pytest.MonkeyPatch, orderly: bool) -> None:
    monkeypatch.setattr(store.durability.recovery, "CUTS_AT_ONCE", 20)

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk)
        await rig.save()
        if orderly:
            await rig.close()
        disk = disk.after_kill()
        again = await StoreRig.open(disk)
        asked = [what for what, path in disk.log if path.startswith("consumequeue") and what != "cut"]
        assert asked == ["sizes"]
        for number in range(QUEUES):
            assert [frame.body for frame in await again.read_all(("t", number))] == [b"one"]
        await again.close()

    run(scenario)


def test_a_start_amid_the_first_flush_removes_what_no_snapshot_knows_by_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node was killed before a snapshot knew the queues whose files it had written."""
    monkeypatch.setattr("store.queues.queue_table.REMOVED_AT_ONCE", 20)
    calls: list[int] = []
    remove_files = CrashDisk.remove_files

    async def counted(disk: CrashDisk, paths: Sequence[str]) -> None:
        calls.append(len(paths))
        await remove_files(disk, paths)

    monkeypatch.setattr(CrashDisk, "remove_files", counted)

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk)
        await rig.store.queues.flush(sync=True)
        disk = disk.after_kill()
        again = await StoreRig.open(disk)
        assert calls == [20, 20, 10]
        assert {what for what, path in disk.log if path.startswith("consumequeue")} == {"sizes", "remove"}
        assert again.store.reader.bounds_of_topic("t") == ([0] * QUEUES, [1] * QUEUES)
        assert [frame.body for frame in await again.read_all(("t", 7))] == [b"one"]
        await again.close()

    run(scenario)


def test_the_bounds_of_a_topics_queues_are_known_without_its_files() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk)
        await rig.save()
        await rig.close()
        again_disk = disk.after_kill()
        again = await StoreRig.open(again_disk)
        await again.send(batch_of("t", 7, [b"two"]))
        await again.topic("unused", 3)
        again_disk.log.clear()
        lows, highs = again.store.reader.bounds_of_topic("t")
        assert [*zip(lows, highs, strict=True)] == [again.store.reader.bounds("t", number) for number in range(QUEUES)]
        assert highs == [1] * 7 + [2] + [1] * (QUEUES - 8)
        assert again.store.reader.bounds_of_topic("unused") == ([0] * 3, [0] * 3)
        assert again_disk.log == []
        with pytest.raises(TopicNotFoundError):
            again.store.reader.bounds_of_topic("none")
        await again.close()

    run(scenario)


def test_memory_of_queues_is_given_back_and_the_count_of_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.queues.queue_table.BUFFERS_LIMIT_BYTES", 8 * 20 * 10)

    def held(queues: QueueTable) -> int:
        return sum(queue.buffer_units for queue in queues)

    async def scenario() -> None:
        rig = await used(CrashDisk())
        queues = rig.store.queues
        assert held(queues) == 8 * QUEUES == queues._held_units
        await queues.flush(sync=False)
        assert held(queues) == 8 * 10 == queues._held_units
        for number in range(QUEUES):
            await rig.send(batch_of("t", number, [b"more"] * 20))
        queues.drop_topic("other")
        assert held(queues) == queues._held_units
        await queues.flush(sync=True)
        assert held(queues) == queues._held_units <= 8 * 10
        assert [frame.body for frame in await rig.read_all(("t", 3))] == [b"one"] + [b"more"] * 20
        queues.drop_topic("t")
        assert queues._held_units == 0
        await rig.close()

    run(scenario)


@pytest.mark.parametrize("name", ["007", "\u0667", "x", "-1"])
def test_a_folder_that_is_no_queue_of_ours_is_left_alone(name: str) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk, 3)
        await rig.store.queues.flush(sync=True)
        disk = disk.after_kill()
        path = f"consumequeue/t/{name}/00000000000000000000"
        disk.files[path] = CrashDisk({path: b"theirs"}).files[path]
        again = await StoreRig.open(disk)
        assert disk.files[path].current == b"theirs"
        assert [frame.body for frame in await again.read_all(("t", 2))] == [b"one"]
        await again.close()

    run(scenario)


def test_a_topic_that_goes_while_the_head_is_looked_for_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        rig = await used(CrashDisk())
        queues = rig.store.queues
        for _ in range(20):
            await rig.send(batch_of("t", 7, [b"more"]))
        await queues.flush(sync=True)
        victim = queues.get(("t", 7))
        assert victim is not None
        victim.release_memory()
        read = ConsumeQueue.read

        async def read_and_delete(queue: ConsumeQueue, first: int, count: int) -> Units:
            queues.drop_topic("t")
            await queues.flush(sync=False)
            return await read(queue, first, count)

        monkeypatch.setattr(ConsumeQueue, "read", read_and_delete)
        await QueueTrimmer(queues, rig.store.reader.repair).follow(victim.last_end_pos - 1)
        assert len(queues) == 0
        await rig.close()

    run(scenario)


def test_damage_met_while_the_head_is_looked_for_does_not_count_as_the_head() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await StoreRig.open(disk)
        await rig.topic("t", 1)
        places = [(await rig.send(batch_of("t", 0, [b"%d" % number])))[0].physical_offset for number in range(28)]
        assert await rig.save()
        await rig.close()
        disk = disk.after_kill()
        path = "consumequeue/t/0/00000000000000000140"  # the second of four files of seven units
        disk.files[path].current[3] ^= 1
        rig = await StoreRig.open(disk)
        queue = rig.store.queues.get(("t", 0))
        assert queue is not None
        await QueueTrimmer(rig.store.queues, rig.store.reader.repair).follow(places[10])
        assert (queue.min_offset, queue.head_pos) == (10, places[10])
        await rig.close()

    run(scenario)


def test_what_expires_is_looked_for_only_in_queues_it_may_be_in() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        rig = await used(disk)
        queues = rig.store.queues
        await queues.flush(sync=True)
        for queue in queues:
            queue.release_memory()
        middle = queues.get(("t", 20))
        assert middle is not None
        where = middle.head_pos
        disk.log.clear()
        await QueueTrimmer(queues, rig.store.reader.repair).follow(where)
        assert disk.log == [], "the first 20 queues have nothing left, the others begin behind it"
        assert [queue.min_offset for queue in queues] == [1] * 20 + [0] * (QUEUES - 20)
        for number in (0, 20):
            await rig.send(batch_of("t", number, [b"two"]))
        disk.log.clear()
        assert (queues.obtain(("t", 0)).head_pos > where, middle.head_pos) == (True, where)
        await QueueTrimmer(queues, rig.store.reader.repair).follow(where + 1)
        assert {path for what, path in disk.log if what == "pread"} == {"consumequeue/t/20/00000000000000000000"}
        assert middle.min_offset == 1 < middle.max_offset
        await rig.close()
        disk = disk.after_kill()
        rig = await StoreRig.open(disk)
        disk.log.clear()
        await QueueTrimmer(rig.store.queues, rig.store.reader.repair).follow(where + 1)
        assert disk.log == [], "the snapshot says where its queues begin"
        await rig.close()

    run(scenario)
