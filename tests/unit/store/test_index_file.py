"""Index files byte for byte: written by hand from RocketMQ's layout, in both directions."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from dledger.log.segment import FilePool
from dledger_wire.batches.batch import BatchView
from dledger_wire.java_hash import key_hash
from store.key_index.index_file import DamagedIndexError, Geometry, IndexFile, IndexMark, Window, created_ms_of, file_name
from store.key_index.index_keys import KeyCollector, KeyColumns
from store.key_index.index_writer import OpenIndexFile, link_entries
from tests.unit.log.crash_disk import CrashDisk
from tests.unit.store.store_rig import batch_of, run

NAME = "20231114221320000"
BEGIN_MS = 1_700_000_000_000
GEOMETRY = Geometry(slots=5, entries=8)
# Five keys: hashes 12, 7, 12, 4, 22 in slots 2, 2, 2, 4, 2, of messages at 1000, 1000, 2000, 3000, 4000.
HASHES, POSITIONS, SECONDS = [12, 7, 12, 4, 22], [1000, 1000, 2000, 3000, 4000], [0, 0, 1, 2, 70]
PREVIOUS = [0, 1, 2, 0, 3]


def by_hand() -> bytes:
    header = struct.pack(">qqqqii", BEGIN_MS, BEGIN_MS + 70_500, 1000, 4000, 2, 6)
    slots = struct.pack(">5i", 0, 0, 5, 0, 4)
    entries = [struct.pack(">iqii", *row) for row in zip(HASHES, POSITIONS, SECONDS, PREVIOUS, strict=True)]
    return header + slots + bytes(20) + b"".join(entries) + bytes(2 * 20)


def keys(times: list[int]) -> KeyColumns:
    return KeyColumns(np.array(HASHES, np.int32), np.array(POSITIONS), np.array(times), np.full(5, 9))


async def found(file: IndexFile, key: int, **window: int) -> list[int]:
    return [pos async for pos in file.find(key, Window(**window))]


def test_layout_by_hand() -> None:
    assert len(by_hand()) == 40 + 5 * 4 + 8 * 20 == GEOMETRY.file_bytes
    assert Geometry(5_000_000, 20_000_000).file_bytes == 420_000_040


@pytest.mark.parametrize("cuts", [[5], [1, 4], [2, 1, 2], [1, 1, 1, 1, 1]])
def test_what_is_added_in_any_pieces_is_written_as_by_hand(cuts: list[int]) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        pool = FilePool(disk, 4)
        file = OpenIndexFile(pool, GEOMETRY, IndexMark(NAME, 9, 1000))
        await file.create()
        columns, at = keys([BEGIN_MS, BEGIN_MS, BEGIN_MS + 1999, BEGIN_MS + 2000, BEGIN_MS + 70_500]), 0
        for count in cuts:
            assert file.add(columns.part(at, at + count)) == count
            at += count
            assert await found(file, 12) == ([2000, 1000] if at >= 3 else [1000])
            await file.flush()
        sealed = await file.seal()
        assert bytes(disk.files[f"index/{NAME}"].current) == by_hand()
        assert sealed.mark.header() == by_hand()[:40]
        await sealed.check_header()

    run(scenario)


def test_a_file_by_hand_is_read() -> None:
    async def scenario() -> None:
        mark = IndexMark(NAME, 9, 1000, 0, 5, 2, BEGIN_MS, BEGIN_MS + 70_500, 4000)
        file = IndexFile(FilePool(CrashDisk({f"index/{NAME}": by_hand()}), 4), GEOMETRY, mark)
        await file.check_header()
        assert [await found(file, key) for key in (12, 7, 4, 22, 2, 0, 9)] == [[2000, 1000], [1000], [3000], [4000], [], [], []]
        assert await found(file, 12, before_pos=2000) == [1000]
        assert await found(file, 12, end_ms=BEGIN_MS + 999) == [1000]
        assert await found(file, 12, begin_ms=BEGIN_MS + 1999) == [2000]
        assert await found(file, 12, begin_ms=BEGIN_MS + 2000) == []

    run(scenario)


def test_a_window_far_back_in_a_long_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.key_index.index_file.WALK_ENTRIES", 5)
    monkeypatch.setattr("store.key_index.index_file.SCAN_ENTRIES", 7)
    count = 100

    async def scenario() -> None:
        file = OpenIndexFile(FilePool(CrashDisk(), 4), Geometry(3, 200), IndexMark(NAME, 9, 1000))
        await file.create()
        numbers = np.arange(count)
        hashes = np.where(numbers % 3, 3, 6).astype(np.int32)  # one chain of two keys
        columns = KeyColumns(hashes, 1000 + 10 * numbers, BEGIN_MS + 500 * numbers, np.full(count, 9))
        assert file.add(columns.part(0, 60)) == 60
        await file.flush()
        assert file.add(columns.part(60, count)) == 40  # these are in memory only
        for first, last in ((0, 99), (0, 20), (30, 40), (10, 70), (55, 65), (98, 99), (0, 0)):
            by_time = await found(file, 6, begin_ms=BEGIN_MS + 500 * first, end_ms=BEGIN_MS + 500 * last)
            by_place = await found(file, 6, before_pos=1000 + 10 * last + 1)
            wanted = [1000 + 10 * number for number in range(last, -1, -1) if not number % 3]
            assert by_place == wanted
            # Seconds are rounded down: one of a second that the window only touches may come too.
            low, high = 1000 + 10 * first, 1000 + 10 * last
            assert [pos for pos in by_time if low <= pos <= high] == [pos for pos in wanted if pos >= low]
            assert all(low - 20 <= pos <= high + 10 for pos in by_time)

    run(scenario)


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (40 + 2 * 4, 7, "a chain that leads to entry 7; expected one below 6"),
        (40 + 20 + 5 * 20 + 16, 5, "a chain that leads to entry 5; expected one below 5"),
        (40 + 20 + 3 * 20, 13, "entry 3 is not of slot 2"),
        (40 + 20 + 3 * 20, -13, "entry 3 is not of slot 2"),
    ],
)
def test_a_chain_that_cannot_be_is_damage(at: int, value: int, text: str) -> None:
    async def scenario() -> None:
        data = bytearray(by_hand())
        struct.pack_into(">i", data, at, value)
        mark = IndexMark(NAME, 9, 1000, 0, 5, 2, BEGIN_MS, BEGIN_MS + 70_500, 4000)
        file = IndexFile(FilePool(CrashDisk({f"index/{NAME}": bytes(data)}), 4), GEOMETRY, mark)
        with pytest.raises(DamagedIndexError, match=text):
            await found(file, 12)

    run(scenario)


def test_names_are_times_in_utc() -> None:
    assert file_name(BEGIN_MS) == NAME
    assert file_name(BEGIN_MS + 7) == "20231114221320007"
    assert created_ms_of("20231114221320007") == BEGIN_MS + 7
    for name in ("2023111422132000", "20231314221320000", "2023111422132000x", "00000000000000000", ".gitignore", "²0231114221320000"):
        assert created_ms_of(name) is None


def test_linking_is_what_a_loop_does() -> None:
    draw = np.random.default_rng(5)
    for count, width in ((1, 1), (50, 3), (400, 1000), (3000, 40), (2000, 1)):
        places = draw.integers(0, width, count).astype(np.int32)
        vectorised, looped = np.zeros(width, np.int32), [0] * width
        expected = []
        for number, slot in enumerate(places.tolist(), 1):
            expected.append(looped[slot])
            looped[slot] = number
        half = count // 2
        previous = [link_entries(vectorised, places[:half], 1), link_entries(vectorised, places[half:], half + 1)]
        assert np.concatenate(previous).tolist() == expected
        assert vectorised.tolist() == looped


def test_keys_of_a_batch_stand_in_the_order_of_its_messages() -> None:
    def columns(*batches: bytes) -> list[tuple[int, int, int]]:
        collector = KeyCollector()
        for number, batch in enumerate(batches):
            collector.add(number + 7, 1000 * number, BatchView(memoryview(batch)))
        taken = collector.take()
        assert len(taken) == len(taken.positions) == len(taken.times) == len(taken.entries)
        return list(zip(taken.hashes.tolist(), taken.positions.tolist(), taken.entries.tolist(), strict=True))

    several = batch_of("t", 0, [b"1", b"22", b"3"], unique=["A", "", "C"], keys=["k l", "m", ""])
    alone = batch_of("t", 0, [b"1"], unique=["D"], keys=["k"])
    nameless = batch_of("t", 0, [b"1", b"2"])
    starts = [int(place) for place in BatchView(memoryview(several)).positions]
    first = [("A", 0), ("k", 0), ("l", 0), ("m", 1), ("C", 2)]
    expected = [(key_hash("t", key), starts[owner], 7) for key, owner in first]
    assert columns(several) == expected
    place = 1000 + BatchView(memoryview(alone)).frames_at
    expected += [(key_hash("t", "D"), place, 8), (key_hash("t", "k"), place, 8)]
    assert columns(several, alone, nameless) == expected
    assert columns(nameless) == []
