"""File systems on loop devices, mounted where only this process and its children see them.

Owns the mount namespace: everything in it is unmounted by the kernel when the last process in it has ended, however it ended, and each
loop device is released with its mount.  For root only; needs Linux 5.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import threading
import time
from pathlib import Path

from dledger_wire.check import require
from dledger_wire.errors import DeadlineExceededError, DledgerError

_CLONE_NEWNS = 0x00020000
_MS_NOATIME, _MS_REC, _MS_SLAVE = 1 << 10, 1 << 14, 1 << 19
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LOOP_CONFIG = struct.Struct("=II52xI176x64x")  # struct loop_config: fd, block size, ... flags ...
_LO_FLAGS_AUTOCLEAR = 4
_RELEASE_LIMIT_S = 20.0
_PAUSE_S = 0.01

_libc = ctypes.CDLL(None, use_errno=True)
_entered: list[str] = []  # the mount namespace of ours, once there is one


def enter_private_mounts() -> None:
    """Give this process a mount namespace of its own, once.  For the main thread, before others start: theirs is the one they began in."""
    here = os.readlink("/proc/thread-self/ns/mnt")
    if _entered:
        require(here == _entered[0], "a thread that began before the mount namespace was made does not see the loop disks")
        return
    require(threading.current_thread() is threading.main_thread(), "the first loop disk has to be made by the main thread")
    _call("unshare", _libc.unshare(_CLONE_NEWNS))
    # What is mounted here stays here; what the host unmounts goes here, too.
    _call("mount", _libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))
    _entered.append(os.readlink("/proc/thread-self/ns/mnt"))


def mount_image(image: Path, folder: Path, options: str) -> str:
    """Mount the ext4 in ``image``; returns the name of the loop device."""
    device, fd = _attached(image)
    try:
        source, target = os.fsencode(f"/dev/{device}"), os.fsencode(folder)
        _call(f"mount {image}", _libc.mount(source, target, b"ext4", ctypes.c_ulong(_MS_NOATIME), options.encode()))
    finally:
        os.close(fd)  # from here on the mount alone holds the device
    return device


def unmount(folder: Path, device: str) -> None:
    """Unmount as soon as no process uses it, and wait until the device is released: a second mount of the image begins from the image."""
    deadline = time.monotonic() + _RELEASE_LIMIT_S
    while _libc.umount2(os.fsencode(folder), 0) < 0:
        number = ctypes.get_errno()
        if number != errno.EBUSY:
            raise DledgerError(f"umount {folder}: {os.strerror(number)}")
        _wait(deadline, f"{folder} is still in use")
    while Path("/sys/block", device, "loop").exists():
        _wait(deadline, f"{device}, which {folder} was on, is still in use")


def _attached(image: Path) -> tuple[str, int]:
    """A free loop device with ``image`` in it, as name and descriptor; it is released when the last user of it closes."""
    with contextlib.ExitStack() as stack:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, control)
        backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, backing)
        config = _LOOP_CONFIG.pack(backing, 0, _LO_FLAGS_AUTOCLEAR)
        while True:
            device = f"loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            fd = os.open(f"/dev/{device}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:  # another process was faster
                    raise
            else:
                return device, fd


def _call(what: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _wait(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise DeadlineExceededError(f"{what} after {_RELEASE_LIMIT_S:g} s")
    time.sleep(_PAUSE_S)
