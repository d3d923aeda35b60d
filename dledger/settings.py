"""Settings of one replica, and the values of its status.

Owns values only.  ``CoreConfig`` and ``LogConfig`` have the settings of the core and of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dledger.core.config import CoreConfig
from dledger.core.status import CoreStatus
from dledger.core.types import EntryId, Membership, NodeId, Role
from dledger.log.config import LogConfig
from dledger_wire.feature_levels import LEVEL_0, LevelRange


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
    snapshot_bytes_per_s: int = 100 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A member as this node sees it.

    ``match_index``, ``state``, ``silent_ms``, ``acknowledges``, ``low_on_space`` and ``yields`` are known to the leader only (-1, "" and
    False elsewhere).  A member ``acknowledges`` when a write may count on it: it is not refused, its log matches, and it has answered
    within an election timeout.  One that is ``low_on_space`` would refuse new messages if it led; one that ``yields`` leads only as a last
    resort, and the word says why.
    """

    node_id: NodeId
    address: str
    connected: bool
    voter: bool
    match_index: int
    state: str = ""
    silent_ms: int = -1
    has_answered: bool = False  # in the leader's term; ``silent_ms`` of another one counts from its start
    refused: str = ""  # why no link with it is let in, here or there
    acknowledges: bool = False
    low_on_space: bool = False
    yields: str = ""
    copied_bytes: int | None = None  # what it has received of snapshots since its start; None where it is not known
    sync_ms: int = 0  # how long a write took lately to be on its disk; 0: not long, or not known
    levels: LevelRange = LEVEL_0  # feature levels that its build can do, by its last handshake; ``version``: of the build
    version: str = ""

    @property
    def is_able_to_lead(self) -> bool:
        """Whether it would lead as well as any other: it has room, and is no last resort."""
        return not self.low_on_space and not self.yields

    def answers(self, within_ms: int) -> bool:
        """Whether it is connected and the leader heard from it in the last ``within_ms``; never true where ``silent_ms`` is not known."""
        return self.connected and 0 <= self.silent_ms < within_ms


def peer_statuses(
    own: NodeId,
    membership: Membership,
    addresses: Mapping[NodeId, str],
    core: CoreStatus,
    link: Callable[[NodeId], tuple[bool, str]],
    timeout_ms: int,
    build: Callable[[NodeId], tuple[LevelRange, str]],
) -> tuple[PeerStatus, ...]:
    """Every member as this node sees it; ``link`` gives whether one is connected, and why it is refused; ``build`` its build."""
    known = {peer.node: peer for peer in core.peers}
    found = []
    for node in (*membership.voters, *membership.learners):
        peer = known.get(node)
        connected, refused = (True, "") if node == own else link(node)
        answers = peer is not None and peer.match and peer.state == "replicate" and peer.silent_ms < timeout_ms
        leads = node == own and core.role is Role.LEADER
        levels, version = build(node)
        found.append(
            PeerStatus(
                node_id=node,
                address=addresses.get(node, ""),
                connected=connected,
                voter=node in membership.voters,
                match_index=peer.match if peer is not None else core.durable if leads else -1,
                state=peer.state if peer is not None else "",
                silent_ms=peer.silent_ms if peer is not None else -1,
                has_answered=peer is not None and peer.has_answered,
                refused=refused,
                acknowledges=leads if peer is None else bool(answers and connected and not refused),
                low_on_space=peer is not None and peer.low_on_space,
                yields=peer.yields if peer is not None else "",
                copied_bytes=peer.copied_bytes if peer is not None else None,
                sync_ms=peer.sync_ms if peer is not None else 0,
                levels=levels,
                version=version,
            )
        )
    return tuple(found)


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
    damaged: tuple[str, ...]  # damage in the log that no peer could repair so far
    copying: str  # progress of the snapshot this node receives; empty when there is none
    refused_messages: int  # of peers: damaged, or none that a correct peer sends; each of them ended its link
    failed: str
    peers: tuple[PeerStatus, ...]
    uncommitted_bytes: int = 0  # of a leader: entries behind the commit index
    oldest_uncommitted_s: float = 0.0  # of a leader: how long the oldest of them has waited
    slowest_flush_s: float = 0.0  # how long the slowest write of late took to be on the disk, or has taken so far
    proposals_waiting: int = 0  # callers that wait for an outcome
    contradicted: str = ""  # what a leader has in the place of an entry that is committed here
    contradictions: Mapping[str, int] = field(default_factory=dict)  # of followers to this leader, by ``ContradictionKind``
    lineage: str = ""  # of its log (membership/lineage.py)
    election_timeout_ms: int = 0  # how long its leader may be silent now; at most the configured one
