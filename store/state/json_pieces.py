"""JSON of large data, a piece at a time, so that other tasks run in between.

Owns how snapshots are encoded: compact, and keys in the order of the log's history, which is the same on every replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

PIECE_VALUES = 10_000  # about: a few milliseconds
PIECE_BYTES = 128 << 10  # of rows, which may have to be encoded first: the same


class LargeValue:
    """A value that gives its JSON in pieces itself."""

    def pieces(self) -> Iterator[bytes]:
        raise NotImplementedError


def joined(rows: Iterable[bytes]) -> Iterator[bytes]:
    """The rows with commas between, in pieces."""
    gathered: list[bytes] = []
    opening, size_bytes = b"", 0
    for row in rows:
        gathered.append(row)
        size_bytes += len(row)
        if size_bytes >= PIECE_BYTES:
            yield opening + b",".join(gathered)
            gathered, opening, size_bytes = [], b",", 0
    if gathered:
        yield opening + b",".join(gathered)


def encode(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def pieces(data: Any) -> Iterator[bytes]:
    """The bytes of ``encode(data)``, cut where the data is large."""
    if isinstance(data, LargeValue):
        yield from data.pieces()
        return
    if not isinstance(data, dict | list | tuple) or _weight(data) <= PIECE_VALUES:
        yield encode(data)
        return
    is_dict = isinstance(data, dict)
    opening = b"{" if is_dict else b"["
    gathered: list[Any] = []
    weight = 0
    for item in data.items() if isinstance(data, dict) else data:
        value_weight = _weight(item[1] if is_dict else item)
        if weight + value_weight > PIECE_VALUES and gathered:
            yield opening + _inner(gathered, is_dict)
            opening, gathered, weight = b",", [], 0
        if value_weight > PIECE_VALUES:
            if is_dict:
                opening += encode(str(item[0])) + b":"
            inner = pieces(item[1] if is_dict else item)
            yield opening + next(inner)
            yield from inner
            opening = b","
            continue
        gathered.append(item)
        weight += value_weight
    yield (opening + _inner(gathered, is_dict) if gathered else b"") + (b"}" if is_dict else b"]")


def _inner(items: list[Any], is_dict: bool) -> bytes:
    return encode(dict(items) if is_dict else items)[1:-1]


def _weight(value: Any) -> int:
    """How many values are in it, about: tables have rows of one kind, so the first stands for all."""
    if isinstance(value, LargeValue):
        return PIECE_VALUES + 1
    if not isinstance(value, dict | list | tuple) or not value:
        return 1
    return len(value) * (1 + _weight(next(iter(value.values() if isinstance(value, dict) else value))))
