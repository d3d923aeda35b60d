"""The offline check finds every kind of damage at its exact place; the dumps show what stands in a file."""

from __future__ import annotations

from collections.abc import Callable

from dledger.core.types import EntryKind
from dledger.log.dump import DumpedDamage, DumpedEntry, DumpedFiller, dump_entries
from dledger.log.log import Log
from dledger.log.report import DamageKind
from dledger.log.verify import verify_log
from dledger.runtime.env import Disk
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import TINY, add, findings, promise, run

FIRST = "00000000000000000000"


async def written(disk: Disk, count: int = 25) -> Log:
    log, _ = await Log.open(disk, TINY)
    promise(log, 1)
    add(log, count)
    await log.flush()
    return log


def spoil(disk: CrashDisk, path: str, change: Callable[[bytearray], None]) -> None:
    change(disk.files[path].current)


def test_a_sound_log_has_no_findings(disk: Disk) -> None:
    async def scenario() -> None:
        assert await findings(disk) == []
        log = await written(disk)
        await log.trim(12)
        await log.close()
        progress: list[int] = []
        assert [finding async for finding in verify_log(disk, on_progress=progress.append)] == []
        assert progress == sorted(progress)
        assert progress[-1] > 1000

    run(scenario)


def test_every_flipped_byte_of_the_log_is_found_in_its_file() -> None:
    async def scenario() -> None:
        source = CrashDisk()
        log = await written(source, 12)
        places = [await log.find(index) for index in range(1, 13)]
        await log.close()
        files = {path: bytes(content.current) for path, content in source.files.items()}
        for path in sorted(files):
            if path.startswith("hardstate"):
                continue
            data = files[path]
            start = int(path.split("/")[1])
            step = 1 if path.startswith("commitlog") else 5
            for at in range(0, len(data), step):
                disk = CrashDisk(files)
                spoil(disk, path, lambda content, at=at: content.__setitem__(at, content[at] ^ 0x10))
                found = await findings(disk)
                assert found, f"{path} byte {at}"
                assert all(finding.is_damage or finding.kind is DamageKind.TORN_TAIL for finding in found)
                assert any(finding.file == f"/crash/{path}" for finding in found), f"{path} byte {at}: {found[0]}"
                hit = [place.index for place in places if place.pos <= start + at < place.end_pos]
                if path.startswith("commitlog") and hit:
                    assert found[0].index == hit[0], f"{path} byte {at}: {found[0]}"
                    assert found[0].pos == next(place.pos for place in places if place.index == hit[0]) - start

    run(scenario)


def test_bad_and_missing_units_are_named_and_called_repairable() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        await (await written(disk)).close()
        units = f"index-units/{FIRST}"
        spoil(disk, units, lambda data: data.__setitem__(2 * 32 + 15, 99))
        spoil(disk, units, lambda data: data.__setitem__(slice(4 * 32, 5 * 32), bytes(32)))
        second = sorted(path for path in disk.files if path.startswith("index-units"))[1]
        del disk.files[second]
        found = await findings(disk)
        assert [(finding.file, finding.pos, finding.index, finding.kind) for finding in found[:2]] == [
            (f"/crash/{units}", 64, 3, DamageKind.BAD_UNIT),
            (f"/crash/{units}", 128, 5, DamageKind.BAD_UNIT),
        ]
        assert (found[2].file, found[2].kind) == (f"/crash/{second}", DamageKind.MISSING_UNITS)
        assert all(finding.is_damage for finding in found)
        log, _ = await Log.open(disk, TINY)
        await log.close()
        assert await findings(disk) == []

    run(scenario)


