"""A private network of machines: names, addresses, namespaces, and the switch between them.

Owns all of it until ``close``; nothing of it outlives this process.  This process is the machine ``drill``: it reaches the others by a
device of its own in a subnet that is free, and so does everything else in its network namespace.  The namespace of a machine is held by a
descriptor of this process and by the processes in it, and is gone with the last of them; their mounts are those of the drill (``mounts``).
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from dledger_drill.hosts import devices
from dledger_drill.hosts.links import SwitchLinks
from dledger_wire.check import require
from dledger_wire.errors import DledgerError, InvalidArgumentError

DRILL, CLIENTS = "drill", "clients"
_CLONE_NEWNET = 0x40000000
_DEVICE = "eth0"

_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Takes root.  ``links`` are those between all machines that were added, and ``drill``."""

    def __init__(self) -> None:
        try:
            self._subnet, device = devices.free_subnet_device()
            try:
                devices.set_up(f"drill{self._subnet}", self._subnet, devices.FIRST_MACHINE)
            except OSError:
                os.close(device)
                raise
        except OSError as error:
            raise _impossible(error) from error
        self._namespaces: dict[str, int] = {}
        self._numbers = {DRILL: devices.FIRST_MACHINE}
        self.links = SwitchLinks()
        self.links.add(DRILL, devices.FIRST_MACHINE, device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def add(self, name: str) -> str:
        """A new machine; returns its address."""
        if name in self._numbers:
            raise InvalidArgumentError(f"there is a machine {name!r}")
        number = devices.FIRST_MACHINE + len(self._numbers)
        require(number <= devices.LAST_MACHINE, f"more than {devices.LAST_MACHINE} machines")
        try:
            namespace, device = make_namespace(self._subnet, number)
        except OSError as error:
            raise _impossible(error) from error
        self._namespaces[name], self._numbers[name] = namespace, number
        self.links.add(name, number, device)
        return self.ip(name)

    def ip(self, name: str) -> str:
        return devices.address(self._subnet, self._numbers[name])

    def namespace(self, name: str) -> int:
        """Descriptor of its network namespace, for ``MachineProcess``."""
        return self._namespaces[name]

    def close(self) -> None:
        """End the switch and let the namespaces go; those that processes are still in last until these end."""
        self.links.close()
        while self._namespaces:
            os.close(self._namespaces.popitem()[1])


def _impossible(error: OSError) -> DledgerError:
    return DledgerError(f"a private network is not possible: {error.filename or ''} {error.strerror}".replace("  ", " "))


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

    # Only the thread that asks for a namespace moves into it, so it is one that ends right after.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(make).result()
