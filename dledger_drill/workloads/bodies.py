"""Bodies of messages: a value that names the message, and bytes that follow from it, so that every reader sees whether one has changed.

Most are small, some have kilobytes, a few are as large as a log file's write in pieces; some can be compressed.  What is read of a queue is
kept in the history as runs of consecutive offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

END_OF_VALUE = b"\n"
SMALL, MEDIUM, LARGE = 256, 4 << 10, 64 << 10  # upper bounds in bytes
CHANGED = "(changed)"


def body_of(value: str) -> bytes:
    name = value.encode()
    digest = hashlib.blake2b(name, digest_size=16).digest()
    return name + END_OF_VALUE + _filler(digest, _size(digest))


def value_of(body: bytes) -> str:
    """The value; of a body that is not as it was made, one that was never sent."""
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


Row = TypeVar("Row")


def consecutive_runs(rows: Iterable[tuple[int, Row]]) -> list[tuple[int, list[Row]]]:
    """Rows with their offsets in rising order -> first offset and rows of each run; an offset that comes twice begins a run."""
    runs: list[tuple[int, list[Row]]] = []
    for offset, row in rows:
        if not runs or offset != runs[-1][0] + len(runs[-1][1]):
            runs.append((offset, []))
        runs[-1][1].append(row)
    return runs


def of_queues(rows: Iterable[Sequence[object]]) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Rows (group, queue, offset, body) in any order -> by queue, (offset, value) in rising order."""
    queues: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for group, queue, offset, body in rows:
        queues.setdefault((str(group), int(str(queue))), []).append((int(str(offset)), value_of(bytes(cast(bytearray, body)))))
    for content in queues.values():
        content.sort()
    return queues
