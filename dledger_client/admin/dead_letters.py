"""What ``Admin`` returns of the dead letters of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_wire.status import Perm


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a consumer group in one replica group.

    Attributes:
        consumer_group: The consumer group.
        replica_group: The replica group that stores them.
        topic: The topic that holds them.
        perm: That topic's permission bits: 2 write, 4 read.
        min_offset: Offset of the oldest one that is still stored.
        max_offset: Offset of the next one.
        redriven_end: Offset of the next one that a redrive sends.
    """

    consumer_group: str
    replica_group: str
    topic: str
    perm: int
    min_offset: int
    max_offset: int
    redriven_end: int

    @property
    def waiting(self) -> int:
        """How many were not sent again yet."""
        return self.max_offset - self.redriven_end

    @property
    def readable(self) -> bool:
        """Whether consumers may read them."""
        return bool(self.perm & Perm.READ)
