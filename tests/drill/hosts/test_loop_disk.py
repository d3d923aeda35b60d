"""Disks on loop devices: what a power loss takes and leaves, and what is left on the machine of a drill that was killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_drill.hosts import loop_disk, mounts
from dledger_drill.hosts.loop_disk import LoopDisk
from dledger_drill.hosts.machine import Disk
from dledger_drill.hosts.preload import Preload
from dledger_wire.errors import InvalidArgumentError
from tests import needs
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

SIZE = 32 << 20
WRITER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"synced" * 1000 + bytes(200_000), 0)
direct = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
block[:] = b"d" * 4096
os.pwrite(direct, block, 8192)
os.fsync(fd)
os.fsync(os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY))
os.pwrite(fd, b"unsynced" * 1000, 100_000)
os.pwrite(fd, b"LOST", 6)
block[:] = b"L" * 4096
os.pwrite(direct, block, 16384)
open(sys.argv[1] + "-new", "wb").write(b"unsynced" * 1000)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    if reason := loop_disk.missing():
        needs.lacking(reason)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    made = LoopDisk(tmp_path / "n0", None, size_bytes=SIZE)
    yield made
    made.close()


def backing_files() -> list[str]:
    """What is bound to any loop device of this machine."""
    return [file.read_text().strip() for file in Path("/sys/block").glob("loop*/loop/backing_file")]


def lose_power(disk: Disk) -> None:
    """While a process has files open there, and holds what it wrote."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(disk.path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        assert (disk.path / "log").stat().st_size > 100_000
        disk.power_off()
        with pytest.raises(OSError, match="Input/output error"):
            (disk.path / "after").write_bytes(b"x")
    finally:
        writer.kill()
        writer.communicate()
    disk.power_on()


def test_a_power_loss_takes_what_was_not_synced_and_nothing_else(disk: LoopDisk) -> None:
    for _ in range(3):
        lose_power(disk)
        assert (disk.path / "log").read_bytes() == (b"synced" * 1000).ljust(8192, b"\0") + b"d" * 4096 + bytes(206_000 - 8192 - 4096)
        new = disk.path / "log-new"
        assert not new.exists() or new.read_bytes().strip(b"\0") == b""
        assert not (disk.path / "after").exists()
        (disk.path / "log").unlink()
    disk.power_on()  # nothing, when it is on


def test_a_full_disk_leaves_what_was_told_and_is_free_again(disk: LoopDisk) -> None:
    disk.fill(leave_bytes=1 << 20)
    facts = os.statvfs(disk.path)
    assert facts.f_bavail * facts.f_frsize <= 1 << 20
    with pytest.raises(OSError, match="No space left") as full:
        (disk.path / "file").write_bytes(bytes(2 << 20))
    assert full.value.errno == errno.ENOSPC
    disk.free()
    disk.free()
    (disk.path / "file").write_bytes(bytes(8 << 20))


def test_a_disk_that_was_freed_while_its_power_was_off_is_free(disk: LoopDisk) -> None:
    disk.fill(0)
    os.sync()
    disk.power_off()
    with pytest.raises(InvalidArgumentError, match="has no power"):
        disk.fill(0)
    disk.free()
    disk.power_on()
    (disk.path / "file").write_bytes(bytes(8 << 20))


def test_a_flipped_bit_is_seen_by_who_has_the_file_open_and_stays(disk: LoopDisk) -> None:
    (disk.path / "commitlog").mkdir()
    file = disk.path / "commitlog" / "0"
    file.write_bytes(bytes(10_000))
    with open(file, "rb", buffering=0) as reader:
        assert reader.read(10_000) == bytes(10_000)
        disk.flip_bit("commitlog/0", 5000, 3)
        reader.seek(5000)
        assert reader.read(2) == b"\x08\0"
    disk.power_off()
    disk.power_on()
    assert file.read_bytes()[5000] == 8


def test_the_preloaded_library_works_on_it(tmp_path: Path) -> None:
    folder = tmp_path / "n1"
    shim = Preload(tmp_path / "control", folder / "mount")
    disk = LoopDisk(folder, shim, size_bytes=SIZE)
    try:
        disk.fail(True)
        code = "import os, sys; os.write(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), b'x')"
        command = [sys.executable, "-c", code, str(disk.path / "file")]
        assert b"Errno 5" in subprocess.run(command, env=os.environ | shim.environment, capture_output=True, check=False).stderr
        disk.fail(False)
        subprocess.run(command, env=os.environ | shim.environment, check=True)
    finally:
        disk.close()
        shim.close()


def test_two_disks_side_by_side_and_nothing_is_mounted_after_them(tmp_path: Path) -> None:
    first, second = (LoopDisk(tmp_path / name, None, size_bytes=SIZE) for name in ("a", "b"))
    assert len([file for file in backing_files() if file.startswith(str(tmp_path))]) == 2
    (second.path / "kept").write_bytes(b"x")
    first.power_off()
    assert (second.path / "kept").read_bytes() == b"x"
    first.close()
    second.close()
    assert not [file for file in backing_files() if file.startswith(str(tmp_path))]
    # The images stay for a person to look into, and keep what was written.
    device = mounts.mount_image(tmp_path / "b" / "disk.img", tmp_path / "b" / "mount", "ro")
    try:
        assert (second.path / "kept").read_bytes() == b"x"
    finally:
        mounts.unmount(tmp_path / "b" / "mount", device)
    first.close()


OWNER = """
import subprocess, sys
from pathlib import Path
from dledger_drill.hosts.loop_disk import LoopDisk
disk = LoopDisk(Path(sys.argv[1]), None, size_bytes=32 << 20)
node = subprocess.Popen(["/bin/sh", "-c", "exec 3>file; read nothing"], cwd=disk.path, stdin=subprocess.PIPE)
print(node.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_is_mounted_or_bound_after_its_owner_was_killed(tmp_path: Path) -> None:
    """Not even while it lived, outside of its own mount namespace."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path / "n0")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        node = int(owner.stdout.readline())
        assert any(file.startswith(str(tmp_path)) for file in backing_files())
        assert str(tmp_path) in Path(f"/proc/{node}/mounts").read_text()
        assert str(tmp_path) not in Path("/proc/1/mounts").read_text()
    finally:
        owner.kill()
        owner.communicate()
    wait_until(lambda: not Path(f"/proc/{node}").exists(), "the end of the process on the disk")
    wait_until(lambda: not any(file.startswith(str(tmp_path)) for file in backing_files()), "the release of the loop device")
    assert str(tmp_path) not in Path("/proc/1/mounts").read_text()


THREADS = """
import os, sys, threading
from pathlib import Path
from dledger_drill.hosts.loop_disk import LoopDisk
disk = LoopDisk(Path(sys.argv[1]), None, size_bytes=32 << 20)
(disk.path / "file").write_bytes(b"x")
os.sync()
def strike():
    disk.power_off()
    disk.power_on()
    print((disk.path / "file").read_bytes())
thread = threading.Thread(target=strike)
thread.start()
thread.join()
disk.close()
"""


def test_a_thread_may_pull_the_power(tmp_path: Path) -> None:
    """Threads that began after the first disk see it; faults are struck and healed by several."""
    command = [sys.executable, "-c", THREADS, str(tmp_path / "n0")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout == "b'x'\n"
