"""Effects: what the driver must do after a step, in the order returned.

The ordering rule (held by the driver, and only there): Append and CutTail form one ordered write stream, in which none is on stable
storage before each SaveHardState returned before it; a ``Send`` with ``after_promise`` leaves only when the hard state returned before it
is on stable storage, one with ``after_sync`` when every write returned before it is; everything else may go at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from dledger.core.causes import LeaderLoss
from dledger.core.messages import Message
from dledger.core.types import EntryId, EntryMeta, Membership, NodeId, Role


@dataclass(slots=True)
class SaveHardState:
    """Write (term, vote) as one atomic record."""

    term: int
    vote: NodeId | None


@dataclass(slots=True)
class Append:
    """Add entries at the end of the log.

    Leader: the entry just proposed (or the no-op / configuration the core makes itself).  Follower: the last ``len(entries)`` of the
    raw entries that came with the message being stepped; the ones before are already in the log.
    """

    first_index: int
    entries: tuple[EntryMeta, ...]


@dataclass(slots=True)
class CutTail:
    """Remove ``from_index`` and everything after it (a conflict with the leader's log).  Never at or below the commit index."""

    from_index: int


@dataclass(slots=True)
class Send:
    """Send ``message`` to ``to``; the driver adds the raw entries of an AppendRequest, read from the log.

    ``after_sync``: hold until all writes returned before it are durable.  Append acknowledgements always have it.
    ``after_promise``: hold until the hard state is.  Everything has it that is sent in a term, or with a vote, not durable yet.
    """

    to: NodeId
    message: Message
    after_sync: bool = False
    after_promise: bool = False


@dataclass(slots=True)
class CommitTo:
    """Everything up to ``index`` is committed; it never goes back."""

    index: int


@dataclass(slots=True)
class RoleChanged:
    """The role, the term or the known leader changed.  ``confirmed``: a leader that has committed an entry of its own term.

    ``loss``: what became of the leader before; ``leaderless_ms``: for how long it has not been heard.
    """

    role: Role
    term: int
    leader: NodeId | None
    confirmed: bool = False
    loss: LeaderLoss | None = None
    leaderless_ms: int = 0


@dataclass(slots=True)
class ReadReady:
    """A linearizable read may be served once everything up to ``index`` is applied here."""

    token: int
    index: int


@dataclass(slots=True)
class ReadFailed:
    """The read could not be confirmed (no leader, leadership lost); the caller may retry."""

    token: int


class RefusedReason(Enum):
    """Why a proposal, transfer or membership change was definitely not accepted."""

    NOT_LEADER = "not_leader"
    TRANSFERRING = "transferring"
    BUSY = "busy"
    STORAGE = "storage"
    CHANGE_IN_PROGRESS = "change_in_progress"
    NOT_READY = "not_ready"
    UNKNOWN_TARGET = "unknown_target"
    INVALID_CHANGE = "invalid_change"
    NOT_CAUGHT_UP = "not_caught_up"
    NO_LIVE_MAJORITY = "no_live_majority"


@dataclass(slots=True)
class Refused:
    """The event of this step was refused; nothing was appended."""

    reason: RefusedReason
    leader: NodeId | None = None


@dataclass(slots=True)
class TransferEnded:
    """A leadership transfer ended: ``done`` when the target took over, otherwise it was aborted."""

    target: NodeId
    done: bool


@dataclass(slots=True)
class MembershipChanged:
    """The configuration in force changed (on append, or back on truncation); the driver connects and disconnects peers."""

    membership: Membership


@dataclass(slots=True)
class UnregisteredMember:
    """A member whose data folder no configuration names has answered this leader: the next configuration may name it (``Raft.named``)."""

    node: NodeId


@dataclass(slots=True)
class FetchSnapshot:
    """This replica needs entries its leader ``source`` has deleted: fetch a snapshot that reaches ``last``, its commit index.

    Repeated while the download runs (it continues) and after it failed (it is retried).  The snapshot has become pointless
    once ``Raft.snapshot_wanted`` is None.
    """

    source: NodeId
    first_available: int
    last: EntryId


@dataclass(slots=True)
class MessageRefused:
    """A message of ``source`` contradicts this core and was dropped: the driver must close its link.

    ``committed``: it is a leader's, and has another entry where this core has one committed.
    """

    source: NodeId
    reason: str
    committed: bool = False


class ContradictionKind(StrEnum):
    """DENIED: a follower denied what it had acknowledged.  BEYOND_LOG: it acknowledged what this leader does not have."""

    DENIED = "denied"
    BEYOND_LOG = "beyond_log"


@dataclass(slots=True)
class PeerContradicts:
    """A follower answered what none with a sound disk does.  Operators have to know; nothing else follows from it."""

    source: NodeId
    kind: ContradictionKind
    text: str


@dataclass(slots=True)
class Sound:
    """This replica, which had lost power with entries not synced, holds all again that it may have acknowledged."""


@dataclass(slots=True)
class Diverged:
    """Under ASYNC_FLUSH: power was lost before a majority had synced entry ``index``, which was committed here, and ``source`` has another
    one committed in its place.

    Log and state of this replica are invalid from there on; it must start from scratch with what the others have.
    """

    source: NodeId
    index: int


Effect = (
    SaveHardState
    | Append
    | CutTail
    | Send
    | CommitTo
    | RoleChanged
    | ReadReady
    | ReadFailed
    | Refused
    | TransferEnded
    | MembershipChanged
    | UnregisteredMember
    | FetchSnapshot
    | MessageRefused
    | PeerContradicts
    | Sound
    | Diverged
)
