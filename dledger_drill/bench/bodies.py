"""The bodies that a bench sends: all different, none compressible, each with its number in front.

Owns their layout, the making of them (a slice of one random block, cheap enough not to be what is measured) and finding the numbers again
in what is read.  Numbers belong to a run: a topic may hold the messages of several benches.

    magic (4) | run (4) | number (8) | random bytes
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dledger_client.fetch.records import Chunk

MAGIC = 0x646C6231  # "dlb1"
HEAD = struct.Struct(">IIQ")
HEAD_DTYPE = np.dtype([("magic", ">u4"), ("run", ">u4"), ("number", ">u8")])
SMALLEST_BODY = HEAD.size
BLOCK_BYTES = 4 << 20
STEP = 1_000_003  # odd, so that slices begin at every place of the block before one comes again; large, so that neighbours share no bytes
NUMBERS_LIMIT = 1 << 32  # a larger one is not a bench's: a bitmap must not grow by what another program wrote

Numbers = npt.NDArray[np.uint64]


class Bodies:
    """The numbered bodies of one run, ``low`` to ``high`` bytes long."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.run = int.from_bytes(os.urandom(4), "big")
        block = os.urandom(BLOCK_BYTES)
        self._block = block + (block * (high // BLOCK_BYTES + 1))[:high]

    @property
    def text(self) -> str:
        return f"{self.low} B" if self.low == self.high else f"{self.low} to {self.high} B"

    def make(self, number: int) -> bytes:
        at = number * STEP % BLOCK_BYTES
        size = self.low + at % (self.high - self.low + 1)
        return HEAD.pack(MAGIC, self.run, number) + self._block[at : at + size - SMALLEST_BODY]

    def bytes_in(self, numbers: Numbers) -> int:
        """How many bytes the bodies with these numbers have together."""
        places = numbers * np.uint64(STEP) % np.uint64(BLOCK_BYTES)
        return int((places % np.uint64(self.high - self.low + 1)).sum()) + self.low * len(numbers)

    def number_in(self, body: bytes) -> int:
        """The number of a body of this run; ValueError for any other."""
        magic, run, number = HEAD.unpack_from(body)
        if (magic, run) != (MAGIC, self.run):
            raise ValueError("a body that this benchmark did not send")
        return int(number)


@dataclass(frozen=True, slots=True)
class FoundNumbers:
    """The numbers in a chunk by their run, and how many of its messages are not a bench's."""

    by_run: dict[int, Numbers]
    others: int


def numbers_in(chunk: Chunk) -> FoundNumbers:
    columns = chunk.columns
    at = columns.body_at[columns.body_length >= SMALLEST_BODY]
    frames = np.frombuffer(chunk.frames, np.uint8)
    heads = frames[at[:, None] + np.arange(HEAD.size)].view(HEAD_DTYPE).reshape(-1)
    heads = heads[(heads["magic"] == MAGIC) & (heads["number"] < NUMBERS_LIMIT)]
    runs = heads["run"].astype(np.uint32)
    by_run = {int(run): heads["number"][runs == run].astype(np.uint64) for run in np.unique(runs)}
    return FoundNumbers(by_run, chunk.count - len(heads))
