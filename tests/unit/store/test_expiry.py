"""Expiry: which segments go and when, what follows the log's start, and that a crash anywhere leaves a store that starts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dledger.log.report import DamageKind
from dledger.log.segment import log_path
from dledger_wire.batches.batch import BatchView
from dledger_wire.errors import NotReadyError, OffsetOutOfRangeError, ReadOnlyError, StorageDamagedError
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC
from store.commands.redelivery import AdvanceDelayLevel
from store.durability.disk_room import HAND_OVER_MS, DiskRoom
from store.durability.expiry import HOUR_MS, Expired
from store.log_view import entry_records
from store.offline.verify import verify_store
from store.settings import DiskLimit, StoreSettings
from store.state.delays import LEVELS
from store.state.sequences import QueueKey
from tests.unit.log.crash_disk import CrashDisk, PowerLost
from tests.unit.store.store_rig import LOG, TINY, StepClock, StoreRig, batch_of, batch_of_frames, frames_of, run

KEY = ("t", 0)
START_MS = 1_700_000_000_000


async def send(rig: StoreRig, first: int, upto: int, *, queue_id: int = 0, at_once: int = 4) -> None:
    for number in range(first, upto, at_once):
        bodies = [b"%d " % n + b"x" * 60 for n in range(number, min(number + at_once, upto))]
        await rig.send(batch_of("t", queue_id, bodies))


async def filled(disk: CrashDisk, clock: StepClock, count: int = 200, settings: StoreSettings = TINY) -> StoreRig:
    rig = await StoreRig.open(disk, settings, clock=clock)
    await rig.topic()
    await send(rig, 0, count)
    return rig


async def numbers(rig: StoreRig, key: QueueKey = KEY) -> list[int]:
    return [int(frame.body.split()[0]) for frame in await rig.read_all(key)]


def queue_files(disk: CrashDisk) -> list[str]:
    return sorted(path for path in disk.files if path.startswith("consumequeue/t/0/"))


def held_up_removals(disk: CrashDisk, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """(a file is to be removed, removals go on): from now on they wait for the second."""
    removing, go_on, remove = asyncio.Event(), asyncio.Event(), disk.remove

    async def remove_later(path: str) -> None:
        removing.set()
        await go_on.wait()
        await remove(path)

    monkeypatch.setattr(disk, "remove", remove_later)
    return removing, go_on


async def assert_follows(rig: StoreRig, sent: dict[QueueKey, int]) -> None:
    """Each queue begins with its first message that is in the log, and has everything from there on."""
    firsts: dict[QueueKey, int] = {}
    for entry in await rig.entries():
        for _pos, record in entry_records(entry):
            if isinstance(record, BatchView):
                firsts.setdefault((record.topic, record.queue_id), record.first_queue_offset)
    for key, count in sent.items():
        low, high = rig.store.reader.bounds(*key)
        assert high >= count
        assert low == firsts.get(key, high)
        assert await numbers(rig, key) == list(range(low, high))


def test_whole_segments_beyond_the_reserved_time_go_and_queues_follow() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        clock.now_ms += TINY.fileReservedTime // 2
        await send(rig, 200, 300)
        clock.now_ms += TINY.fileReservedTime // 2 + 60_000
        segments = rig.log.segments
        await rig.save()
        before = len(queue_files(disk))
        done = await rig.store.expiry.expire()
        low, _high = rig.store.reader.bounds(*KEY)
        # The segment in which message 200 lies is the first that is young enough.
        assert 150 < low <= 200
        assert done == Expired(len(segments) - len(rig.log.segments), rig.log.first_pos, rig.log.first_index, rig.log.first_pos)
        assert rig.log.first_pos in [segment.start_pos for segment in segments]
        assert len(queue_files(disk)) < before
        assert queue_files(disk)[0].endswith(f"{low // 7 * 7 * 20:020d}")
        await assert_follows(rig, {KEY: 300})
        for offset in (0, low - 1):
            with pytest.raises(OffsetOutOfRangeError) as caught:
                await rig.store.read(*KEY, offset, max_bytes=1000)
            assert (caught.value.min_offset, caught.value.max_offset) == (low, 300)
        assert await rig.store.reader.offset_for_time(*KEY, 0) == low
        assert (await rig.store.expiry.expire()).segments == 0
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []
        rig = await StoreRig.open(disk, clock=clock)
        assert rig.store.reader.bounds(*KEY) == (low, 300)
        await assert_follows(rig, {KEY: 300})
        await rig.close()

    run(scenario)


def test_a_deletion_that_is_asked_for_ends_before_a_copy_takes_the_place_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        rig = await filled(CrashDisk(), StepClock(START_MS))
        cutting = asyncio.Event()

        async def never_ends(_upto_index: int) -> int:
            cutting.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("unreachable")

        monkeypatch.setattr(rig.head, "truncate_head", never_ends)
        asked = asyncio.create_task(rig.store.expiry.expire(0))
        await cutting.wait()
        await rig.store.suspend()
        assert asked.done()
        with pytest.raises(NotReadyError, match="replaced"):
            await asked
        await rig.store.recover(rig.log)
        await rig.apply(rig.log.last.index)
        await assert_follows(rig, {KEY: 200})
        await rig.close()

    run(scenario)


def test_a_deletion_goes_on_when_who_asked_for_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log begins behind the segments before their files go: nobody would remove the others."""

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await filled(disk, StepClock(START_MS))
        removing, go_on = held_up_removals(disk, monkeypatch)
        asked = asyncio.create_task(rig.store.expiry.expire(0))
        await removing.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        go_on.set()
        assert (await rig.store.expiry.expire(0)).segments == 0, "it waits for the first one"
        kept = [log_path(segment.start_pos) for segment in rig.log.segments]
        assert [path for path in sorted(disk.files) if path in kept or path.rpartition("/")[0] == log_path(0).rpartition("/")[0]] == kept
        await rig.close()

    run(scenario)


