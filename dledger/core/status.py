"""One look at a core, for operators and tests.  Owns values only."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.types import EntryId, Membership, NodeId, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProgress:
    """What a leader knows of one member."""

    node: NodeId
    state: str
    match: int
    next: int
    inflight_messages: int
    inflight_bytes: int
    silent_ms: int  # since its last answer; of one that was never ``heard``, since this node leads
    has_answered: bool
    low_on_space: bool
    yields: str
    copied_bytes: int | None
    sync_ms: int  # how long a write took lately to be on its disk; 0: not long


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStatus:
    """A core at one moment; ``peers`` is empty unless it leads.

    ``protocol_errors`` counts answers that no correct peer gives, ``ack_regressions`` followers that denied what they had acknowledged
    without a word of a loss of power: their disk lied.  ``election_timeout_ms`` is how long a silence of the leader this core bridges
    now (``silence.py``).  ``kept``: the first and the last of the entries that another replica has and deletes only by age;
    (0, 0): none is known.
    """

    node: NodeId
    role: Role
    term: int
    vote: NodeId | None
    leader: NodeId | None
    confirmed: bool
    first_index: int
    last: EntryId
    durable: int
    commit: int
    applied: int
    membership: Membership
    membership_index: int
    peers: tuple[PeerProgress, ...]
    uncommitted_bytes: int
    transfer_target: NodeId | None
    storage: str
    protocol_errors: int
    ack_regressions: int
    suspect: bool
    election_timeout_ms: int
    kept: tuple[int, int]
