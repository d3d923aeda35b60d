"""Index units have no checksum: where one says something else than its entry, the entry is believed and the unit written anew."""

from __future__ import annotations

import pytest

from dledger.log.log import Log
from dledger_wire.errors import StorageDamagedError
from dledger_wire.layout import INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC_CONFIG
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.log.log_rig import add, bodies, config, everything, findings, promise, run

TERMS = ((1, 20), (2, 3), (4, 20), (5, 60))
RUNS = [(1, 1), (2, 21), (4, 24), (5, 44)]


async def written() -> tuple[CrashDisk, list[tuple[int, int, bytes]]]:
    disk = CrashDisk()
    log, _ = await Log.open(disk, config(segment_bytes=4096))
    promise(log, 5)
    entries = [entry for term, count in TERMS for entry in add(log, count, term)]
    await log.flush()
    assert log.terms() == RUNS
    await log.close()
    return disk, bodies(entries)


def unit(disk: CrashDisk, index: int) -> tuple[str, int]:
    """File and place of an entry's unit."""
    for path in sorted(path for path in disk.files if path.startswith("index-units/")):
        data = bytes(disk.files[path].current)
        for at in range(0, len(data), INDEX_UNIT_SIZE):
            if INDEX_UNIT.unpack_from(data, at)[3] == index:
                return path, at
    raise AssertionError(f"no unit of entry {index}")


def change(disk: CrashDisk, index: int, **fields: int) -> None:
    path, at = unit(disk, index)
    data = bytearray(disk.files[path].current)
    names = ("kind", "pos", "size", "index", "term")
    values = dict(zip(names, INDEX_UNIT.unpack_from(data, at), strict=True)) | fields
    INDEX_UNIT.pack_into(data, at, *values.values())
    disk.files[path].current = data
    disk.files[path].durable = bytearray(data)


@pytest.mark.parametrize("verify_bytes", [0, 300, 1500, None])
@pytest.mark.parametrize(
    ("index", "term"), [(20, 2), (21, 1), (22, 1), (23, 4), (23, 3), (24, 2), (24, 3), (43, 5), (44, 4), (1, 0), (2, 0), (40, 5), (21, 3)]
)
def test_a_wrong_term_in_an_old_unit_is_found_at_the_start(index: int, term: int, verify_bytes: int | None) -> None:
    async def scenario() -> None:
        disk, wanted = await written()
        change(disk, index, term=term)
        log, report = await Log.open(disk, config(segment_bytes=4096, verify_bytes=verify_bytes))
        assert report.is_clean
        assert report.units_rewritten == 1
        assert log.terms() == RUNS
        assert bodies(await everything(log)) == wanted
        await log.close()
        assert await findings(disk) == []

    run(scenario)


@pytest.mark.parametrize("index", [5, 22, 60])
def test_a_wrong_kind_or_size_found_by_a_read_is_put_right(index: int) -> None:
    async def scenario() -> None:
        disk, wanted = await written()
        log, _ = await Log.open(disk, config(segment_bytes=4096, verify_bytes=0, places_limit=4))
        change(disk, index, kind=MAGIC_CONFIG)
        assert bodies(await log.read(index, 0, index)) == [wanted[index - 1]]
        await log.close()
        assert await findings(disk) == []

    run(scenario)


def test_an_entry_of_another_term_than_the_logs_is_damage_whatever_its_unit_says() -> None:
    async def scenario() -> None:
        disk, _wanted = await written()
        log, _ = await Log.open(disk, config(segment_bytes=4096, verify_bytes=0, places_limit=4))
        path = "commitlog/00000000000000000000"
        assert len(log.segments) > 1
        data = disk.files[path].current
        place = await log.find(5)
        other, _report = await Log.open(CrashDisk(), config(segment_bytes=4096))
        promise(other, 5)
        forged = [*add(other, 4, 1), *add(other, 1, 2)][-1]
        data[place.pos : place.end_pos] = b"".join(bytes(buffer) for buffer in forged.buffers)
        with pytest.raises(StorageDamagedError, match="term 2"):
            await log.read(5, 0, 5)
        await log.close()
        await other.close()

    run(scenario)
