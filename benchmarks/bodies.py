"""Numbered bodies that do not compress, and the account of which of them came back.

A body is a function of its number: eight bytes of number, then a piece of random bytes.  So a reader can say which message it has, and make
it again to compare.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from functools import cache
from typing import Any

NUMBER_BYTES = 8
POOL_BYTES = 16 << 20  # far more than a batch, so that no batch has the same piece twice
COMPARED_EVERY = 997  # a prime: every queue gets some of the bodies that are compared whole


def parse_size(text: str) -> tuple[int, int]:
    """``1024`` or ``512-1536`` as smallest and largest; ValueError for others."""
    low, dash, high = text.strip().partition("-")
    sizes = int(low), int(high) if dash else int(low)
    if not NUMBER_BYTES <= sizes[0] <= sizes[1] <= 1 << 20:
        raise ValueError(f"{text}: expected bytes from {NUMBER_BYTES} to 1048576, or a range of them")
    return sizes


@cache
def _pool() -> bytes:
    return random.Random(17).randbytes(POOL_BYTES)


class Bodies:
    """The bodies of one size, or of sizes between two."""

    def __init__(self, size: str) -> None:
        self._low, high = parse_size(size)
        self._span = high - self._low + 1
        self._places = POOL_BYTES - high

    def size(self, number: int) -> int:
        return self._low + (number * 2_654_435_761 >> 8) % self._span

    def body(self, number: int) -> bytes:
        at = number * 40_503_017 % self._places
        return number.to_bytes(NUMBER_BYTES, "big") + _pool()[at : at + self.size(number) - NUMBER_BYTES]

    def many(self, first: int, end: int) -> list[bytes]:
        return [self.body(number) for number in range(first, end)]

    def total_bytes(self, count: int) -> int:
        return sum(map(self.size, range(count)))


class Seen:
    """How many times each number came back."""

    def __init__(self, expected: int, bodies: Bodies) -> None:
        self.expected = expected
        self.strange = 0  # numbers that were never sent, or bodies that differ from what was sent
        self.bytes = 0
        self._bodies = bodies
        self._times = bytearray(expected)

    def see(self, given: Iterable[bytes]) -> int:
        """Count bodies; returns how many there were."""
        times, expected, number_of, count, size = self._times, self.expected, int.from_bytes, 0, 0
        for body in given:
            number = number_of(body[:NUMBER_BYTES], "big")
            count += 1
            size += len(body)
            if number >= expected or times[number] == 255:
                self.strange += 1
                continue
            times[number] += 1
            if number % COMPARED_EVERY == 0:
                self._compare(number, body)
        self.bytes += size
        return count

    def see_column(self, column: Any) -> int:
        """The same for bodies in a column of Arrow, without an object for each."""
        import numpy as np

        times = np.frombuffer(self._times, np.uint8)
        for chunk in column.chunks:
            borders = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            data = np.frombuffer(chunk.buffers()[2], np.uint8) if len(chunk) else np.zeros(0, np.uint8)
            numbers = data[borders[:-1, None] + np.arange(NUMBER_BYTES)].view(">u8")[:, 0]
            known = numbers < self.expected
            self.strange += int(len(numbers) - known.sum())
            np.add.at(times, numbers[known].astype(np.int64), 1)
            self.bytes += int(borders[-1] - borders[0])
            for row in np.flatnonzero(numbers % COMPARED_EVERY == 0):
                self._compare(int(numbers[row]), chunk[int(row)].as_py())
        return len(column)

    def _compare(self, number: int, body: bytes) -> None:
        self.strange += body != self._bodies.body(number)

    @property
    def distinct(self) -> int:
        return self.expected - self._times.count(0)

    @property
    def doubled(self) -> int:
        return sum(self._times) - self.distinct

    def lost_of(self, acknowledged: array[float]) -> int:
        """Numbers that were acknowledged (at a time above zero) and are not there."""
        return sum(at > 0 and not times for at, times in zip(acknowledged, self._times, strict=False))
