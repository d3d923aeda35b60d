"""Events: everything that may happen to a Raft core.  ``Raft.step(event, now_ms)`` takes one and returns effects.

Completions carry (index, term) and are checked against the log as it is now.  A late completion is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.causes import Cause
from dledger.core.messages import Message
from dledger.core.types import EntryId, EntryKind, Membership, NodeId


@dataclass(slots=True)
class Tick:
    """Time passed; ``now_ms`` of the step is the new time.  Due timers fire."""


@dataclass(slots=True)
class Received:
    """A message arrived from ``source``, which runs on the data folder ``store``."""

    source: NodeId
    message: Message
    store: str = ""


@dataclass(slots=True)
class Propose:
    """The driver offers one entry of ``size_bytes`` (header included).  Accepted: ``Append``; otherwise ``Refused``."""

    size_bytes: int
    kind: EntryKind = EntryKind.NORMAL


@dataclass(slots=True)
class Stored:
    """All entries up to ``last`` are on stable storage (or in memory under ASYNC_FLUSH)."""

    last: EntryId


@dataclass(slots=True)
class HardStateStored:
    """Term and vote are on stable storage."""

    term: int
    vote: NodeId | None


@dataclass(slots=True)
class Applied:
    """The state machine has applied everything up to ``index``."""

    index: int


@dataclass(slots=True)
class ReadRequested:
    """A linearizable read is requested; answered by ``ReadReady`` or ``ReadFailed`` with the same ``token``."""

    token: int


@dataclass(slots=True)
class TransferRequested:
    """Hand leadership to ``target``; ``None`` means the best caught-up voter.  ``cause`` is only reported."""

    target: NodeId | None
    cause: Cause = Cause.TRANSFER


@dataclass(slots=True)
class ChangeRequested:
    """Replace the membership by ``membership`` (one voter more or less, any learners); needs a committed entry of this term.

    It has to name the folders that this leader knows, see ``Raft.named``; the same members may be asked for in order to name them, or
    because one of them ``moves``: the entry then has another address, which the core does not know.
    """

    membership: Membership
    size_bytes: int
    moves: bool = False


@dataclass(slots=True)
class PeerLost:
    """The stream from ``peer`` broke.  A follower whose leader it was may start a pre-vote at once."""

    peer: NodeId


@dataclass(slots=True)
class SnapshotInstalled:
    """A snapshot was installed: the log now ends at ``last`` and starts at ``first_index``, everything durable and committed.

    To be stepped only while ``Raft.snapshot_wanted`` is set, right after the log was replaced and with no event in between.  ``before`` and
    ``terms`` describe the snapshot as ``Saved`` does; without them the core serves none of it to others.
    """

    first_index: int
    last: EntryId
    membership: Membership
    before: EntryId | None = None
    terms: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class LogTrimmed:
    """Head truncation: entries before ``first_index`` were deleted (``before`` is the entry just below it)."""

    first_index: int
    before: EntryId


@dataclass(slots=True)
class StorageFailed:
    """Writing is impossible: ``fatal`` after a failed sync (never vote, ack or lead again), not fatal when the disk is full."""

    fatal: bool


@dataclass(slots=True)
class StorageRecovered:
    """A disk that was full takes writes again."""


@dataclass(slots=True)
class LowOnSpace:
    """Whether this node's disk takes writes, but has too little room for new messages: a leader then hands over to a voter with room.

    ``sheds``: entries of any age may be deleted here for want of space, where another replica keeps them.
    """

    on: bool
    sheds: bool = False


@dataclass(slots=True)
class LeftBehind:
    """The group was recovered or restored without this replica: it neither leads nor stands for election until it starts again."""


@dataclass(slots=True)
class Campaign:
    """Start a pre-vote now (tests, operators)."""


@dataclass(slots=True)
class Deprioritize:
    """This node leads only as a last resort, and ``why``: it waits an election timeout longer before it campaigns.  Empty: no more."""

    why: str


Event = (
    Tick
    | Received
    | Propose
    | Stored
    | HardStateStored
    | Applied
    | ReadRequested
    | TransferRequested
    | ChangeRequested
    | PeerLost
    | SnapshotInstalled
    | LogTrimmed
    | StorageFailed
    | StorageRecovered
    | LowOnSpace
    | LeftBehind
    | Campaign
    | Deprioritize
)
