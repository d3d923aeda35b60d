"""What ``dledger verify --online`` compares: the bytes of the files, also where the log holds the same entries in memory."""

from __future__ import annotations

import pytest

from broker.api.log_segments import FoundDamage, check_segment, committed_end, segment_sums
from dledger.log.log import Log
from dledger_wire.errors import StorageDamagedError
from tests.unit.client.sim_rig import Rig, node_of
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import add, config, promise, run

FIRST = "commitlog/00000000000000000000"


def test_a_byte_flipped_under_a_running_node_is_seen_and_named_although_memory_has_the_entry() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log, _ = await Log.open(disk, config(segment_bytes=4096, cache_bytes=1 << 20))
        promise(log, 1)
        add(log, 60)
        await log.flush()
        assert len(log.segments) > 1
        upto = await committed_end(log, 60)
        sound = await segment_sums(log, upto)
        bad = log.locate(7)
        assert bad is not None
        disk.files[FIRST].current[bad.pos + 50] ^= 1
        found = await segment_sums(log, upto)
        assert [one.start_pos for one, other in zip(sound, found, strict=True) if one != other] == [0]
        with pytest.raises(StorageDamagedError) as caught:
            await check_segment(log, 0, upto)
        assert caught.value.details == {"file": f"/crash/{FIRST}", "pos": str(bad.pos), "index": "7"}
        await check_segment(log, log.segments[1].start_pos, upto)
        seen = FoundDamage()
        assert await seen.still_damaged(log) == []
        seen.add(caught.value)
        assert await seen.still_damaged(log) == [caught.value.message]
        disk.files[FIRST].current[bad.pos + 50] ^= 1
        assert await seen.still_damaged(log) == []
        await log.close()

    run(scenario)


def test_what_is_committed_before_the_leaders_own_disk_has_it_is_compared_too() -> None:
    async def scenario() -> None:
        log, _ = await Log.open(CrashDisk(), config(segment_bytes=4096, cache_bytes=1 << 20))
        promise(log, 1)
        add(log, 5)
        await log.flush()
        add(log, 5)
        upto = await committed_end(log, 10)
        early = await segment_sums(log, upto)
        await check_segment(log, 0, upto)
        await log.flush()
        assert await segment_sums(log, upto) == early
        await log.close()

    run(scenario)


class Turns:
    """Counts the bytes that wait for a turn."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def take(self, size_bytes: int, _most_s: float = 0.0) -> None:
        self.sizes.append(size_bytes)


def test_checksums_take_a_turn_for_each_piece() -> None:
    async def scenario() -> None:
        log, _ = await Log.open(CrashDisk(), config(segment_bytes=4096, cache_bytes=1 << 20))
        promise(log, 1)
        add(log, 60)
        await log.flush()
        upto, sums, checked = await committed_end(log, 60), Turns(), Turns()
        found = await segment_sums(log, upto, sums.take)
        assert sums.sizes == [one.size_bytes for one in found]
        await check_segment(log, log.segments[0].start_pos, upto, checked.take)
        assert sum(checked.sizes) == (await log.find(log.segments[1].first_index - 1)).end_pos
        await log.close()

    run(scenario)


def test_a_node_makes_checksums_in_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    async def scenario(rig: Rig) -> None:
        await rig.topic("t", queues=1)
        log, raft = node_of(rig, rig.master).raft.log, node_of(rig, rig.master).raft
        monkeypatch.setattr(raft.bulk, "take", turns.take)
        upto = await committed_end(log, raft.commit_index)
        async with rig.admin() as admin:
            await admin.compare_replicas()
        assert sum(turns.sizes) >= upto > 0

    Rig().run(scenario)
