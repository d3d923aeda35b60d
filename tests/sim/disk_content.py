"""What a simulated file holds: sparse pages, what of it is on stable storage, and the writes on the way there.

Owns the rules of losing data.  A file has its content as programs see it (the page cache) and as a power failure leaves it; between the
two lies an ordered list of pending operations.  A sync makes those durable that were there when it began; a power failure keeps, drops
or tears each of the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

PAGE = 4096
SECTOR = 512
_ZEROS = bytes(PAGE)


class Pages:
    """Sparse bytes of a given size; absent pages are zeros."""

    __slots__ = ("pages", "size")

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.size = 0

    def copy(self) -> Pages:
        other = Pages()
        other.size = self.size
        other.pages = {number: bytearray(page) for number, page in self.pages.items()}
        return other

    def read(self, pos: int, size: int) -> bytes:
        end = min(pos + size, self.size)
        if end <= pos:
            return b""
        first, last = pos // PAGE, (end - 1) // PAGE
        if first == last:
            page = self.pages.get(first)
            start = pos - first * PAGE
            return bytes(end - pos) if page is None else bytes(memoryview(page)[start : start + end - pos])
        whole = b"".join(self.pages.get(number, _ZEROS) for number in range(first, last + 1))
        return whole[pos - first * PAGE : end - first * PAGE]

    def write(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        done, size = 0, len(data)
        while done < size:
            number, start = divmod(pos + done, PAGE)
            step = min(PAGE - start, size - done)
            page = self.pages.get(number)
            if page is None:
                page = self.pages[number] = bytearray(PAGE)
            page[start : start + step] = data[done : done + step]
            done += step
        if size and pos + size > self.size:
            self.size = pos + size

    def resize(self, size: int) -> None:
        if size < self.size:
            keep = -(-size // PAGE)
            for number in [number for number in self.pages if number >= keep]:
                del self.pages[number]
            if size % PAGE and size // PAGE in self.pages:
                page = self.pages[size // PAGE]
                page[size % PAGE :] = bytes(PAGE - size % PAGE)
        self.size = size

    def whole(self) -> bytes:
        return self.read(0, self.size)


@dataclass(slots=True)
class Pending:
    """A write (``data``) or a change of size to ``pos`` (``data`` None; ``grow`` only ever lets it grow)."""

    pos: int
    data: bytes | None
    grow: bool = False

    def apply(self, pages: Pages) -> None:
        if self.data is not None:
            pages.write(self.pos, self.data)
        elif not self.grow or self.pos > pages.size:
            pages.resize(self.pos)


class Loss(Enum):
    """What a power failure does to what was not synced."""

    NOTHING_KEPT = "nothing"
    ALL_KEPT = "all"
    PREFIX = "prefix"  # the operations reached the disk in order, the last of them perhaps in part
    SUBSET = "subset"  # each on its own, each perhaps in part


class Unreadable:
    """What of a file cannot be read: the disk takes another sector for one that is written whole, a file that is cut gives it back."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, pos: int, size: int) -> None:
        self._ranges.append((pos, pos + size))

    def takes(self, start: int, end: int) -> bool:
        """Whether this range can be written: a sector of which only a part is written has to be read for the rest."""
        return all(last <= start or end <= first or start <= first < last <= end for first, last in self._ranges)

    def written(self, start: int, end: int) -> None:
        self._ranges = [(first, last) for first, last in self._ranges if not start <= first < last <= end]

    def cut(self, size: int) -> None:
        self._ranges = [(first, min(last, size)) for first, last in self._ranges if first < size]

    def spares(self, pos: int, size: int) -> bool:
        """Whether this range can be read."""
        return not any(first < pos + size and pos < last for first, last in self._ranges)


class Content:
    """One file (what a Unix inode is): outlives its names while it is open."""

    __slots__ = ("current", "durable", "pending", "unreadable")

    def __init__(self) -> None:
        self.current = Pages()
        self.durable = Pages()
        self.pending: list[Pending] = []
        self.unreadable = Unreadable()

    def do(self, operation: Pending) -> None:
        operation.apply(self.current)
        self.pending.append(operation)
        if operation.data is not None:
            self.unreadable.written(operation.pos, operation.pos + len(operation.data))
        elif not operation.grow:
            self.unreadable.cut(operation.pos)

    def synced(self, count: int) -> None:
        """The oldest ``count`` pending operations are on stable storage."""
        for operation in self.pending[:count]:
            operation.apply(self.durable)
        del self.pending[:count]

    def written_back(self) -> None:
        """The kernel wrote what is pending by itself; nobody is told."""
        for operation in self.pending:
            operation.apply(self.durable)

    def forget_pending(self) -> None:
        """A failed sync: the kernel marks the pages clean, programs still read them, and they never reach the disk (ATC'20)."""
        self.pending.clear()

    def lose(self, loss: Loss, rng: random.Random) -> None:
        """Power failure."""
        pending, self.pending = self.pending, []
        durable = self.durable
        if loss is Loss.PREFIX:
            kept = rng.randrange(len(pending) + 1)
            for operation in pending[:kept]:
                operation.apply(durable)
            if kept < len(pending):
                _tear(pending[kept], durable, rng, orderly=True)
        elif loss is Loss.ALL_KEPT:
            for operation in pending:
                operation.apply(durable)
        elif loss is Loss.SUBSET:
            for operation in pending:
                draw = rng.random()
                if draw < 0.4:
                    operation.apply(durable)
                elif draw < 0.7:
                    _tear(operation, durable, rng, orderly=False)
        self.current = durable.copy()

    def flip(self, pos: int, mask: int) -> None:
        """Bit rot: the byte at ``pos`` changes on the medium and in the cache."""
        for pages in (self.current, self.durable):
            if pos < pages.size:
                pages.write(pos, bytes([pages.read(pos, 1)[0] ^ mask]))

    def overwrite(self, pos: int, data: bytes) -> None:
        """Other bytes stand on the medium and in the cache than were written."""
        for pages in (self.current, self.durable):
            pages.write(pos, data[: max(pages.size - pos, 0)])

    def cut_off(self, size: int) -> None:
        """The end of the file is gone, from the medium too."""
        for pages in (self.current, self.durable):
            pages.resize(min(size, pages.size))


def _tear(operation: Pending, pages: Pages, rng: random.Random, *, orderly: bool) -> None:
    """A part of the operation reached the disk: whole sectors, the first ones or any."""
    data = operation.data
    if data is None:
        if rng.random() < 0.5:
            operation.apply(pages)
        return
    unit = SECTOR if rng.random() < 0.5 else PAGE
    start, end = operation.pos, operation.pos + len(data)
    edges = [start, *range((start // unit + 1) * unit, end, unit), end]
    keep_first = rng.randrange(len(edges)) if orderly else 0
    for number in range(len(edges) - 1):
        if number < keep_first or (not orderly and rng.random() < 0.5):
            pages.write(edges[number], data[edges[number] - start : edges[number + 1] - start])
    if end > pages.size and rng.random() < 0.3:
        pages.resize(end)  # the new size arrived, the bytes did not
