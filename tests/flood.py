"""Connections of strangers that say nothing, or the beginning of something: what ports have to bear."""

from __future__ import annotations

import contextlib
import socket
from types import TracebackType

HALF_HELLO = bytes.fromhex("16030100c8010000c40303")
BROKEN_HELLO = b"\x16\x03\x01\x00\x05" + b"\xff" * 5


class Flood:
    """So many connections to a port of this machine, from ``sources`` addresses of ``network``, that all said ``begin``."""

    def __init__(self, port: int, number: int, begin: bytes = b"", sources: int = 50, network: str = "127.0.77") -> None:
        self._sockets = []
        for each in range(number):
            made = socket.create_connection(("127.0.0.1", port), 60, (f"{network}.{1 + each % sources}", 0))
            self._sockets.append(made)
            made.setblocking(False)
            with contextlib.suppress(OSError):  # it was closed already
                made.send(begin)

    def closed(self) -> int:
        """How many of them the other side has closed."""
        return sum(map(_is_closed, self._sockets))

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for each in self._sockets:
            each.close()


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
