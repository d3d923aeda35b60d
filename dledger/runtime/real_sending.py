"""Bytes of a file that go to a socket, or are looked at, on the event loop itself: only while nothing has to be waited for.

Owns the question whether the page cache has them.  ``preadv2`` with ``RWF_NOWAIT`` fails in place of waiting for the disk; ``sendfile``
cannot be made to, so a few bytes are looked at on the way.  A page missing between two such places holds the loop up for one small read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from dledger.runtime.env import Place, SocketHandle

PROBE_EVERY = 256 << 10
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


def peek_each(fd: int, places: Sequence[Place]) -> list[bytes] | None:
    """The bytes at these places; None when the disk would have to be waited for, or a file ends."""
    if not _NOWAIT:
        return None
    found: list[bytes] = []
    for pos, size in places:
        data = bytearray(size)
        try:
            if os.preadv(fd, [data], pos, _NOWAIT) < size:
                return None
        except OSError:
            return None
        found.append(bytes(data))
    return found


def is_at_hand(fd: int, places: Sequence[Place]) -> bool:
    """Whether the page cache has these bytes, as far as samples show."""
    if not _NOWAIT:
        return False
    one = [bytearray(1)]
    try:
        for pos, size in places:
            for at in range(pos, pos + size - 1, PROBE_EVERY):
                os.preadv(fd, one, at, _NOWAIT)
            os.preadv(fd, one, pos + size - 1, _NOWAIT)
    except OSError:
        return False
    return True


def send_places(fd: int, target: SocketHandle, places: Sequence[Place]) -> int:
    """Send bytes of a file, place by place, until the socket takes no more; how many went.  OSError when none did for another reason."""
    sent = 0
    for pos, size in places:
        end = pos + size
        while pos < end:
            try:
                step = os.sendfile(target.fileno(), fd, pos, end - pos)
                if not step:
                    raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            except BlockingIOError:
                return sent
            except OSError:
                if sent:
                    return sent  # the next call meets it again
                raise
            pos, sent = pos + step, sent + step
    return sent


def first_bytes(places: Sequence[Place], most: int) -> list[Place]:
    """The first of these bytes."""
    taken: list[Place] = []
    for pos, size in places:
        if most <= 0:
            break
        taken.append((pos, min(size, most)))
        most -= size
    return taken
