"""A machine's disk on a small ext4 of its own, whose power can be pulled.

Owns the image, a sparse file, and its mount.  At a power loss the file system is shut down without writing anything: data and journal
that were not synced are gone, as after a crash of the machine.  Data goes through the journal, for with it the kernel puts direct writes
into the page cache, too: they are lost like those in the volatile cache of a disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from dledger_drill.hosts import mounts
from dledger_drill.hosts.folder_disk import FolderDisk, opened
from dledger_drill.hosts.preload import Preload
from dledger_wire.errors import DledgerError, InvalidArgumentError

DEFAULT_BYTES = 4 << 30  # the image has holes where nothing was written
_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)
_MKFS = ("-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1")
# No thread of the kernel's writes in the background, and the journal is written when a file is synced, not every 5 s.
_MOUNT_OPTIONS = "noinit_itable,data=journal,commit=300"
_MKFS_LIMIT_S = 60.0


class LoopDisk(FolderDisk):
    """``Disk`` in ``folder``, which gets the image and the place that it is mounted at."""

    def __init__(self, folder: Path, preload: Preload | None, *, size_bytes: int = DEFAULT_BYTES) -> None:
        mounts.enter_private_mounts()
        self._image, self._mount = folder / "disk.img", folder / "mount"
        self._filler = self._mount / "filler"
        self._mount.mkdir(parents=True, exist_ok=True)
        with open(self._image, "wb") as image:
            image.truncate(size_bytes)
        _make_file_system(self._image)
        self._powered, self._full = True, False
        self._device = mounts.mount_image(self._image, self._mount, _MOUNT_OPTIONS)
        super().__init__(self._mount / "data", preload)
        with opened(self._mount) as fd:
            os.fsync(fd)  # an empty disk is what the first power loss may leave at least

    def close(self) -> None:
        """Unmount it, when the machine's processes have ended.  The image stays, for a person who looks for what went wrong."""
        if self._device:
            mounts.unmount(self._mount, self._device)
            self._device = ""

    def power_off(self) -> None:
        if self._powered:
            self._powered = False
            with opened(self._mount) as fd:
                fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, _NO_LOG_FLUSH)

    def power_on(self) -> None:
        if not self._powered:
            mounts.unmount(self._mount, self._device)
            self._device = mounts.mount_image(self._image, self._mount, _MOUNT_OPTIONS)
            self._powered = True
            if not self._full:
                self.free()  # it was filled when it lost its power, and freed before it had it again

    def fill(self, leave_bytes: int) -> None:
        """Take blocks in ever smaller pieces: what the file system keeps for itself is not in its figures."""
        if not self._powered:
            raise InvalidArgumentError(f"{self._mount} has no power")
        self._full = True
        facts = os.statvfs(self._mount)
        left = facts.f_bavail * facts.f_frsize - leave_bytes
        piece = left
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while left > 0 and piece >= facts.f_frsize:
                piece = min(piece, left)
                try:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
                else:
                    left -= piece
        finally:
            os.close(fd)

    def free(self) -> None:
        self._full = False
        if self._powered:
            self._filler.unlink(missing_ok=True)


def _make_file_system(image: Path) -> None:
    program = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        raise InvalidArgumentError("mkfs.ext4 is not installed")
    command = [program, *_MKFS, str(image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MKFS_LIMIT_S, check=False)  # noqa: S603 - our own image
    if done.returncode:
        raise DledgerError(f"mkfs.ext4 {image}: {done.stderr.strip() or done.returncode}")


@cache
def missing() -> str:
    """Why there are no loop disks on this machine; empty when there are.  A small one loses its power for that."""
    if os.geteuid() != 0:
        return "loop disks take root"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            disk = LoopDisk(Path(scratch), None, size_bytes=8 << 20)
            try:
                disk.power_off()
                disk.power_on()
            finally:
                disk.close()
        except (DledgerError, OSError) as error:
            return str(error)
    return ""
