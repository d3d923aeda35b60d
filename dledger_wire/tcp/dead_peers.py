"""Socket options for connections whose other side is gone without a word: when to give them up."""

from __future__ import annotations

import contextlib
import socket

SILENT_S = 10  # without the other side's kernel confirming anything, before a dialled connection is given up


def watch_for_death(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other side is gone without a word: after some 40 s."""
    _probe(connection, 20, 7)


def end_when_silent(dialled: socket.socket) -> None:
    """Have the kernel end a connection that we dialled some ``SILENT_S`` after its other side fell silent, with bytes under way or without:
    its address may be unused by now, and the name is looked up when it is dialled again (docs/adr/0023).

    Not one that was accepted: a caller may let what we write wait for longer than that, and need not be dialled."""
    _probe(dialled, SILENT_S // 2, 2)
    with contextlib.suppress(OSError, AttributeError):
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)


def _probe(connection: socket.socket, idle_s: int, interval_s: int) -> None:
    """Probe the other side's kernel after ``idle_s`` without data; the third probe without an answer ends the connection."""
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
