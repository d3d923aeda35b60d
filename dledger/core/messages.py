"""Messages between Raft cores, one dataclass per meaning.

Owns the vocabulary only.  Every message carries the sender's term; responses carry (index, term), so that a late one is recognised.
Classes are slotted but not frozen: building one is the simulator's hottest operation.  A sent message is never mutated.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.causes import Cause
from dledger.core.types import EntryId, EntryMeta, NodeId


@dataclass(slots=True, kw_only=True)
class VoteRequest:
    """Asks for a vote.  With ``pre_vote`` ``term`` is the term the sender *would* campaign in and nothing is promised."""

    term: int
    last: EntryId
    pre_vote: bool = False
    # A transfer was ordered by the leader itself, so stickiness to that leader must not refuse it (dissertation 4.2.3).
    transfer: bool = False


@dataclass(slots=True, kw_only=True)
class VoteResponse:
    """Answers a VoteRequest.  ``term`` is the request's term when granted, else the voter's own."""

    term: int
    granted: bool
    pre_vote: bool = False
    suspect: bool = False  # the voter may have lost entries that it acknowledged
    sync_ms: int = 0  # as in a HeartbeatResponse


@dataclass(slots=True, kw_only=True)
class AppendRequest:
    """Replicates entries after ``prev``.  ``entries`` describe the raw entries that travel beside the message, in order."""

    term: int
    prev: EntryId
    entries: tuple[EntryMeta, ...]
    commit: int


@dataclass(slots=True, kw_only=True)
class AppendResponse:
    """Answers an AppendRequest.

    On success ``match`` is the last entry verified by that request *and durable* here.  On rejection ``match`` is the hint of the
    fast back-up: the last entry of the follower's log whose term is not above ``prev``'s (index 0 when there is none), and
    ``rejected`` is the index that was refused.
    """

    term: int
    success: bool
    match: EntryId
    rejected: int = 0


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """Keeps leadership.  ``commit`` never exceeds what the leader knows the receiver to hold; ``round`` numbers read-index rounds.

    ``newest_commit`` is the leader's own: it commits nothing, it only shows the receiver its lag.  ``commit_term`` is that of the entry
    ``commit``, since the receiver may have been started on another log meanwhile; 0 where it is not known.
    ``election_timeout_ms``: the group's, as the leader sees it.  0: the configured one.
    ``wary_ms``: how much longer the sender knows the group to be wary (``silence.py``).
    ``sync_ms``: the longest time that a write took to be on a disk of the group (``sync_times.py``).
    ``kept_from``, ``kept_upto``: entries that another replica than the receiver has and deletes only by age; 0: none.
    """

    term: int
    commit: int
    round: int
    newest_commit: int = 0
    commit_term: int = 0
    election_timeout_ms: int = 0
    wary_ms: int = 0
    kept_from: int = 0
    kept_upto: int = 0
    sync_ms: int = 0


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse:
    """Answers a Heartbeat; ``round`` is copied from it and compared as a leader-local counter (etcd #20418); 0 to an older term's.

    ``late_ms``: the longest delay of a leader's message that the sender has seen lately.  ``wary_ms``: as in a Heartbeat, by
    what the sender saw itself.  ``low_on_space``: it would refuse new messages if it led.
    ``seekers``: voters that asked the sender for votes lately, since they hear no leader.
    ``copied_bytes``: what it has received of snapshots since its start; None where it is not known.
    ``yields``: why it leads only when no other voter can; empty: nothing.  ``keeps_from``: the first entry of its log; 0 while it may
    delete entries of any age for want of space.  ``sync_ms``: the longest time that a write took to be on its disk lately.
    """

    term: int
    round: int
    late_ms: int = 0
    wary_ms: int = 0
    low_on_space: bool = False
    seekers: tuple[NodeId, ...] = ()
    copied_bytes: int | None = None
    yields: str = ""
    keeps_from: int = 0
    sync_ms: int = 0


@dataclass(slots=True, kw_only=True)
class TimeoutNow:
    """Orders the receiver to campaign at once (leadership transfer).  ``cause`` is only reported."""

    term: int
    cause: Cause = Cause.TRANSFER


@dataclass(slots=True, kw_only=True)
class ReadIndexRequest:
    """A follower asks the leader for a read index; ``token`` is the follower's own number for the read.

    ``suspect``: it may have lost entries that it acknowledged, and asks where the leader's log ends.
    """

    term: int
    token: int
    suspect: bool = False


@dataclass(slots=True, kw_only=True)
class ReadIndexResponse:
    """The leader's answer; ``index`` is 0 and ``ok`` false when it could not confirm its leadership.  ``last``: where its log ends."""

    term: int
    token: int
    index: int
    ok: bool
    last: int = 0


@dataclass(slots=True, kw_only=True)
class SnapshotOffer:
    """The leader no longer has the entries the receiver needs; it should install a snapshot that reaches ``last``."""

    term: int
    first_available: int
    last: EntryId


Message = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | TimeoutNow
    | ReadIndexRequest
    | ReadIndexResponse
    | SnapshotOffer
)
