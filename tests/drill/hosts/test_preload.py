"""The preloaded library in real processes: delays, errors, a full disk and a wall clock that jumps, each while the process runs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dledger.runtime.sync_pace import LOOKED_AT
from dledger_drill.hosts import preload
from dledger_drill.hosts.folder_disk import FolderDisk
from dledger_drill.hosts.machine import Clock, Disk
from dledger_drill.hosts.preload import Preload, ShiftedClock
from dledger_wire.errors import InvalidArgumentError
from tests import needs

pytestmark = pytest.mark.cluster

# One answer a line that is written to it: the errno, 0 for none, and how long it took.
LOOP = """
import os, sys, time
folder = sys.argv[1]
fd = os.open(folder + "/file", os.O_RDWR | os.O_CREAT)
other = os.open(folder + "-beside", os.O_RDWR | os.O_CREAT)
calls = {
    "sync": lambda: os.fdatasync(fd),
    "fsync": lambda: os.fsync(fd),
    "pwritev": lambda: os.pwritev(fd, [b"abc", b"d"], 0),
    "pwrite": lambda: os.pwrite(fd, b"abcd", 0),
    "write": lambda: os.write(fd, b"abcd"),
    "grow": lambda: os.pwrite(fd, bytes(100_000), os.fstat(fd).st_size),
    "allocate": lambda: os.posix_fallocate(fd, 0, os.fstat(fd).st_size + 100_000),
    "folder": lambda: os.fsync(os.open(folder, os.O_RDONLY)),
    "beside": lambda: (os.pwrite(other, bytes(1_000_000), 0), os.fdatasync(other)),
    "free": lambda: os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize,
    "wall": time.time,
    "second": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "steady": time.monotonic,
    "unlink": lambda: os.unlink(folder + "/big"),
}
print("ready", flush=True)
for line in sys.stdin:
    began = time.monotonic()
    try:
        value, error = calls[line.strip()](), 0
    except OSError as failed:
        value, error = 0, failed.errno
    print(error, time.monotonic() - began, value if isinstance(value, (int, float)) else 0, flush=True)
"""


class Looping:
    """A running process that does what it is told with its disk and its clock."""

    def __init__(self, folder: Path, environment: dict[str, str], program: str = LOOP) -> None:
        command = [sys.executable, "-c", program, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment, bufsize=1
        )
        assert self._answer() == ["ready"]

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def ask(self, what: str) -> tuple[int, float, float]:
        """(errno, seconds it took, value)."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        error, seconds, value = self._answer()
        return int(error), float(seconds), float(value)

    def counts(self, what: str) -> tuple[int, ...]:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        return tuple(int(number) for number in self._answer())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Preload]:
    if reason := preload.missing():
        needs.lacking(reason)
    made = Preload(tmp_path / "control", tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture
def disk(shim: Preload, tmp_path: Path) -> Disk:
    return FolderDisk(tmp_path / "disk", shim)


@pytest.fixture
def process(shim: Preload, disk: Disk) -> Iterator[Looping]:
    running = Looping(disk.path, shim.environment)
    yield running
    running.end()


def quickest_s(process: Looping, *calls: str) -> float:
    """The longest of the calls, each at its quickest: a machine under load stalls any one of them."""
    return max(min(process.ask(call)[1] for _ in range(5)) for call in calls)


def test_a_slow_sync_takes_as_long_as_told_and_is_fast_after(process: Looping, disk: Disk, shim: Preload) -> None:
    disk.slow(200.0)
    for call in ("sync", "fsync", "folder"):
        assert process.ask(call)[1] >= 0.2, call
    assert quickest_s(process, "pwritev", "beside") < 0.2
    disk.slow(0.0, 100.0)
    assert quickest_s(process, "sync") < 0.1
    for call in ("pwritev", "pwrite", "write"):
        assert process.ask(call)[1] >= 0.1, call
    assert shim.struck == 6
    disk.slow(0.0)
    assert quickest_s(process, "sync", "pwritev", "write") < 0.1
    assert shim.struck == 6


def test_a_failing_disk_fails_writes_and_syncs_below_its_folder_only(process: Looping, disk: Disk) -> None:
    disk.fail(True)
    for call in ("sync", "fsync", "folder", "pwritev", "pwrite", "write", "allocate"):
        assert process.ask(call)[0] == errno.EIO, call
    assert process.ask("beside")[0] == 0
    disk.fail(False)
    assert [process.ask(call)[0] for call in ("sync", "pwritev", "write", "allocate")] == [0] * 4


def test_a_full_disk_takes_no_more_and_still_overwrites(process: Looping, disk: Disk) -> None:
    (disk.path / "big").write_bytes(bytes(50_000))
    assert process.ask("grow")[0] == 0
    disk.fill(leave_bytes=150_000)
    assert process.ask("free")[2] == 150_000 // 4096 * 4096
    assert process.ask("grow")[0] == 0
    assert process.ask("grow")[0] == errno.ENOSPC
    assert process.ask("allocate")[0] == errno.ENOSPC
    assert process.ask("pwritev")[0] == 0
    assert process.ask("beside")[0] == 0
    assert process.ask("unlink")[0] == 0  # which makes room for once more
    assert [process.ask("grow")[0], process.ask("grow")[0]] == [0, errno.ENOSPC]
    disk.free()
    assert process.ask("grow")[0] == 0
    assert process.ask("free")[2] > 10_000_000


def test_a_running_process_sees_its_wall_clock_jump_and_come_back(process: Looping, shim: Preload) -> None:
    clock: Clock = ShiftedClock(shim)
    for seconds in (86_400.0 * 1000, -7200.5, 0.25):
        before = process.ask("steady")[2]
        clock.shift(seconds)
        for call in ("wall", "second"):
            assert min(abs(process.ask(call)[2] - time.time() - seconds) for _ in range(5)) < 0.2
        assert 0 <= process.ask("steady")[2] - before < 5
        clock.shift(0.0)
        assert min(abs(process.ask("wall")[2] - time.time()) for _ in range(5)) < 0.2


def test_waits_last_as_long_as_asked_while_the_clock_is_wrong(tmp_path: Path, shim: Preload) -> None:
    """sem_timedwait and the like are told a time of the wall clock, which is the kernel's."""
    code = """
import ctypes, time
libc = ctypes.CDLL(None)
class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("ns", ctypes.c_long)]
semaphore = ctypes.create_string_buffer(64)
libc.sem_init(semaphore, 0, 0)
began, until = time.monotonic(), time.time() + 0.3
deadline = Timespec(int(until), int(until % 1 * 1e9))
assert libc.sem_timedwait(semaphore, ctypes.byref(deadline)) == -1
print(time.monotonic() - began)
"""
    for seconds in (1e8, -1e6, 0.0):
        shim.shift_clock(seconds)
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | shim.environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert 0.29 <= float(done.stdout) < 5.0


def test_two_machines_have_each_their_own_faults(process: Looping, disk: Disk, tmp_path: Path) -> None:
    other_shim = Preload(tmp_path / "control-2", tmp_path / "disk-2")
    other_disk = FolderDisk(tmp_path / "disk-2", other_shim)
    other = Looping(other_disk.path, other_shim.environment)
    try:
        disk.fail(True)
        assert [process.ask("sync")[0], other.ask("sync")[0]] == [errno.EIO, 0]
        other_shim.shift_clock(5000.0)
        assert other.ask("wall")[2] - process.ask("wall")[2] > 4990
    finally:
        other.end()
        other_shim.close()


def test_without_a_fault_a_call_costs_next_to_nothing(shim: Preload) -> None:
    code = "import time, timeit; print(min(timeit.repeat(time.time, number=200_000, repeat=5)) / 200_000)"
    costs = []
    for environment in ({}, shim.environment):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=60, check=True
        )
        costs.append(float(done.stdout))
    assert costs[1] < 5 * costs[0]  # 50 ns here with it or without; a call of the kernel takes ten times that


