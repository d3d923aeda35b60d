"""Network namespaces, one a machine.

A namespace is held by a descriptor of this process and by the processes in it, has no name, and is gone with the last of them, however they
ended.  Mounts are not its business: processes of machines have those of the drill (``mounts``).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dledger_drill.hosts import devices

_CLONE_NEWNET = 0x40000000
_DEVICE = "eth0"

_libc = ctypes.CDLL(None, use_errno=True)
Made = TypeVar("Made")


def make_namespace(subnet: int, machine: int) -> tuple[int, int]:
    """A namespace with a device of the machine's addresses: (descriptor of the namespace, descriptor of the device)."""

    def make() -> tuple[int, int]:
        if _libc.unshare(_CLONE_NEWNET) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"a network namespace: {os.strerror(number)}")
        device = devices.make_device(_DEVICE)
        try:
            devices.set_loopback_up()
            devices.set_up(_DEVICE, subnet, machine)
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), device
        except BaseException:
            os.close(device)
            raise

    return _in_a_thread(make)


def _in_a_thread(make: Callable[[], Made]) -> Made:
    """Only the thread that asks for a namespace moves into it, so it is one that ends right after."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(make).result()
