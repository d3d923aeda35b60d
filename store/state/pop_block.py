"""A block of neighbouring messages that a group consumes one by one: who may have which, in columns.

Owns the columns and their JSON.  A million messages in flight are a thousand blocks of five arrays, not a million objects.  A message that
the group is done with is due at ``DONE``, and has nothing else: blocks of nothing but these are not kept at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 1024
DONE = np.iinfo(np.int64).max
MAX_ATTEMPTS = np.iinfo(np.uint16).max

Places = npt.NDArray[np.int64]  # within the block


class Block:
    """``due``: from when on the message is free; ``leases``: the newest one, also while it is free again; ``attempts``: deliveries;
    ``first_s``: when the first of these was, in seconds since 1970, rounded up: no age is overstated."""

    __slots__ = ("attempts", "due", "earliest", "first_s", "groups", "leases", "left")

    def __init__(self) -> None:
        self.due = np.full(BLOCK, DONE, np.int64)
        self.leases = np.zeros(BLOCK, np.int64)
        self.attempts = np.zeros(BLOCK, np.uint16)
        self.first_s = np.zeros(BLOCK, np.uint32)
        self.groups: npt.NDArray[np.uint32] | None = None  # of messages in order within their message groups
        self.earliest = DONE  # of ``due``
        self.left = 0  # how many messages are not done

    def copy(self) -> Block:
        copied = Block.__new__(Block)
        copied.due, copied.leases, copied.attempts = self.due.copy(), self.leases.copy(), self.attempts.copy()
        copied.first_s = self.first_s.copy()
        copied.groups = None if self.groups is None else self.groups.copy()
        copied.earliest, copied.left = self.earliest, self.left
        return copied

    def _changed(self) -> None:
        self.earliest = int(self.due.min())
        self.left = int(np.count_nonzero(self.due != DONE))

    def lease(self, places: Places, due_ms: int, lease: int, at_ms: int) -> None:
        self.due[places] = due_ms
        self.leases[places] = lease
        attempts = self.attempts[places]
        self.first_s[places[attempts == 0]] = -(-at_ms // 1000)
        self.attempts[places] = attempts + (attempts < MAX_ATTEMPTS)
        self._changed()

    def uncount(self, places: Places) -> None:
        """As if the newest delivery had not been."""
        attempts = self.attempts[places]
        self.attempts[places] = attempts - (attempts > 0)
        self.first_s[places[attempts <= 1]] = 0

    def wait(self, places: Places, due_ms: int) -> None:
        """Messages are free from ``due_ms`` on; nothing else of them changes."""
        self.due[places] = due_ms
        self._changed()

    def finish(self, places: Places) -> None:
        self.due[places] = DONE
        self.leases[places] = 0
        self.attempts[places] = 0
        self.first_s[places] = 0
        if self.groups is not None:
            self.groups[places] = 0
        self._changed()

    def set_groups(self, places: Places, groups: npt.NDArray[np.uint32]) -> None:
        if self.groups is None:
            self.groups = np.zeros(BLOCK, np.uint32)
        self.groups[places] = groups

    def rows(self) -> list[list[int]]:
        """Runs of messages that are alike: how many, due (-1: done), lease, attempts, first delivery and, if the block has them, message
        group."""
        columns: list[npt.NDArray[Any]] = [np.where(self.due == DONE, -1, self.due), self.leases, self.attempts, self.first_s]
        if self.groups is not None:
            columns.append(self.groups)
        differs = np.zeros(BLOCK - 1, np.bool_)
        for column in columns:
            differs |= column[1:] != column[:-1]
        firsts = np.concatenate(([0], np.flatnonzero(differs) + 1))
        counts = np.diff(np.append(firsts, BLOCK))
        return [list(row) for row in zip(counts.tolist(), *(column[firsts].tolist() for column in columns), strict=True)]

    @classmethod
    def of_rows(cls, rows: list[list[int]]) -> Block:
        block, at = cls(), 0
        if len(rows[0]) > 5:
            block.groups = np.zeros(BLOCK, np.uint32)
        for count, due, lease, attempts, first_s, *group in rows:
            run = slice(at, at + count)
            block.due[run], block.leases[run], block.attempts[run] = DONE if due < 0 else due, lease, attempts
            block.first_s[run] = first_s
            if block.groups is not None:
                block.groups[run] = group[0]
            at += count
        block._changed()
        return block
