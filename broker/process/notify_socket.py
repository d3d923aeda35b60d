"""The socket on which a service manager such as systemd is told how this process fares (sd_notify).

Owns the address and the datagrams: lines ``NAME=value``, one datagram for all that belongs together.  It never blocks the event loop: what
the manager does not take now is said again later by who says it.
"""

from __future__ import annotations

import contextlib
import socket

from dledger_wire.printable import printable


class NotifySocket:
    """To the address of ``NOTIFY_SOCKET``: a path, or ``@name`` in Linux's abstract namespace."""

    def __init__(self, address: str) -> None:
        if address[:1] not in ("/", "@"):
            raise ValueError(f"NOTIFY_SOCKET is {address!r}; expected a path or @NAME")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, **lines: str | int) -> None:
        """Say all ``lines`` at once.  OSError when the manager does not take them; BlockingIOError when it does not at the moment."""
        text = "\n".join(f"{name}={printable(str(value))}" for name, value in lines.items())
        self._socket.sendto(text.encode(), self._address)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