def test_a_deletion_that_has_not_begun_does_not_when_who_asked_for_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who breaks a command off before anything was deleted wants to keep it."""

    async def scenario() -> None:
        disk = CrashDisk()
        rig = await filled(disk, StepClock(START_MS))
        removing, go_on = held_up_removals(disk, monkeypatch)
        expiry = rig.store.expiry
        first = asyncio.create_task(expiry.expire(0, 1))
        await removing.wait()
        second = asyncio.create_task(expiry.expire(0))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go_on.set()
        assert (await first).segments == 1
        assert (await expiry.expire(0, 1)).segments == 1, "the second one would have left none to delete"
        await rig.close()

    run(scenario)


def test_a_queue_whose_messages_are_all_gone_goes_on_at_its_next_offset() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await StoreRig.open(disk, clock=clock)
        await rig.topic()
        await send(rig, 0, 50, queue_id=1)
        await send(rig, 0, 100)
        await rig.store.expiry.expire(0)
        assert rig.store.reader.bounds("t", 1) == (50, 50)
        await send(rig, 50, 53, queue_id=1)
        assert await numbers(rig, ("t", 1)) == [50, 51, 52]
        await rig.close()
        rig = await StoreRig.open(disk, clock=clock)
        await send(rig, 53, 60, queue_id=1)
        assert await numbers(rig, ("t", 1)) == list(range(50, 60))
        await assert_follows(rig, {KEY: 100, ("t", 1): 60})
        await rig.close()

    run(scenario)


def test_nothing_goes_that_is_not_applied_here_or_that_somebody_needs() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        third = rig.log.segments[2]
        rig.head.limit = third.first_index + 1
        await rig.store.expiry.expire(0)
        assert rig.log.first_index == third.first_index
        rig.head.limit = None
        await rig.store.expiry.expire(0)
        assert len(rig.log.segments) == 1
        await rig.close()

    run(scenario)


def test_no_message_goes_before_it_was_delivered() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock, 100)
        await rig.topic(SCHEDULE_TOPIC, LEVELS)
        await rig.send(batch_of(SCHEDULE_TOPIC, 2, [b"later", b"and later"], more={"REAL_TOPIC": "t", "REAL_QID": "0"}))
        await send(rig, 100, 300)
        (first, second) = (await rig.units((SCHEDULE_TOPIC, 2)))["pos"].tolist()
        done = await rig.store.expiry.expire(0)
        assert done.held_by.endswith(f"(level 3) is not delivered yet ({SCHEDULE_TOPIC}/2 offset 0)")
        assert not rig.store.head_waits_for_timers
        assert rig.log.first_pos <= first < rig.log.segments[1].start_pos
        await rig.command(AdvanceDelayLevel(level=3, offset=1))
        await rig.store.expiry.expire(0)
        assert rig.log.first_pos <= second < rig.log.segments[1].start_pos
        await rig.command(AdvanceDelayLevel(level=3, offset=2))
        assert (await rig.store.expiry.expire(0)).held_by == ""
        assert len(rig.log.segments) == 1
        await rig.close()

    run(scenario)


def test_an_open_transaction_holds_the_head_and_is_told_once_a_change(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock, 100, replace(TINY, diskSpaceEnoughFree=0, diskMaxUsedSpaceRatio=10, fileReservedTime=0))
        await rig.topic(HALF_TOPIC, 1)
        half = frames_of(HALF_TOPIC, 0, [b"half"])[0]
        of_transaction = {"TRAN_MSG": "true", "PGROUP": "p", "REAL_TOPIC": "t", "REAL_QID": "0"}
        await rig.send(batch_of_frames(HALF_TOPIC, [replace(half, properties=of_transaction)]))
        await send(rig, 100, 300)
        for _ in range(3):
            await rig.store.expiry._round()
        held = f"a transaction of topic t is open ({HALF_TOPIC}/0 offset 0)"
        assert (await rig.store.expiry.expire(0)).held_by.startswith(held)
        await rig.close()

    with caplog.at_level("WARNING"):
        run(scenario)
    assert len([record for record in caplog.records if "the log cannot be deleted beyond entry" in record.getMessage()]) == 1


def test_what_a_replica_needs_is_told() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        third = rig.log.segments[2]
        rig.head.limit = third.first_index + 1
        assert f"entry {third.first_index + 1} is not applied here yet, or a replica" in (await rig.store.expiry.expire(0)).held_by
        await rig.close()

    run(scenario)


def test_both_snapshots_on_disk_reach_behind_what_is_deleted() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        await rig.store.expiry.expire(0)
        low = rig.store.reader.bounds(*KEY)[0]
        contents = {path: bytes(content.current) for path, content in disk.files.items()}
        spoilt = bytearray(contents["config/applied.json"])
        spoilt[100] ^= 1
        again = await StoreRig.open(CrashDisk(contents | {"config/applied.json": bytes(spoilt)}), clock=clock)
        assert again.store.recovery.damaged_files
        assert again.store.reader.bounds(*KEY) == (low, 200)
        await assert_follows(again, {KEY: 200})
        await again.close()
        await rig.close()

    run(scenario)


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "damaged"])
def test_without_a_snapshot_and_the_logs_beginning_verify_and_the_start_say_what_to_do(gone: bool) -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        await rig.store.expiry.expire(0)
        await rig.close()
        for path in [path for path in disk.files if path.startswith("config/applied.json")]:
            if gone:
                del disk.files[path]
            else:
                disk.files[path].current[100] ^= 1
        found = [finding async for finding in verify_store(disk)]
        assert [finding.text for finding in found[:-1]] == [] if gone else ["not what was written"] * 2
        assert (found[-1].kind, found[-1].is_damage, found[-1].file) == (DamageKind.SNAPSHOT, True, "/crash/config/applied.json")
        remedy = "the state cannot be rebuilt from it, and the node does not start; replace this node as a member"
        assert remedy in found[-1].text
        with pytest.raises(StorageDamagedError, match=remedy):
            await StoreRig.open(disk, clock=clock)

    run(scenario)


def test_a_queue_file_made_anew_after_its_head_is_gone_has_fillers_and_stays_right() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        await rig.store.expiry.expire(0)
        low = rig.store.reader.bounds(*KEY)[0]
        await rig.close()
        first = queue_files(disk)[0]
        del disk.files[first]
        rig = await StoreRig.open(disk, clock=clock)
        assert rig.store.recovery.rebuilt_files == [disk.local_path(first)]
        assert rig.store.reader.bounds(*KEY) == (low, 200)
        await assert_follows(rig, {KEY: 200})
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []

    run(scenario)


@pytest.mark.parametrize("seed", range(30))
def test_power_lost_at_any_step_of_an_expiry_loses_nothing_that_is_left(seed: int) -> None:
    async def scenario() -> None:
        draw = random.Random(seed)
        disk, clock = CrashDisk(), StepClock(START_MS)
        sent = {KEY: 0, ("t", 1): 0}
        rig = await StoreRig.open(disk, clock=clock)
        await rig.topic()
        for _ in range(4):
            first_pos = rig.log.first_pos
            try:
                for _ in range(draw.randint(1, 3)):
                    for key in sent:
                        count = draw.randint(0, 40)
                        await send(rig, sent[key], sent[key] + count, queue_id=key[1], at_once=draw.randint(1, 6))
                        sent[key] += count
                disk.crash_after = disk.operations + draw.randint(1, 90)
                for _ in range(2):
                    rig.head.limit = draw.randint(0, rig.store.applied_index)
                    await rig.store.expiry.expire(0)
                    rig.head.limit = None
                if draw.random() < 0.3:
                    await rig.close()
            except PowerLost:
                pass
            disk = disk.after_kill() if draw.random() < 0.2 else disk.after_power_loss(draw)
            if draw.random() < 0.3:
                disk.crash_after = draw.randint(1, 60)
                with contextlib.suppress(PowerLost):
                    await StoreRig.open(disk, clock=clock)
                disk = disk.after_power_loss(draw)
            rig = await StoreRig.open(disk, clock=clock)
            assert rig.log.first_pos >= first_pos
            assert rig.store.recovery.damaged_files == []
            await assert_follows(rig, sent)
        await rig.close()
        assert [finding async for finding in verify_store(disk)] == []

    run(scenario)


class SizedDisk(CrashDisk):
    """A disk that says how full it is."""

    total, free = 1000 << 30, 900 << 30

    async def total_bytes(self) -> int:
        return self.total

    async def free_bytes(self) -> int:
        return self.free


@dataclass(frozen=True, slots=True)
class Case:
    """A disk, an hour and an age, and what then happens: ``goes`` is which segments."""

    used_percent: int
    hour: int
    old: bool
    goes: str  # "none", "old", "all"
    refuses: bool = False
    enough_free: int = 0
    utc_offset_h: int = 0
    forcibly: bool = True


CASES = (
    Case(50, 12, True, "none"),
    Case(50, 4, True, "all"),
    Case(50, 4, False, "none"),
    Case(50, 16, True, "all"),
    Case(50, 1, True, "all", utc_offset_h=3),
    Case(50, 4, True, "none", utc_offset_h=3),
    Case(75, 12, True, "none"),
    Case(76, 12, True, "all"),
    Case(76, 12, False, "none"),
    Case(85, 12, False, "none"),
    Case(86, 12, False, "all"),
    Case(86, 12, False, "none", forcibly=False),
    Case(86, 12, False, "none", enough_free=100 << 30),
    Case(86, 12, True, "all", enough_free=100 << 30),
    Case(86, 12, False, "all", enough_free=200 << 30),
    Case(91, 12, False, "all", refuses=True),
    Case(91, 12, False, "none", enough_free=50 << 30),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hours_and_ratios_decide_what_goes(case: Case) -> None:
    async def scenario() -> None:
        disk, clock = SizedDisk(), StepClock(START_MS - START_MS % (24 * HOUR_MS) + case.hour * HOUR_MS)
        settings = replace(TINY, deleteWhen="04;16", diskSpaceEnoughFree=case.enough_free, cleanFileForciblyEnable=case.forcibly)
        rig = await filled(disk, clock, settings=settings)
        disk.free = disk.total * (100 - case.used_percent) // 100
        rig.store.expiry._time = replace(rig.store.expiry._time, utc_offset_ms=lambda: case.utc_offset_h * HOUR_MS)
        if case.old:
            clock.now_ms += 48 * HOUR_MS + 1000
        segments = len(rig.log.segments)
        rig.head.kept = (1, rig.log.last.index)
        await rig.store.expiry._round()
        assert (len(rig.log.segments) < segments) == (case.goes == "all")
        if case.goes == "all":
            assert len(rig.log.segments) == max(1, segments - settings.deleteFileBatchMax)
        assert rig.store.is_low_on_space == rig.head.is_low == case.refuses
        if case.refuses:
            with pytest.raises(ReadOnlyError, match="diskSpaceWarningLevelRatio"):
                rig.store.prepare(batch_of("t", 0, [b"x"]))
            disk.free = disk.total
            await rig.store.expiry._round()
            assert not rig.head.is_low
            await send(rig, 200, 201)
        await rig.close()

    run(scenario)


def test_a_disk_must_be_crowded_for_a_while_before_messages_go_that_are_young() -> None:
    async def scenario() -> None:
        disk, clock = SizedDisk(), StepClock(START_MS)
        rig = await filled(disk, clock, settings=replace(TINY, deleteWhen="04", diskSpaceEnoughFree=0, cleanFileForciblyAfter=300_000))
        rig.head.kept, segments = (1, rig.log.last.index), len(rig.log.segments)
        for free_percent, later_ms in ((0, 0), (0, 290_000), (50, 5_000), (0, 10_000), (0, 299_000)):
            disk.free = disk.total * free_percent // 100
            clock.now_ms += later_ms
            await rig.store.expiry._round()
            assert rig.head.sheds == (free_percent == 0)
            assert len(rig.log.segments) == segments
        clock.now_ms += 2_000
        await rig.store.expiry._round()
        assert len(rig.log.segments) < segments
        await rig.close()

    run(scenario)


def test_a_crowded_disk_loses_only_young_messages_that_another_replica_keeps(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, clock = SizedDisk(), StepClock(START_MS)
        rig = await filled(disk, clock, settings=replace(TINY, deleteWhen="04", diskSpaceEnoughFree=0, deleteFileBatchMax=1000))
        disk.free = 0
        ends = [segment.first_index - 1 for segment in rig.log.segments[1:]]
        enough = (1, ends[3])
        for kept, first in (((0, 0), 1), ((2, ends[3]), 1), ((1, ends[0] - 1), 1), (enough, ends[3] + 1), (enough, ends[3] + 1)):
            rig.head.kept = kept
            await rig.store.expiry._round()
            assert rig.log.first_index == first
        assert any("no other replica is known that keeps the entries" in record.getMessage() for record in caplog.records)
        await rig.close()

    run(scenario)


def test_a_leader_takes_messages_while_it_may_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        disk, clock = SizedDisk(), StepClock(START_MS)
        rig = await filled(disk, clock, settings=replace(TINY, deleteWhen="04", diskSpaceEnoughFree=0, cleanFileForciblyEnable=False))
        monkeypatch.setattr(rig.head, "may_hand_over", lambda: True)
        disk.free = 0
        await rig.store.expiry._round()
        assert rig.head.is_low
        assert not rig.head.sheds
        await send(rig, 200, 201)
        clock.now_ms += HAND_OVER_MS
        with pytest.raises(ReadOnlyError, match="diskSpaceWarningLevelRatio"):
            rig.store.prepare(batch_of("t", 0, [b"x"]))
        await rig.close()

    run(scenario)


def test_reads_that_run_while_the_head_is_deleted_get_messages_or_the_range() -> None:
    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock, 400)
        outcomes = {"read": 0, "gone": 0}

        async def reader(offset: int) -> None:
            try:
                chunk = await rig.store.read(*KEY, offset, max_bytes=300)
            except OffsetOutOfRangeError as error:
                outcomes["gone"] += 1
                low = error.min_offset
            else:
                outcomes["read"] += 1
                low = rig.store.reader.bounds(*KEY)[0] if chunk.first_offset < offset else 0
            assert low <= 400

        async def readers() -> None:
            for offset in range(0, 400, 3):
                await asyncio.gather(reader(offset), reader(399 - offset))

        await asyncio.gather(rig.store.expiry.expire(0, 3), readers(), readers())
        await asyncio.gather(rig.store.expiry.expire(0), readers())
        assert min(outcomes.values()) > 50
        await rig.close()

    run(scenario)


class DamagedLog:
    """A bit of one entry of the log is flipped, until ``repair`` may flip it back."""

    def __init__(self, disk: CrashDisk, segment_pos: int, at: int) -> None:
        self._data = disk.files[log_path(segment_pos)].current
        self._at = at
        self.has_peer = False
        self._data[at] ^= 1

    async def repair(self, _damage: StorageDamagedError) -> bool:
        if self.has_peer:
            self._data[self._at] ^= 1
        return self.has_peer


def test_a_damaged_entry_at_the_end_of_a_segment_is_repaired_before_the_segment_goes() -> None:
    """Nobody else may ever read it here: without a repair the disk of this node would fill up."""

    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        log = DamagedLog(disk, 0, (await rig.log.find(rig.log.segments[1].first_index - 1)).end_pos - 20)
        rig.store.repair_with(log.repair)
        with pytest.raises(StorageDamagedError, match="checksum does not match"):
            await rig.store.expiry.expire(0)
        log.has_peer = True
        await rig.store.expiry.expire(0)
        assert len(rig.log.segments) == 1
        await assert_follows(rig, {KEY: 200})
        await rig.close()

    run(scenario)


def test_a_start_on_a_damaged_log_lets_queues_follow_its_head_as_soon_as_it_is_whole() -> None:
    """The head went before the snapshot that says so was written; queue files are damaged, and so is the log."""

    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        await rig.save()
        first_pos = (await rig.log.trim(rig.log.segments[2].first_index), rig.log.first_pos)[1]
        place = await rig.log.find(rig.log.segments[1].first_index - 3)
        disk = disk.after_kill()
        for path in queue_files(disk):
            disk.files[path].current[:20] = bytes(20)
        log = DamagedLog(disk, first_pos, place.end_pos - 20 - first_pos)
        rig = await StoreRig.open(disk, clock=clock, log=replace(LOG, verify_bytes=512))
        rig.store.repair_with(log.repair)
        with pytest.raises(StorageDamagedError, match="checksum does not match"):
            await rig.store.expiry._round()
        log.has_peer = True
        await rig.store.expiry._round()
        assert rig.store.reader.bounds(*KEY)[0] > 0
        await assert_follows(rig, {KEY: 200})
        await rig.close()

    run(scenario)


def test_a_deletion_counts_what_went_from_the_logs_beginning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower cuts the end of its log meanwhile: no segment of that was deleted as old."""

    async def scenario() -> None:
        disk, clock = CrashDisk(), StepClock(START_MS)
        rig = await filled(disk, clock)
        await send(rig, 200, 300)
        await rig.save()
        delete = rig.store.expiry._delete

        async def cut_meanwhile(end: int) -> None:
            await delete(end)
            rig.log.cut(rig.log.segments[-2].first_index)
            await rig.log.flush()

        monkeypatch.setattr(rig.store.expiry, "_delete", cut_meanwhile)
        rig.head.limit = rig.log.segments[2].first_index
        clock.now_ms += 2 * TINY.fileReservedTime
        before = [segment.start_pos for segment in rig.log.segments]
        done = await rig.store.expiry.expire()
        assert done.segments == before.index(rig.log.first_pos) > 0
        await rig.log.close()

    run(scenario)