def test_without_a_compiler_there_is_one_clear_reason(tmp_path: Path) -> None:
    code = "from dledger_drill.hosts import preload; print(preload.missing())"
    environment = os.environ | {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "no C compiler (cc, gcc or clang) to compile the preloaded library with\n"


def test_what_a_machine_has_no_means_for_is_refused(tmp_path: Path) -> None:
    disk = FolderDisk(tmp_path / "disk", None)
    clock = ShiftedClock(None)
    calls: list[Callable[[], None]] = [lambda: disk.slow(1.0), lambda: disk.fail(True), lambda: disk.fill(0), lambda: clock.shift(1.0)]
    for call in [*calls, disk.power_off]:
        with pytest.raises(InvalidArgumentError, match="not possible"):
            call()
    disk.free()


WRITER = """
import asyncio, sys
from dledger.runtime.real_disk import RealDisk

async def main():
    disk = RealDisk(sys.argv[1], direct_folders=("log",))
    file = await disk.open("log/1", create=True)
    await file.allocate(1 << 20, fill=True)
    print("ready", flush=True)
    for line in sys.stdin:
        now, by_thread = 0, 0
        for number in range(int(line)):
            if file.write_now(number * 100, [b"x" * 100]):
                now += 1
            else:
                by_thread += 1
                await file.pwrite(number * 100, [b"x" * 100], sync=True)
        print(now, by_thread, flush=True)
    disk.close()

asyncio.run(main())
"""


def test_a_disk_that_becomes_slow_holds_the_event_loop_up_for_a_few_syncs_at_most(shim: Preload, tmp_path: Path) -> None:
    """One that stalls, for one; one that is only too slow to be waited for, for some; one that was slow from the start, for none."""
    for sync_ms, at_most in ((20.0, 1), (1.0, LOOKED_AT)):
        shim.slow(0.0, 0.0)
        writing = Looping(tmp_path / "disk", shim.environment, WRITER)
        writing.counts("200")  # on most machines the loop writes by now
        shim.slow(sync_ms, 0.0)
        now, by_thread = writing.counts("60")
        assert now <= at_most
        assert now + by_thread == 60
        writing.end()
        again = Looping(tmp_path / "disk", shim.environment, WRITER)
        assert again.counts("30") == (0, 30)
        again.end()
