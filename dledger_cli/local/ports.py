"""Free loopback ports for the clusters of one run; no other run of this user gets the same ones.

Between choosing a port and listening on it, and while a node is down, the port looks free to other processes.  So the process that gets
one holds a record lock on the byte of that number in a file of the user, until it ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache

from dledger_wire.errors import DledgerError

FIRST_PORT, LAST_PORT = 20_000, 32_000  # below what the kernel gives to outgoing connections

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """``count`` ports, reserved until this process ends.  DledgerError when there are not enough."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT):
        if port not in _given and _reserve(port) and can_listen(f"127.0.0.1:{port}"):
            found.append(port)
            _given.add(port)
        if len(found) == count:
            return found
    raise DledgerError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")


@cache
def _locks() -> int:
    """The open file; never closed, since that would give up every lock of this process."""
    path = os.path.join(tempfile.gettempdir(), f"dledger-ports-{os.getuid()}")
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DledgerError(f"{path}: cannot note which ports are taken: {error.strerror}") from None


def _reserve(port: int) -> bool:
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def can_listen(address: str) -> bool:
    """Whether a server could listen there now."""
    return why_not_listened(address) is None


def why_not_listened(address: str) -> OSError | None:
    """What keeps a server from listening there now: a gaierror when its name is not known."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error
    return None