class Disk:
    """So large, and full as a test says."""

    used = 0

    def __init__(self, total: int) -> None:
        self.total = total

    async def total_bytes(self) -> int:
        return self.total

    async def free_bytes(self) -> int:
        return self.total - self.used

    def room(self, settings: StoreSettings, limit: Callable[[], DiskLimit] = DiskLimit) -> DiskRoom:
        clock = SimpleNamespace(monotonic_ms=lambda: 0)
        replica = SimpleNamespace(low_on_space=lambda *_, **__: None, may_hand_over=lambda: False)
        room = DiskRoom(settings, cast(Any, SimpleNamespace(disk=self, clock=clock)), cast(Any, replica))
        room.limit = limit
        return room


def test_messages_are_taken_again_only_well_below_the_level_at_which_they_were_not() -> None:
    """A disk at the level would block and unblock producers with each segment."""

    async def scenario() -> list[bool]:
        disk, found = Disk(1000), []
        room = disk.room(StoreSettings(diskSpaceWarningLevelRatio=90, diskSpaceEnoughFree=0))
        for disk.used in (900, 901, 900, 891, 890, 900, 901):
            await room.look()
            found.append(room.refuses_messages)
        return found

    assert asyncio.run(scenario()) == [False, True, True, True, False, False, True]


def test_a_limit_of_free_bytes_counts_in_place_of_the_ratio_from_the_look_after_it_was_changed() -> None:
    async def scenario() -> list[bool]:
        disk, found, limits = Disk(1000 << 20), [], [DiskLimit()]
        room = disk.room(StoreSettings(), lambda: limits[-1])
        for free, limit in (
            (500, DiskLimit()),
            (500, DiskLimit(501 << 20)),
            (550, DiskLimit(501 << 20)),  # a tenth more is needed to clear it
            (552, DiskLimit(501 << 20)),
            (40, DiskLimit(30 << 20)),  # beyond the ratio, which does not count
            (40, DiskLimit(free_percent=5)),
            (40, DiskLimit(free_percent=3.6)),
            (40, DiskLimit(free_percent=5)),
            (40, DiskLimit()),
            (200, DiskLimit()),
        ):
            disk.used = disk.total - (free << 20)
            limits.append(limit)
            await room.look()
            found.append(room.refuses_messages)
        return found

    assert asyncio.run(scenario()) == [False, True, True, False, False, True, False, True, True, False]
