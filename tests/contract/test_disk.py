"""What every implementation of ``dledger.runtime.env.Disk`` and ``File`` must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dledger.runtime.env import WRITE_NOW_BYTES, After, Disk, FileCut, FileWrite

from .disk_worlds import WORLDS, DiskWorld

Run = Callable[[Callable[[Disk], Awaitable[None]]], None]


@pytest.fixture(params=WORLDS, ids=lambda make: make().name)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    world: DiskWorld = request.param()
    return lambda scenario: world.run(scenario, tmp_path)


def test_what_was_written_is_read(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("a/b/c", create=True)
        await file.pwrite(0, [b"one", bytearray(b"two"), memoryview(b"three")])
        await file.pwrite(3, [b"TWO"], sync=True)
        assert await file.pread(0, 100) == b"oneTWOthree"
        assert await file.pread(4, 3) == b"WOt"
        assert await file.size() == 11
        await file.close()
        again = await disk.open("a/b/c")
        assert await again.pread(0, 11) == b"oneTWOthree"
        await again.close()

    run(scenario)


def test_reading_is_shorter_only_at_the_end(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        assert await file.pread(0, 10) == b""
        await file.pwrite(0, [b"0123456789"])
        assert await file.pread(8, 10) == b"89"
        assert await file.pread(10, 10) == b""
        assert await file.pread(99, 10) == b""
        assert await file.pread(0, 0) == b""
        await file.close()

    run(scenario)


def test_several_places_are_read_in_one_step(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        await file.pwrite(0, [b"0123456789"])
        assert await file.pread_each([(2, 3), (0, 1), (8, 10), (99, 1), (4, 0)]) == [b"234", b"0", b"89", b"", b""]
        assert await file.pread_each([]) == []
        await file.close()

    run(scenario)


def test_writing_behind_the_end_leaves_zeros_between(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        await file.pwrite(5, [b"x"])
        assert await file.pread(0, 10) == b"\0\0\0\0\0x"
        await file.close()

    run(scenario)


def test_many_buffers_and_empty_ones_are_one_write(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        pieces = [b"", b"ab", b""] * 3000
        await file.pwrite(0, pieces, sync=True)
        assert await file.pread(0, 10_000) == b"ab" * 3000
        await file.pwrite(2, [])
        assert await file.size() == 6000
        await file.close()

    run(scenario)


def test_writes_keep_the_order_they_were_submitted_in(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        await asyncio.gather(*(file.pwrite(0, [bytes([number])], sync=number % 7 == 0) for number in range(100)))
        assert await file.pread(0, 1) == bytes([99])
        await file.close()

    run(scenario)


@pytest.mark.parametrize("fill", [True, False])
def test_allocating_grows_with_zeros_and_touches_nothing(run: Run, fill: bool) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        await file.pwrite(0, [b"abc"])
        await file.allocate(3_000_000, fill=fill)
        assert await file.size() == 3_000_000
        assert await file.pread(0, 5) == b"abc\0\0"
        assert not any(await file.pread(3, 3_000_000))
        await file.allocate(10, fill=fill)
        assert await file.size() == 3_000_000
        await file.close()

    run(scenario)


def test_truncating_shrinks_and_grows_with_zeros(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        await file.pwrite(0, [b"abcdef"])
        await file.truncate(2)
        await file.truncate(4)
        await file.fdatasync()
        assert await file.pread(0, 10) == b"ab\0\0"
        await file.close()

    run(scenario)


def test_opening_what_is_not_there(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            await disk.open("a/f")
        assert not await disk.exists("a/f")
        file = await disk.open("a/f", create=True)
        await file.pwrite(0, [b"kept"])
        await file.close()
        assert await disk.exists("a/f")
        file = await disk.open("a/f", create=True)
        assert await file.pread(0, 10) == b"kept"
        await file.close()
        await file.close()

    run(scenario)


def test_names_are_listed_sorted_and_folders_marked(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        assert await disk.list("x") == []
        for path in ("x/c", "x/a", "x/b/d"):
            await (await disk.open(path, create=True)).close()
        assert await disk.list("x") == ["a", "b/", "c"]
        assert await disk.list("") == ["x/"]
        assert await disk.list("x/a") == []  # no folder

    run(scenario)


def test_replacing_a_file_whole(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.write_atomic("c/f.json", b"first, longer")
        await disk.write_atomic("c/f.json", b"second")
        file = await disk.open("c/f.json")
        assert await file.pread(0, 100) == b"second"
        await file.close()
        assert await disk.list("c") == ["f.json"]

    run(scenario)


def test_renaming_and_removing(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.write_atomic("a/old", b"text")
        await disk.write_atomic("b/new", b"overwritten")
        await disk.rename("a/old", "b/new")
        assert not await disk.exists("a/old")
        file = await disk.open("b/new")
        assert await file.pread(0, 10) == b"text"
        await disk.remove("b/new")
        assert await disk.list("b") == []
        assert await file.pread(0, 10) == b"text", "an open file outlives its name"
        await file.close()
        with pytest.raises(FileNotFoundError):
            await disk.remove("b/new")

    run(scenario)


def test_space_and_names_for_humans(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        assert 0 < await disk.free_bytes() <= await disk.total_bytes()
        assert disk.local_path("commitlog/7").endswith("commitlog/7")

    run(scenario)


def test_measuring_a_folder(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        for path in ("a/one", "a/b/two", "three"):
            await disk.write_atomic(path, b"12345")
        assert (await disk.measure("a"))[:2] == (2, 10)
        assert (await disk.measure("a", below=False))[:2] == (1, 5)
        assert (await disk.measure("", below=False))[:2] == (1, 5)
        assert await disk.measure("not there") == (0, 0, 0)

    run(scenario)


def test_sizes_names_every_file_below_a_folder(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        for path, size in (("a/one", 3), ("a/b/two", 5), ("a/b/c/three", 0), ("ab/four", 7), ("five", 9)):
            await disk.write_atomic(path, bytes(size))
        assert await disk.sizes("a") == {"a/one": 3, "a/b/two": 5, "a/b/c/three": 0}
        assert await disk.sizes("a/b/") == {"a/b/two": 5, "a/b/c/three": 0}
        assert await disk.sizes("not there") == {}

    run(scenario)


def test_many_files_are_written_at_once(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        await disk.write_atomic("a/there", b"12345678")
        await disk.write_atomic("a/long", bytes(20))
        there = await disk.open("a/there")
        new = [FileWrite(f"a/{folder}/{number}", 0, b"new", 8) for folder in ("b", "c/d") for number in range(3)]
        await disk.write_files([*new, FileWrite("a/there", 2, b"xy", 8), FileWrite("a/long", 0, b"1", 4), FileWrite("a/there", 0, b"", 8)])
        await disk.write_files([FileWrite("a/b/0", 3, b"er", 8), FileWrite("a/behind", 4, b"z", 8)])
        await disk.write_files([])
        expected = {each.path: b"new" + bytes(5) for each in new}
        expected |= {"a/b/0": b"newer" + bytes(3), "a/there": b"12xy5678", "a/long": b"1" + bytes(3), "a/behind": bytes(4) + b"z"}
        assert await there.pread(0, 20) == expected["a/there"], "by a file that was open already"
        await there.close()
        for path, content in expected.items():
            file = await disk.open(path)
            assert await file.pread(0, 100) == content, path
            await file.close()
        assert await disk.sizes("a") == {path: len(content) for path, content in expected.items()}

    run(scenario)


def test_many_files_are_cut_at_once(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        async def content(path: str) -> bytes:
            file = await disk.open(path)
            try:
                return await file.pread(0, 1 << 20)
            finally:
                await file.close()

        long = b"x" * 70_000
        before = {
            "a/cut": b"12345678",
            "a/grown": b"123",
            "a/right": b"123" + bytes(5),
            "a/short": b"12",
            "a/far": b"123" + bytes(9000) + b"4",
        }
        before |= {"a/long": long, "a/zero": b""}
        for path, data in before.items():
            await disk.write_atomic(path, data)
        cuts = [FileCut(path, 3, 8) for path in ("a/cut", "a/grown", "a/right", "a/short")]
        await disk.cut_files([*cuts, FileCut("a/far", 3, 9004), FileCut("a/long", 1, 70_000), FileCut("a/zero", 0, 4)])
        for path in ("a/cut", "a/grown", "a/right"):
            assert await content(path) == b"123" + bytes(5), path
        assert await content("a/short") == b"12"
        assert await content("a/far") == b"123" + bytes(9001)
        assert await content("a/long") == b"x" + bytes(69_999)
        assert await content("a/zero") == bytes(4)
        with pytest.raises(FileNotFoundError):
            await disk.cut_files([FileCut("a/none", 0, 8)])
        await disk.cut_files([])

    run(scenario)


def test_many_files_are_removed_at_once(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        names = [f"a/{number}/0" for number in range(40)]
        await disk.write_files([FileWrite(name, 0, b"x", 8) for name in names])
        there = await disk.open(names[3])
        await disk.remove_files(names[:30])
        assert await there.pread(0, 1) == b"x", "by a file that was open already"
        await there.close()
        assert sorted(await disk.sizes("a")) == sorted(names[30:])
        with pytest.raises(FileNotFoundError):
            await disk.remove_files([names[3]])
        await disk.remove_files([])
        await disk.write_files([FileWrite(names[3], 4, b"y", 8)])
        again = await disk.open(names[3])
        assert await again.pread(0, 10) == bytes(4) + b"y", "nothing of what was there"
        await again.close()

    run(scenario)


def test_a_read_whose_caller_gave_up_does_not_disturb_the_close(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        await file.pwrite(0, [bytes(1 << 20)])
        reads = [asyncio.ensure_future(file.pread(0, 1 << 20)) for _ in range(20)]
        await asyncio.sleep(0)
        for read in reads:
            read.cancel()
        await file.close()
        await asyncio.gather(*reads, return_exceptions=True)
        other = await disk.open("g", create=True)
        await other.pwrite(0, [b"mine"])
        assert await other.pread(0, 10) == b"mine"
        await other.close()

    run(scenario)


def test_what_is_written_now_is_there_at_once_and_keeps_the_order(run: Run) -> None:
    """A disk may refuse it: then nothing is written."""

    async def scenario(disk: Disk) -> None:
        file, other = await disk.open("f", create=True), await disk.open("g", create=True)
        await file.pwrite(0, [b"0123456789"], sync=True)
        for number in range(40):
            text = b"%02d" % number
            if file.write_now(2, [text[:1], text[1:]], After(other, number * 2, text)):
                assert await file.pread(0, 10) == b"01" + text + b"456789"
                assert await other.pread(number * 2, 2) == text
            else:
                assert await file.pread(2, 2) != text
                await file.pwrite(2, [text], sync=True)
        await file.pwrite(2, [b"zz"])
        assert await file.pread(0, 5) == b"01zz4"
        await file.close()
        await other.close()

    run(scenario)


def test_nothing_is_written_now_before_what_was_submitted_nor_when_it_is_much(run: Run) -> None:
    async def scenario(disk: Disk) -> None:
        file = await disk.open("f", create=True)
        for _ in range(20):
            await file.pwrite(0, [b"old"], sync=True)
        assert not file.write_now(0, [bytes(WRITE_NOW_BYTES), b"x"])
        for number in range(20):
            submitted = asyncio.ensure_future(file.pwrite(0, [b"first"], sync=True))
            await asyncio.sleep(0)
            was_done = submitted.done()
            done = file.write_now(0, [b"then%d" % number])
            assert was_done or not done
            await submitted
        await file.close()

    run(scenario)
