"""Bodies of messages: a value that names the message, and bytes that follow from it, so that every reader sees whether one has changed.

Most are small, some have kilobytes, a few are as large as a log file's write in pieces; some can be compressed.
"""

from __future__ import annotations

import hashlib

END_OF_VALUE = b"\n"
SMALL, MEDIUM, LARGE = 256, 4 << 10, 64 << 10  # upper bounds in bytes
CHANGED = "(changed)"


def body_of(value: str) -> bytes:
    name = value.encode()
    digest = hashlib.blake2b(name, digest_size=16).digest()
    return name + END_OF_VALUE + _filler(digest, _size(digest))


def value_of(body: bytes) -> str:
    """The value; of a body that is not as it was made, one that nobody has sent."""
    name = bytes(body).partition(END_OF_VALUE)[0]
    try:
        value = name.decode()
    except UnicodeDecodeError:
        return f"{name!r} {CHANGED}"
    return value if body_of(value) == body else f"{value} {CHANGED}"


def _size(digest: bytes) -> int:
    share, of_it = digest[0], int.from_bytes(digest[1:3], "big")
    bound = LARGE if share < 2 else MEDIUM if share < 34 else SMALL
    return of_it * bound >> 16


def _filler(digest: bytes, size: int) -> bytes:
    if digest[3] % 2:  # of these a compressor makes little
        return (digest * (size // len(digest) + 1))[:size]
    return hashlib.shake_128(digest).digest(size)
