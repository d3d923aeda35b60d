"""What only a disk of a real machine has: descriptors, and threads that go on when their caller is gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger.runtime import real_sending
from dledger.runtime.env import SyncFailedError
from dledger.runtime.real_blocked_time import BlockedTime
from dledger.runtime.real_disk import RealDisk
from dledger.runtime.sync_pace import FAST_S, LOOKED_AT
from tests.waiting import LIMIT_S


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
        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "pwritev": lambda: file.pwrite(0, [b"x"]),
            "pread": lambda: file.pread(0, 1),
            "ftruncate": lambda: file.truncate(3),
            "posix_fallocate": lambda: file.allocate(3, fill=False),
        }
        with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}/log/1'"):
            await steps[call]()
        disk.close()

    asyncio.run(main())


@pytest.mark.parametrize("change", ["write", "truncate", "allocate"])
def test_a_change_of_a_file_that_may_only_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    real_open = os.open

    def open_as_a_reader(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real_open(path, flags, mode)

    async def main() -> None:
        path = tmp_path / "hardstate"
        path.write_bytes(b"x" * 100)
        monkeypatch.setattr(os, "open", open_as_a_reader)
        file = await RealDisk(str(tmp_path)).open("hardstate")
        changes: dict[str, Callable[[], Awaitable[None]]] = {
            "write": lambda: file.pwrite(0, [b"y"]),
            "truncate": lambda: file.truncate(1),
            "allocate": lambda: file.allocate(1 << 20, fill=True),
        }
        with pytest.raises(PermissionError, match=f"Permission denied: '{path}'"):
            await changes[change]()

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


async def fast_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, blocked_s: list[float]) -> RealDisk:
    """A disk whose syncs took as long as the last of ``blocked_s`` says."""
    monkeypatch.setattr(BlockedTime, "so_far_s", lambda _self: blocked_s[-1])
    disk = RealDisk(str(folder), direct_folders=("log",))
    file = await disk.open("log/0", create=True)
    for _ in range(LOOKED_AT):
        assert not file.write_now(0, [b"before it is known how fast the disk is"])
        await file.pwrite(0, [b"known"], sync=True)
    await file.close()
    return disk


def test_a_fast_disk_writes_on_the_loop_and_one_that_becomes_slow_by_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        blocked_s = [FAST_S / 2]
        disk = await fast_disk(tmp_path, monkeypatch, blocked_s)
        file = await disk.open("log/1", create=True)
        assert file.write_now(0, [b"abc", b"def"])
        blocked_s.append(FAST_S * 2)
        slow = 0
        while file.write_now(3, [b"%d" % slow]):
            slow += 1
        assert 1 <= slow <= 3
        blocked_s.append(FAST_S / 2)
        while not file.write_now(6, [b"!"]):
            await file.pwrite(0, [b"abc0ef"], sync=True)
        assert await file.pread(0, 7) == b"abc0ef!"
        disk.close()

    asyncio.run(main())


def test_a_write_on_the_loop_fails_as_one_by_the_thread_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = await fast_disk(tmp_path, monkeypatch, [0.0])
        file = await disk.open("log/1", create=True)

        def fails(*_arguments: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fails)
        with pytest.raises(SyncFailedError, match=f"Input/output error: '{tmp_path}/log/1'"):
            file.write_now(0, [b"x"])
        disk.close()

    asyncio.run(main())


def test_nothing_is_written_on_the_loop_while_the_thread_has_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = await fast_disk(tmp_path, monkeypatch, [0.0])
        file = await disk.open("log/1", create=True)
        gate = threading.Event()
        held = asyncio.ensure_future(disk.writer_of("log/1").submit(gate.wait))
        await asyncio.sleep(0)
        writing = asyncio.ensure_future(file.pwrite(0, [b"thread"], sync=True))
        assert not file.write_now(0, [b"loop"])
        gate.set()
        await held
        await writing
        assert file.write_now(0, [b"loop"])
        assert await file.pread(0, 6) == b"loopad"
        disk.close()

    asyncio.run(main())


@pytest.mark.parametrize("at", [1, 2, 4])
def test_no_folder_is_left_out_when_descriptors_run_out_for_a_moment(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {f"queues/t/{number}/0": number for number in range(4)}
    for path, size in expected.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(bytes(size))
    scandir, looks = os.scandir, count(1)

    def scarce(folder: str) -> object:
        if next(looks) == at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return scandir(folder)

    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        monkeypatch.setattr(os, "scandir", scarce)
        assert await disk.sizes("queues") == expected
        disk.close()

    asyncio.run(main())


def test_the_log_does_not_wait_for_what_is_written_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of a queue file hangs: the log is written and synced meanwhile, what else is written beside comes behind it."""
    hangs, released = threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow_sync(fd: int) -> None:
        if "consumequeue" in os.readlink(f"/proc/self/fd/{fd}"):
            hangs.set()
            assert released.wait(LIMIT_S)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow_sync)

    async def main() -> None:
        disk = RealDisk(str(tmp_path), beside_folders=("consumequeue", "config"))
        try:
            queue, log = await disk.open("consumequeue/t/0/0", create=True), await disk.open("commitlog/0", create=True)
            syncing = asyncio.ensure_future(queue.pwrite(0, [b"unit"], sync=True))
            await asyncio.to_thread(hangs.wait, LIMIT_S)
            behind = [asyncio.ensure_future(disk.write_atomic("config/a", b"new")), asyncio.ensure_future(disk.list("consumequeue"))]
            await asyncio.wait_for(log.pwrite(0, [b"entry"], sync=True), LIMIT_S)
            await asyncio.wait_for(disk.write_atomic("copy/a", b"copied"), LIMIT_S)
            moved = asyncio.ensure_future(disk.rename("copy/a", "config/a"))
            await asyncio.sleep(0)
            assert not any(each.done() for each in (syncing, *behind, moved))
            released.set()
            await asyncio.wait_for(asyncio.gather(syncing, *behind, moved), LIMIT_S)
            assert (tmp_path / "config" / "a").read_bytes() == b"copied", "the rename was asked for last"
            await queue.close()
            await log.close()
        finally:
            released.set()
            disk.close()

    asyncio.run(main())


