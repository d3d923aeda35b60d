"""What became of every message of a bench: sent, acknowledged, read, each once.

Owns the bitmaps of numbers (a bit a message, so that a hundred million fit) and the line that says what was checked.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from dledger_cli.output import with_spaces
from dledger_drill.bench.bodies import Numbers, numbers_in

if TYPE_CHECKING:
    from dledger_client.fetch.records import Chunk

SMALLEST_BITMAP_BYTES = 1 << 10


class NumberSet:
    """Which numbers were marked, and how many marks were of a number that had one."""

    def __init__(self) -> None:
        self.marks = 0
        self._bits = np.zeros(SMALLEST_BITMAP_BYTES, np.uint8)

    def mark(self, numbers: Numbers) -> None:
        if not len(numbers):
            return
        places = (numbers >> np.uint64(3)).astype(np.int64)
        missing_bytes = int(places.max()) + 1 - len(self._bits)
        if missing_bytes > 0:
            self._bits = np.concatenate([self._bits, np.zeros(max(missing_bytes, len(self._bits)), np.uint8)])
        # Without buffering: numbers of one call share bytes.
        np.bitwise_or.at(self._bits, places, (np.uint64(1) << (numbers & np.uint64(7))).astype(np.uint8))
        self.marks += len(numbers)

    def mark_range(self, first: int, end: int) -> None:
        self.mark(np.arange(first, end, dtype=np.uint64))

    @property
    def distinct(self) -> int:
        return int(np.bitwise_count(self._bits).sum())

    @property
    def duplicated(self) -> int:
        return self.marks - self.distinct

    def numbers(self) -> Numbers:
        return np.flatnonzero(np.unpackbits(self._bits, bitorder="little")).astype(np.uint64)

    def missing_in(self, other: NumberSet) -> int:
        """How many of these numbers the other set does not have."""
        size = max(len(self._bits), len(other._bits))
        mine, others = (np.pad(bits, (0, size - len(bits))) for bits in (self._bits, other._bits))
        return int(np.bitwise_count(mine & ~others).sum())


class ReadAccount:
    """What was read: the numbers of each run, and messages that no bench made."""

    def __init__(self) -> None:
        self.runs: defaultdict[int, NumberSet] = defaultdict(NumberSet)
        self.others = 0

    def read(self, chunk: Chunk) -> None:
        found = numbers_in(chunk)
        self.others += found.others
        for run, numbers in found.by_run.items():
            self.runs[run].mark(numbers)

    @property
    def distinct(self) -> int:
        return sum(numbers.distinct for numbers in self.runs.values())

    @property
    def duplicated(self) -> int:
        return sum(numbers.duplicated for numbers in self.runs.values())


def produced_text(acknowledged: int, sent: int, read_back: tuple[int, int] | None) -> str:
    """``read_back``: how many were lost, and duplicated, of those acknowledged; None when it was not looked at."""
    text = f"checked: {with_spaces(acknowledged)} of {with_spaces(sent)} distinct messages acknowledged"
    if read_back is None:
        return f"{text}; not read back"
    lost, duplicated = read_back
    return f"{text}, then all read back: lost {with_spaces(lost)}, duplicated {with_spaces(duplicated)}"


def consumed_text(account: ReadAccount, asked: int, lost: int) -> str:
    text = f"checked: {with_spaces(account.distinct)} distinct messages of {with_spaces(asked)}"
    text += f"; lost {with_spaces(lost)}, duplicated {with_spaces(account.duplicated)}"
    return f"{text}; {with_spaces(account.others)} without a bench's number" if account.others else text
