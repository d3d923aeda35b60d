"""Appending to the log and syncing it: MB/s and latency by entry size, into filled blocks and into fresh ones.

    .venv/bin/python -m benchmarks.log_append [--folder DIR] [--megabytes N]

One entry a flush is the latency of a lone write; "joined" flushes 4 MiB at a time, as a leader under load does.  The bare file lines are
the same writes without a log: what the disk itself can do, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from dledger.core.types import EntryKind
from dledger.log.config import LogConfig
from dledger.log.log import Log
from dledger.runtime.real_disk import RealDisk

JOINED_BYTES = 4 << 20


def show(name: str, size: int, seconds: list[float], size_bytes: int) -> None:
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3
    print(f"{name:<34} {size:>9} B {size_bytes / sum(seconds) / 1e6:>8.1f} MB/s   p50 {p50:7.3f} ms   p99 {p99:7.3f} ms", flush=True)


async def timed(count: int, once: Callable[[int], Awaitable[None]]) -> list[float]:
    seconds = []
    for number in range(count):
        start = time.perf_counter()
        await once(number)
        seconds.append(time.perf_counter() - start)
    return seconds


async def bare_file(disk: RealDisk, size: int, count: int, *, fill: bool) -> None:
    path = f"bare-{size}-{fill}"
    file = await disk.open(path, create=True)
    await file.allocate(size * count, fill=fill)
    data = bytes(size)
    show(
        f"bare file, {'filled' if fill else 'fallocated'}",
        size,
        await timed(count, lambda number: file.pwrite(number * size, [data], sync=True)),
        size * count,
    )
    await file.close()
    await disk.remove(path)


async def log_entries(folder: Path, size: int, count: int, *, window_bytes: int, joined: bool, strict: bool = False) -> None:
    disk = RealDisk(str(folder / "log"))
    config = LogConfig(fill_window_bytes=window_bytes, units_sync_delay_ms=0 if strict else 20)
    log, _report = await Log.open(disk, config)
    log.save_hard_state(1, None)
    await log.flush()
    file = await disk.open("commitlog/00000000000000000000")
    while window_bytes and await file.size() < window_bytes:  # noqa: ASYNC110 - the log does not tell when it has filled
        await asyncio.sleep(0.05)
    await file.close()
    each = max(1, JOINED_BYTES // size) if joined else 1
    body = bytes(size)

    async def once(_number: int) -> None:
        for _ in range(each):
            log.append(log.encode(1, EntryKind.NORMAL, [body]))
        await log.flush()

    rounds = max(1, count // each)
    name = f"log{', joined' if joined else ''}{', filled' if window_bytes else ', fresh blocks'}{', units synced' if strict else ''}"
    show(name, size, await timed(rounds, once), rounds * each * size)
    await log.close()
    disk.close()
    shutil.rmtree(folder / "log")


async def start_up(folder: Path) -> None:
    """How long opening takes: a fresh folder, and one with a gigabyte of log."""
    disk = RealDisk(str(folder / "log"))
    start = time.perf_counter()
    log, _report = await Log.open(disk)
    print(f"open a fresh folder: {(time.perf_counter() - start) * 1e3:.1f} ms")
    body = bytes(256 << 10)
    log.save_hard_state(1, None)
    for _ in range(256):
        for _ in range(16):
            log.append(log.encode(1, EntryKind.NORMAL, [body]))
        await log.flush()
    await log.close()
    for verify_bytes in (256 << 20, None):
        start = time.perf_counter()
        log, report = await Log.open(disk, LogConfig(verify_bytes=verify_bytes))
        print(f"open 1 GiB of log, {report.entries_checked} of 4096 entries checked: {(time.perf_counter() - start) * 1e3:.0f} ms")
        start = time.perf_counter()
        done, index = 0, 1
        while index <= log.last.index:
            entries = await log.read(index, 4 << 20, log.last.index)
            index = entries[-1].index + 1
            done += sum(entry.size_bytes for entry in entries)
        print(f"read it all: {done / (time.perf_counter() - start) / 1e6:.0f} MB/s")
        await log.close()
    disk.close()
    shutil.rmtree(folder / "log")


async def main(folder: Path, megabytes: int) -> None:
    total = megabytes << 20
    window = min(256 << 20, total)
    for size in (1 << 10, 16 << 10, 256 << 10, 1 << 20):
        count = min(2000, total // size)
        disk = RealDisk(str(folder))
        for fill in (True, False):
            await bare_file(disk, size, count, fill=fill)
        disk.close()
        await log_entries(folder, size, count, window_bytes=window, joined=False)
        await log_entries(folder, size, count, window_bytes=window, joined=False, strict=True)
        await log_entries(folder, size, count, window_bytes=0, joined=False)
        await log_entries(folder, size, total // size, window_bytes=window, joined=True)
        await log_entries(folder, size, total // size, window_bytes=0, joined=True)
    await start_up(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    parser.add_argument("--megabytes", type=int, default=192, help="how much each line writes at most")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        uvloop.run(main(Path(made), arguments.megabytes))
