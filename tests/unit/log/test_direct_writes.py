"""Writes around the page cache: whatever their places and sizes, the file reads as if they were ordinary ones."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path

import pytest

from dledger.runtime.real_direct import BLOCK, STAGE_BYTES, open_direct
from dledger.runtime.real_disk import RealDisk
from tests import needs


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    probe = tmp_path / "probe"
    probe.touch()
    fd = open_direct(str(probe))
    if fd is None:
        needs.lacking("no direct writes on this file system")
    os.close(fd)
    return RealDisk(str(tmp_path / "data"), direct_folders=("log",))


class Twin:
    """What an ordinary file would hold; bytes never written are zeros."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, pos: int, data: bytes) -> None:
        self.data.extend(bytes(max(0, pos + len(data) - len(self.data))))
        self.data[pos : pos + len(data)] = data

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))


def assert_same(found: bytes, twin: Twin) -> None:
    assert found[: len(twin.data)] == twin.data
    assert len(found) >= len(twin.data)
    assert not any(found[len(twin.data) :])


@pytest.mark.parametrize("seed", range(12))
def test_any_writes_read_back_like_ordinary_ones(disk: RealDisk, seed: int) -> None:
    draw = random.Random(seed)

    async def main() -> None:
        twin = Twin()
        file = await disk.open("log/1", create=True)
        end = 0
        for _ in range(60):
            action = draw.random()
            if action < 0.70:  # append, as a log does
                pieces = [draw.randbytes(draw.choice((1, 7, 48, 1300, BLOCK, 70_000))) for _ in range(draw.randint(1, 5))]
                await file.pwrite(end, pieces, sync=draw.random() < 0.3)
                twin.write(end, b"".join(pieces))
                end += sum(map(len, pieces))
            elif action < 0.80:  # anywhere
                pos, data = draw.randrange(end + 1), draw.randbytes(draw.randint(1, 9000))
                await file.pwrite(pos, [data])
                twin.write(pos, data)
                end = max(end, pos + len(data))
            elif action < 0.88:
                end = draw.randrange(end + 1)
                await file.truncate(end)
                twin.truncate(end)
            elif action < 0.94:
                await file.allocate(len(twin.data) + draw.randrange(200_000), fill=draw.random() < 0.7)
            else:
                await file.close()
                file = await disk.open("log/1")
            assert_same(await file.pread(0, len(twin.data) + (1 << 20)), twin)
        await file.close()

    asyncio.run(main())
    disk.close()


@pytest.mark.parametrize("seed", range(6))
def test_damaged_bytes_are_put_right_through_another_handle_while_the_log_is_appended_to(disk: RealDisk, tmp_path: Path, seed: int) -> None:
    """As repair does it, also in the block that is not whole yet: the appender writes that block anew from what it remembers."""
    draw = random.Random(seed)

    async def main() -> None:
        twin = Twin()
        appender = await disk.open("log/1", create=True)
        fd = os.open(tmp_path / "data" / "log" / "1", os.O_RDWR)

        async def mend(pos: int, size: int) -> None:
            other = await disk.open("log/1")
            await other.pwrite(pos, [bytes(twin.data[pos : pos + size])], sync=True)
            await other.close()

        for _ in range(40):
            data = draw.randbytes(draw.choice((48, 900, 5000)))
            pos = len(twin.data)
            await appender.pwrite(pos, [data], sync=True)
            twin.write(pos, data)
            at = max(0, len(twin.data) - draw.choice((1, 30, 3000, 20_000)))
            os.pwrite(fd, bytes([twin.data[at] ^ 0x10]), at)
            os.fsync(fd)
            data, pos = draw.randbytes(draw.choice((48, 900, 5000))), len(twin.data)
            first = max(0, at - draw.randrange(100))
            await asyncio.gather(*draw.sample((mend(first, at + 1 - first), appender.pwrite(pos, [data], sync=True)), 2))
            twin.write(pos, data)
            assert_same(await appender.pread(0, len(twin.data) + (1 << 20)), twin)
        await appender.close()
        os.close(fd)

    asyncio.run(main())
    disk.close()


def test_writes_larger_than_the_stage(disk: RealDisk) -> None:
    async def main() -> None:
        file = await disk.open("log/1", create=True)
        data = random.Random(1).randbytes(2 * STAGE_BYTES + 12_345)
        await file.pwrite(1000, [data[:5], data[5:]], sync=True)
        found = await file.pread(0, len(data) + 2000)
        assert found[1000 : 1000 + len(data)] == data
        assert not any(found[:1000])
        await file.pwrite(1000 + 2 * STAGE_BYTES, [b"x" * 100])
        assert (await file.pread(1000 + 2 * STAGE_BYTES - 3, 106))[3:103] == b"x" * 100
        await file.close()

    asyncio.run(main())
    disk.close()


def test_a_block_behind_a_write_keeps_what_was_there_before_a_start(disk: RealDisk) -> None:
    async def main() -> None:
        file = await disk.open("log/1", create=True)
        await file.pwrite(0, [b"a" * 10_000])
        await file.close()
        file = await disk.open("log/1")
        await file.pwrite(100, [b"b" * 50])
        assert await file.pread(0, 10_000) == b"a" * 100 + b"b" * 50 + b"a" * 9850
        await file.close()

    asyncio.run(main())
    disk.close()


def test_a_file_system_that_takes_no_direct_writes_is_written_the_ordinary_way(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _data: memoryview, _pos: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    async def main() -> None:
        file = await disk.open("log/1", create=True)
        await file.pwrite(0, [b"a" * 100])
        with monkeypatch.context() as patched:
            patched.setattr("dledger.runtime.real_direct.os.pwrite", refuse)
            await file.pwrite(100, [b"b" * 5000], sync=True)
        await file.pwrite(5100, [b"c" * 10])
        await file.allocate(20_000, fill=True)
        assert (await file.pread(0, 6000))[:5110] == b"a" * 100 + b"b" * 5000 + b"c" * 10
        await file.close()

    asyncio.run(main())
    disk.close()
