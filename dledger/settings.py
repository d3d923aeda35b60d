"""Settings of one replica's Raft node, and the figures it shows.

Owns values only.  ``CoreConfig`` and ``LogConfig`` have the settings of the core and of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dledger.core.config import CoreConfig
from dledger.core.status import PeerProgress
from dledger.core.types import EntryId, Membership, NodeId, Role
from dledger.log.config import LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """``peers`` has the address of every known replica of the group; ``membership`` counts until a configuration entry is in the log.
    ``links``: where this node reaches those replicas that are to be reached elsewhere than at their addresses."""

    peers: Mapping[NodeId, str]
    membership: Membership
    links: Mapping[NodeId, str] = field(default_factory=dict)
    core: CoreConfig = field(default_factory=CoreConfig)
    log: LogConfig = field(default_factory=LogConfig)
    # SYNC_FLUSH: acknowledged means on stable storage.  Otherwise (ASYNC_FLUSH) in memory; synced every flush_interval_ms when at least
    # flush_least_bytes are new, whatever is new at least every flush_thorough_interval_ms.
    sync_flush: bool = True
    flush_interval_ms: int = 500
    flush_least_bytes: int = 0
    flush_thorough_interval_ms: int = 10_000
    # While a round is in flight, this much waiting is worth an entry of its own.
    join_bytes: int = 1 << 20
    max_rounds: int = 16
    # Waiting and not yet in the log; beyond that BUSY.
    max_pending_bytes: int = 32 << 20
    max_payload_bytes: int = 16 << 20
    # In the leader's log and not yet on its own disk; beyond that proposals wait.
    max_unwritten_bytes: int = 32 << 20
    # How long a start with a damaged log asks its peers for the bytes before it gives up.
    repair_limit_s: float = 60.0
    # What all peers together that copy from this node may take of it a second; 0: no limit.
    copy_bytes_per_s: int = 100 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A member as this node sees it; ``match_index``, ``state`` and ``silent_ms`` are known to the leader only (-1 and "" elsewhere)."""

    node_id: NodeId
    address: str
    connected: bool
    voter: bool
    match_index: int
    state: str = ""
    silent_ms: int = -1


def peer_statuses(
    own: NodeId,
    membership: Membership,
    addresses: Mapping[NodeId, str],
    progress: Sequence[PeerProgress],
    connected: Callable[[NodeId], bool],
) -> tuple[PeerStatus, ...]:
    """Every member as this node sees it."""
    known = {peer.node: peer for peer in progress}
    return tuple(
        PeerStatus(
            node_id=node,
            address=addresses.get(node, ""),
            connected=node == own or connected(node),
            voter=node in membership.voters,
            match_index=known[node].match if node in known else -1,
            state=known[node].state if node in known else "",
            silent_ms=known[node].silent_ms if node in known else -1,
        )
        for node in (*membership.voters, *membership.learners)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftStatus:
    """One look at a node."""

    node_id: NodeId
    group: str
    role: Role
    term: int
    leader: NodeId | None
    confirmed: bool
    first_index: int
    last: EntryId
    durable: EntryId
    commit_index: int
    applied_index: int
    pending_bytes: int
    disk_full: bool
    damaged: tuple[str, ...]  # what is damaged in the log and no peer could put right so far
    copying: str  # how far a copy is that this node takes from a peer; empty when it takes none
    failed: str
    peers: tuple[PeerStatus, ...]
