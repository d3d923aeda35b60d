"""What only a disk of a real machine has: descriptors, and threads that go on when their caller is gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger.runtime.real_disk import RealDisk


def open_descriptors(folder: Path) -> list[str]:
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [target for target in targets if target.startswith(str(folder))]


@pytest.mark.parametrize("steps", range(3))
def test_a_cancelled_open_leaves_no_descriptor(tmp_path: Path, steps: int) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("log",))
        await (await disk.open("log/1", create=True)).close()
        for path in ("log/1", "log/2"):
            opening = asyncio.ensure_future(disk.open(path))
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
        for _ in range(2):  # behind everything that was submitted
            await disk.exists("log/1")
        assert open_descriptors(tmp_path) == []
        disk.close()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["pwritev", "pread", "ftruncate", "posix_fallocate"])
def test_an_error_of_a_descriptor_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        file = await disk.open("log/1", create=True)

        def fails(*_arguments: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, call, fails)
        steps = {
            "pwritev": lambda: file.pwrite(0, [b"x"]),
            "pread": lambda: file.pread(0, 1),
            "ftruncate": lambda: file.truncate(3),
            "posix_fallocate": lambda: file.allocate(3, fill=False),
        }
        with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}/log/1'"):
            await steps[call]()
        disk.close()

    asyncio.run(main())


def test_what_the_file_system_keeps_for_root_counts_neither_as_used_nor_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ext4 of 1000 blocks, 60 used, 50 kept for root: df says 60 of 950."""
    facts = SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bfree=940, f_bavail=890)
    monkeypatch.setattr(os, "statvfs", lambda _path: facts)

    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        free, total = await disk.free_bytes(), await disk.total_bytes()
        assert (free, total) == (890 * 4096, 950 * 4096)
        disk.close()

    asyncio.run(main())
