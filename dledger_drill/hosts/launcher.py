"""Becomes a process of a machine: ``python -I -S launcher.py PARENT NETWORK PROGRAM [ARGUMENT...]``, execs PROGRAM at its end.

NETWORK is a descriptor of a network namespace, or - for that of the parent.  The process gets the mounts of the parent, too, and is killed
by the kernel when the thread that started it has ended.  A program of its own because nothing but exec is safe in a fork of a process with
threads.  It uses nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)


def enter(fd: int, kind: int) -> None:
    """``os.setns`` of Python 3.12."""
    if _libc.setns(fd, kind) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def end_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        sys.exit(1)


def enter_mounts_of(parent: int) -> None:
    """A thread that began before the mount namespace was made has other mounts than its process."""
    theirs = f"/proc/{parent}/ns/mnt"
    if os.readlink(theirs) == os.readlink("/proc/self/ns/mnt"):
        return
    folder = os.getcwd()
    fd = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
    enter(fd, _CLONE_NEWNS)
    os.chdir(folder)


def main() -> None:
    parent, network, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    end_with(parent)
    enter_mounts_of(parent)
    if network != "-":
        enter(int(network), _CLONE_NEWNET)
        os.close(int(network))
    try:
        os.execvp(command[0], command)  # noqa: S606 - what the caller asked for
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
