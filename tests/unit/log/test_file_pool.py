"""The pool of open files under readers that come and go side by side."""

from __future__ import annotations

import asyncio
from typing import Any

from dledger.log.segment import FilePool, InUse


class SlowFile:
    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True
        await asyncio.sleep(0)


class SlowDisk:
    def __init__(self) -> None:
        self.opened: list[SlowFile] = []

    async def open(self, _path: str, *, create: bool = False) -> SlowFile:
        await asyncio.sleep(0)
        self.opened.append(SlowFile())
        return self.opened[-1]


def test_readers_side_by_side_never_hold_a_closed_file_and_few_stay_open() -> None:
    disk: Any = SlowDisk()
    pool = FilePool(disk, 2)

    async def reader(first: int) -> None:
        for number in range(first, first + 40):
            async with InUse(pool, f"f{number * 7 % 11}") as file:
                for _ in range(number % 3 + 1):
                    await asyncio.sleep(0)
                    assert not file.closed  # type: ignore[attr-defined]

    async def main() -> None:
        await asyncio.gather(*[reader(first) for first in range(6)])
        assert sum(not file.closed for file in disk.opened) <= 2
        await pool.close()
        assert all(file.closed for file in disk.opened)

    asyncio.run(main())


def test_who_is_cancelled_while_idle_files_close_loses_none_of_them() -> None:
    disk: Any = SlowDisk()
    pool = FilePool(disk, 2)

    async def main() -> None:
        for path in ("idle0", "idle1"):
            await pool.release(await pool.acquire(path))
        handles = [await pool.acquire(f"used{number}") for number in range(3)]
        releasing = asyncio.ensure_future(pool.release(handles[0]))  # three too many, and three idle
        await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.wait([releasing])
        for handle in handles[1:]:
            await pool.release(handle)
        assert sum(not file.closed for file in disk.opened) == 2
        await pool.close()
        assert all(file.closed for file in disk.opened)

    asyncio.run(main())