def test_the_hard_states_copies_are_checked() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        await (await written(disk)).close()
        whole = bytes(disk.files["hardstate"].current)
        spoil(disk, "hardstate", lambda data: data.__setitem__(4096 + 20, 0xEE))
        found = await findings(disk)
        assert [(finding.file, finding.pos, finding.kind) for finding in found] == [("/crash/hardstate", 4096, DamageKind.HARD_STATE_COPY)]
        for bad in (bytes(len(whole)), b"\x01" * len(whole)):
            spoil(disk, "hardstate", lambda data, bad=bad: data.__setitem__(slice(None), bad))
            assert DamageKind.HARD_STATE in [finding.kind for finding in await findings(disk)]
        del disk.files["hardstate"]
        assert [finding.kind for finding in await findings(disk)] == [DamageKind.HARD_STATE]

    run(scenario)


def test_a_torn_tail_is_told_from_damage() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await written(disk, 4)
        end = log.end_pos
        add(log, 2)
        await log.flush(sync=False)
        spoil(disk, f"commitlog/{FIRST}", lambda data: data.__setitem__(end + 55, 0))
        found = await findings(disk)
        assert [(finding.pos, finding.index, finding.kind, finding.is_damage) for finding in found] == [
            (end, 5, DamageKind.TORN_TAIL, False)
        ]

    run(scenario)


def test_checking_goes_on_behind_a_file_whose_units_are_gone_too() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        await (await written(disk, 40)).close()
        files = sorted(path for path in disk.files if path.startswith("commitlog"))
        spoil(disk, files[1], lambda data: data.__setitem__(slice(0, 48), b"\xee" * 48))
        del disk.files[files[1].replace("commitlog", "index-units")]
        spoil(disk, files[3], lambda data: data.__setitem__(slice(50, 60), bytes(10)))
        damaged = {finding.file for finding in await findings(disk)}
        assert f"/crash/{files[1]}" in damaged
        assert f"/crash/{files[3]}" in damaged
        assert f"/crash/{files[2]}" not in damaged

    run(scenario)


def test_dumped_entries_are_those_of_the_file() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await written(disk, 25)
        segment, after = log.segments[1], log.segments[2]
        places = [await log.find(index) for index in range(segment.first_index, after.first_index)]
        entries = await log.read(segment.first_index, 10_000, after.first_index - 1)
        await log.close()
        data = disk.files[f"commitlog/{segment.start_pos:020d}"].current
        dumped = list(dump_entries(memoryview(bytes(data)), segment.start_pos))
        assert isinstance(dumped[-1], DumpedFiller)
        assert (dumped[-1].pos, dumped[-1].size_bytes) == (places[-1].end_pos, after.start_pos - places[-1].end_pos)
        shown = [item for item in dumped if isinstance(item, DumpedEntry)]
        assert [(item.pos, item.header.index, item.header.term, item.header.magic) for item in shown] == [
            (place.pos, place.index, place.term, EntryKind.NORMAL) for place in places
        ]
        assert not any(item.body_fault or item.link_fault for item in shown)
        assert bytes(shown[0].body) == entries[0].body_bytes()
        some = dump_entries(memoryview(bytes(data)), segment.start_pos, places[2].pos - 5)
        assert [item.pos for item in some] == [item.pos for item in dumped[1:]]

    run(scenario)


def test_a_dump_names_damaged_bodies_broken_chains_and_headers() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        log = await written(disk, 25)
        places = [await log.find(index) for index in range(1, 5)]
        await log.close()
        data = bytearray(disk.files[f"commitlog/{FIRST}"].current)
        data[places[1].pos + 50 : places[1].pos + 52] = b"\xff\xfe"
        data[places[2].pos + 15] ^= 1  # the index of an entry: its checksum of the entries before no longer holds
        data[places[3].pos] = 0x7F
        first, second, third, last = dump_entries(memoryview(bytes(data)), 0)
        assert isinstance(first, DumpedEntry)
        assert (first.body_fault, first.link_fault) == ("", "")
        assert isinstance(second, DumpedEntry)
        assert (second.body_fault, second.link_fault) == ("the body's checksum does not match", "")
        assert isinstance(third, DumpedEntry)
        assert (third.body_fault, third.link_fault) == ("", "the chain checksum does not follow the entry before")
        assert isinstance(last, DumpedDamage)
        assert last.text.startswith("magic ")

    run(scenario)
