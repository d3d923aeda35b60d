"""Why a replica knows no leader any more: what an election, and the leader that comes of it, is explained by.

Owns the causes.  Nothing is decided by them; they are reported with every change of role.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dledger.core.types import NodeId


class Cause(Enum):
    """The values go over the wire and into files: they never change."""

    START = "start"  # no leader was known since this replica started
    SILENT = "silent"  # no message of the leader arrived for an election timeout
    LINK_LOST = "link_lost"  # the connection with the leader broke
    HIGHER_TERM = "higher_term"  # a newer term of another node was seen
    NOT_CONFIRMED = "not_confirmed"  # no majority answered this leader for an election timeout
    REQUESTED = "requested"  # an election was asked for
    # The leader gave leadership away.
    TRANSFER = "transfer"  # it was asked to
    PREFERRED = "preferred"  # another voter has a higher priority
    SPREAD = "spread"  # its host leads more replica groups than others
    STOPPING = "stopping"  # its process was stopped in order
    REMOVED = "removed"  # it is no member any more
    CLOCK = "clock"  # its clock is off
    CERTIFICATE = "certificate"  # its certificate has expired
    DISK_FULL = "disk_full"
    DISK_LOW = "disk_low"  # its disk has too little room for new messages
    DISK_SLOW = "disk_slow"  # its disk took longer than an election timeout
    LEFT_BEHIND = "left_behind"  # a voter has the log of a later lineage
    STORAGE_FAILED = "storage_failed"  # writing failed, and it is unknown what is lost

    @property
    def is_handed_over(self) -> bool:
        """Whether the leader chose its successor."""
        return self in _HANDED_OVER


_HANDED_OVER = frozenset(
    (
        Cause.TRANSFER,
        Cause.PREFERRED,
        Cause.SPREAD,
        Cause.STOPPING,
        Cause.REMOVED,
        Cause.CLOCK,
        Cause.CERTIFICATE,
        Cause.DISK_FULL,
        Cause.DISK_LOW,
        Cause.DISK_SLOW,
        Cause.STORAGE_FAILED,
    )
)


def cause_of(text: str, default: Cause) -> Cause:
    """The cause that ``text`` stands for; ``default`` for what only a newer version knows, or an older one does not say."""
    try:
        return Cause(text)
    except ValueError:
        return default


@dataclass(frozen=True, slots=True)
class LeaderLoss:
    """The leader that a replica knew, None for none since its start, and why it knows it no more.

    ``source``: the node that reported it, by a newer term.  ``since_ms``: when the leader was last heard, on the core's clock.
    """

    cause: Cause
    leader: NodeId | None
    source: NodeId | None
    since_ms: int
