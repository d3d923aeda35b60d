"""Plain value types of the Raft core: what a node is, what an entry is without its bytes, what is durable.

Owns no behaviour beyond comparison.  Indexes start at 1; index 0 with term 0 is "before the first entry".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import NewType

NodeId = NewType("NodeId", str)


class Role(Enum):
    """The role a replica plays in its group; PRE_CANDIDATE asks whether an election could be won, without raising the term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
    LEARNER = "learner"


class EntryKind(IntEnum):
    """What an entry carries; the values are the magic numbers of the entry header (docs/reference/formats.md)."""

    NORMAL = 1
    NO_OP = 2
    CONFIG = 3


# Beyond these lies what no group reaches; a message that says so is broken.  A node that was away may find that terms rose by MAX_TERM_STEP
# at the most: that many elections, one a second, take half a year.
MAX_TERM = 1 << 48
MAX_INDEX = 1 << 48
MAX_TERM_STEP = 1 << 24


@dataclass(frozen=True, slots=True)
class EntryId:
    """(index, term): the identity of a log entry.  Two logs that hold the same EntryId agree on every entry before it."""

    index: int
    term: int


ZERO_ENTRY = EntryId(0, 0)


@dataclass(frozen=True, slots=True)
class EntryMeta:
    """An entry as the core sees it: its term, its kind, the bytes it takes in the log, and its configuration if it holds one."""

    term: int
    size_bytes: int
    kind: EntryKind = EntryKind.NORMAL
    config: Membership | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters and learners of a group, as written in the newest configuration entry of the log (committed or not).

    ``stores`` names the data folders of those whose folder is known, by member: a node on another folder is not that member,
    since it has not promised what the member has.  What the id means is not the core's business.
    """

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    stores: tuple[tuple[NodeId, str], ...] = ()

    @property
    def members(self) -> tuple[NodeId, ...]:
        return (*self.voters, *self.learners)

    def store_of(self, member: NodeId) -> str:
        """Empty when the folder is not named."""
        return next((store for node, store in self.stores if node == member), "")

    def with_stores(self, stores: Mapping[NodeId, str]) -> Membership:
        """The same members with these folders; ids of others, and empty ones, are left out."""
        return replace(self, stores=tuple(sorted((node, stores[node]) for node in self.members if stores.get(node))))

    def __contains__(self, node: object) -> bool:
        return node in self.voters or node in self.learners


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node promised: its term and its vote in that term.  Durable before any message that rests on it leaves."""

    term: int = 0
    vote: NodeId | None = None


NO_HARD_STATE = HardState()