def test_one_file_waits_for_no_sync_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of the log hangs: the hard state is written and synced meanwhile."""
    hangs, released = threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow_sync(fd: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            hangs.set()
            assert released.wait(LIMIT_S)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", slow_sync)

    async def main() -> None:
        disk = RealDisk(str(tmp_path), own_thread="hardstate")
        try:
            promises, log = await disk.open("hardstate", create=True), await disk.open("commitlog/0", create=True)
            syncing = asyncio.ensure_future(log.pwrite(0, [b"entry"], sync=True))
            await asyncio.to_thread(hangs.wait, LIMIT_S)
            await asyncio.wait_for(promises.pwrite(0, [b"vote"], sync=True), LIMIT_S)
            assert not syncing.done()
            released.set()
            await asyncio.wait_for(syncing, LIMIT_S)
            await promises.close()
            await log.close()
        finally:
            released.set()
            disk.close()

    asyncio.run(main())


@pytest.mark.parametrize("cold", [False, True])
def test_places_of_a_file_go_to_a_socket(tmp_path: Path, cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the event loop what the page cache has, on a thread what the disk is waited for."""
    content = os.urandom(3 << 20)
    places = [(5, 1000), (1 << 20, 1 << 20), ((3 << 20) - 7, 7)]
    wanted = b"".join(content[pos : pos + size] for pos, size in places)
    threads: set[str] = set()
    sendfile = os.sendfile

    def watched(*arguments: int) -> int:
        threads.add(threading.current_thread().name)
        return sendfile(*arguments)

    monkeypatch.setattr(os, "sendfile", watched)
    if cold:
        monkeypatch.setattr(real_sending, "_NOWAIT", 0)

    async def main() -> None:
        disk = RealDisk(str(tmp_path), direct_folders=("log",))
        file = await disk.open("log/1", create=True)
        await file.pwrite(0, [content], sync=True)
        await file.pread(0, len(content))  # what is written around the page cache is not in it
        source, target = socket.socketpair()
        with source, target:
            source.setblocking(False)
            target.setblocking(False)
            done, received = 0, b""
            while len(received) < len(wanted):
                left = list(after(places, done))
                done += await file.send(source, left) if left else 0
                received += target.recv(1 << 20)
            assert received == wanted
            source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            while await file.send(source, [(0, 1 << 20)]):
                pass
            assert await file.send(source, [(0, 1)]) == 0, "the socket is full"
        await file.close()
        disk.close()

    asyncio.run(main())
    assert all(name.startswith("dledger-disk-read") == cold for name in threads)


def after(places: list[tuple[int, int]], done: int) -> Iterator[tuple[int, int]]:
    for pos, size in places:
        if done < size:
            yield pos + done, size - done
        done = max(0, done - size)


def test_what_is_not_there_cannot_be_sent(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        file = await disk.open("log/1", create=True)
        await file.pwrite(0, [b"x"])
        source, target = socket.socketpair()
        with source, target:
            for _ in range(2):
                with pytest.raises(OSError, match="No data available"):
                    await file.send(source, [(1, 1)])
            assert await file.send(source, [(0, 2)]) == 1
            target.close()
            with pytest.raises(ConnectionError):
                await file.send(source, [(0, 1)])
        await file.close()
        disk.close()

    asyncio.run(main())
