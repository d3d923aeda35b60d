"""The state of nodes and replica groups: what every node reports of itself, and what a group can do now.

The confirmed leader decides on the members and on which acknowledgements count.  Without a leader a voter counts if it answers and the
other voters accept its connections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from dledger_client.cluster.routes import ReplicaGroup

CANNOT_STORE = ("read-only: the disk is full", "stopped")
OTHER_FOLDER = " comes with data folder"  # behind the node whose folder is not the one known
TAKES_NO_MESSAGES = "read-only"
NO_ANSWER = "no answer within"
EXPIRED = "its certificate"  # in what a node says whose certificate has expired
IN_SYNC_LAG_ENTRIES = 64  # a member with less to go counts as in sync


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another member of the replica group, as one node sees it.

    Only the leader knows ``match_index``, ``state``, ``last_contact_ms``, ``acknowledges`` and ``cannot_lead``.

    Attributes:
        id: The member's id.
        address: Its address, ``host:port``.
        voter: False for a learner.
        match_index: Index up to which it has acknowledged the log.
        state: How the leader replicates to it: probing, replicating, catching up.
        last_contact_ms: Milliseconds since its last answer; -1 when the node asked does not lead.
        unheard: It has answered nothing since the leader leads: ``last_contact_ms`` counts from then.
        connected: Whether there is a connection.
        acknowledges: Whether a write may count on it now.
        refused: Why one of the two refuses the connection; empty when neither does.
        cannot_lead: Why it must not lead now; empty when nothing is known against it.
    """

    id: str
    address: str = ""
    voter: bool = True
    match_index: int = 0
    state: str = ""
    last_contact_ms: int = -1
    connected: bool = False
    acknowledges: bool = False
    refused: str = ""
    unheard: bool = False
    cannot_lead: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What one node reports of itself.  Only the first six attributes have a meaning when ``reachable`` is False.

    Attributes:
        replica_group: The group of nodes it belongs to.
        id: The node's id.
        address: Its address, ``host:port``.
        reachable: Whether it answered.
        error: Why it did not answer.
        configured: False for a member that is not among the nodes asked for.
        role: leader, follower, candidate, pre_candidate or learner.
        term: Its Raft term.
        leader: Id of the leader it follows; empty when it knows none.
        leader_confirmed: Of a leader: whether an entry of its term is committed.
        first_index: Index of the first entry in its log.
        last_index: Index of the last entry in its log.
        committed_index: Index up to which it knows the log to be committed.
        applied_index: Index up to which its store has applied the log.
        durable_index: Index up to which its log is on its disk.
        committed_pos: Byte position in the log of what is committed.
        pid: Process id.
        store_id: Identity of its data folder.
        lineage: Lineage of its log, which a recovery or a restore began; empty in a group that had none.
        state: ok, "read-only: ...", "stopped: ...", "damaged: ...", or the progress of a catch-up copy.
        disk_used_percent: How full its disk is.
        rss_bytes: Resident memory of the process in bytes.
        anonymous_bytes: Of that, memory that is not mapped from files.
        version: Version of dledger.
        started_at_ms: Start of the process, milliseconds since 1970.
        voters: Ids of the voters, as this node knows them.
        learners: Ids of the learners, as this node knows them.
        peers: The other members, as this node sees them.
        role_state: Where its services are between replica and master.
        services_term: Term whose master services run here; 0 when none do.
        role_log: Its newest role changes, oldest first.
        certificate_expires_at_ms: When its certificate expires, milliseconds since 1970; 0 when it has none.
        warnings: What is to be done about it: a certificate that expires, plaintext that is still taken.
        refusals: How many callers it refused since its start, by reason, such as ``denied`` and ``wrong_credentials``.
        messages_in_total: Messages stored while it was master, since its start; duplicates are not counted.
        bytes_in_total: Their bytes.
        messages_out_total: Messages it gave to readers since its start.
        bytes_out_total: Their bytes.
        loop_lag_ms: How late its event loop was at most in the last ten to twenty seconds, in milliseconds.
        feature_level: The feature level of its replica group, as far as it has applied the log.
        lowest_level: The lowest feature level that its build can do.
        highest_level: The highest feature level that its build can do.
        cannot_lead: Why it must not lead now, by what it knows of itself; empty for nothing.
        uncommitted_ms: Of a leader: how long its oldest entry has waited to be committed, in milliseconds; 0 when none waits.
        sync_ms: How long the slowest write of the last half minute took to be on its disk, in milliseconds.
        connection_states: How many connections it has that are ``running``, ``flow`` (held up lately) or ``blocked`` (by an alarm).
        bottleneck: What most connections that wait do so for: ``memory``, ``disk``, ``follower`` and its id, ``apply``, ``log``,
            ``handler`` or ``reader``; empty when none waits.
    """

    replica_group: str
    id: str
    address: str
    reachable: bool
    error: str = ""
    configured: bool = True
    role: str = ""
    term: int = 0
    leader: str = ""
    leader_confirmed: bool = False
    first_index: int = 0
    last_index: int = 0
    committed_index: int = 0
    applied_index: int = 0
    durable_index: int = 0
    committed_pos: int = 0
    pid: int = 0
    store_id: str = ""
    state: str = ""
    disk_used_percent: float = 0.0
    rss_bytes: int = 0
    anonymous_bytes: int = 0
    version: str = ""
    started_at_ms: int = 0
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    role_state: str = ""
    services_term: int = 0
    role_log: tuple[str, ...] = ()
    certificate_expires_at_ms: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()
    messages_in_total: int = 0
    bytes_in_total: int = 0
    messages_out_total: int = 0
    bytes_out_total: int = 0
    loop_lag_ms: float = 0.0
    feature_level: int = 0
    lowest_level: int = 0
    highest_level: int = 0
    cannot_lead: str = ""
    uncommitted_ms: int = 0
    sync_ms: int = 0
    lineage: str = ""
    connection_states: Mapping[str, int] = field(default_factory=dict, hash=False)
    bottleneck: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaGroupStatus:
    """The state of one replica group.

    Attributes:
        name: The replica group.
        nodes: The nodes asked, then members that only the leader knows.
        leader: The confirmed leader with the newest term; None when there is none, or it did not answer (``leader_id``).
        voters: Ids of the voters.
        learners: Ids of the learners.
        acknowledging: Ids of the voters whose acknowledgement counts now.
    """

    name: str
    nodes: tuple[NodeStatus, ...]
    leader: NodeStatus | None
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    acknowledging: frozenset[str]

    @property
    def term(self) -> int:
        """The newest term that a node knows."""
        return max((node.term for node in self.nodes), default=0)

    @property
    def silent_leader(self) -> NodeStatus | None:
        """The node that did not answer in time, and leads by what nodes of the newest term say; None when there is no such."""
        leader = self.unreachable_leader
        return leader if leader is not None and leader.error.startswith(NO_ANSWER) else None

    @property
    def unreachable_leader(self) -> NodeStatus | None:
        """The node that gave no answer for any reason, and leads by what nodes of the newest term say; None when there is no such."""
        named = {node.leader for node in self.nodes if node.reachable and node.term == self.term} if self.leader is None else set()
        return next((node for node in self.nodes if node.id in named and not node.reachable), None)

    @property
    def leader_id(self) -> str:
        """Id of the leader, or of the one that did not answer in time; empty when none is known."""
        leader = self.leader or self.silent_leader
        return leader.id if leader is not None else ""

    @property
    def quorum(self) -> int:
        """How many voters must acknowledge a write."""
        return len(self.voters) // 2 + 1

    @property
    def spare(self) -> int:
        """How many more voters may fail, whichever they are, before writes stop; negative when writes have stopped."""
        beyond = len(self.acknowledging) - self.quorum
        counted = [voter for voter in self.voters if not self.hindrance(voter)]
        for count in range(1, min(beyond, len(counted)) + 1):
            if any(self.stopped_without(lost) for lost in combinations(counted, count)):
                return count - 1
        return beyond

    def stopped_without(self, lost: Collection[str]) -> str:
        """Why writes would stop if nodes failed.

        Only voters count that acknowledge, that can be reached, and whose certificate is valid; the leader, or one that may lead, must be
        among them.

        Args:
            lost: Ids of the nodes.

        Returns:
            What would be missing; empty when the others take messages without them.

        Examples:
            >>> needed = [node.id for node in status.nodes if status.stopped_without([node.id])]
        """
        left = [voter for voter in self.voters if voter not in lost and not self.hindrance(voter)]
        if len(left) < self.quorum:
            return f"{', '.join(left) or 'no other voter'} would acknowledge, {self.quorum} are needed to store a message"
        if (self.leader is not None and self.leader.id in left) or any(not self.cannot_lead(voter) for voter in left):
            return ""
        return f"{', '.join(left)} would take no messages as leader"

    def hindrance(self, voter: str) -> str:
        """Why a voter does not count for what happens when others fail.

        Args:
            voter: Id of the voter.

        Returns:
            The reason; empty when it acknowledges, can be reached, and its certificate is valid.

        Examples:
            >>> counted = [voter for voter in status.voters if not status.hindrance(voter)]
        """
        node = next((each for each in self.nodes if each.id == voter), None)
        if voter not in self.acknowledging:
            return "it does not acknowledge"
        if node is None or not node.reachable:
            return f"it cannot be reached: {node.error if node is not None else 'its address is not known'}"
        return node.cannot_lead if EXPIRED in node.cannot_lead else ""

    def cannot_lead(self, voter: str) -> str:
        """Why a voter would take no messages as leader.

        Args:
            voter: Id of the voter.

        Returns:
            What it or the leader says against it, or its ``hindrance``; empty when it may lead.

        Examples:
            >>> unfit = {voter: status.cannot_lead(voter) for voter in status.voters}
        """
        node = next((each for each in self.nodes if each.id == voter), None)
        peer = self.peer(node) if node is not None else None
        return self.hindrance(voter) or (node.cannot_lead if node is not None else "") or (peer.cannot_lead if peer is not None else "")

    @property
    def takes_messages(self) -> bool:
        """Whether a message can be stored now: a leader takes it, and a quorum acknowledges it."""
        return self.leader is not None and self.spare >= 0 and not self.leader.state.startswith(TAKES_NO_MESSAGES)

    @property
    def healthy(self) -> bool:
        """Whether every member is in order and follows the leader, and every voter acknowledges.  Other nodes do not count."""
        if self.leader is None or len(self.acknowledging) < len(self.voters):
            return False
        members = [node for node in self.nodes if self.is_member(node.id)]
        leader = self.leader.id
        return all(node.reachable and node.state.partition(";")[0] in ("", "ok") and node.leader == leader for node in members)

    def is_member(self, node_id: str) -> bool:
        """Whether a node is a voter or a learner.

        Args:
            node_id: Id of the node.

        Examples:
            >>> joined = status.is_member("n3")
        """
        return node_id in self.voters or node_id in self.learners

    def is_in_sync(self, node: NodeStatus) -> bool:
        """Whether a member has what is committed but for some newest entries, and a voter acknowledges too.

        Args:
            node: The node.

        Returns:
            True for the leader; False without a leader, and for a node that is not a member or does not answer.

        Examples:
            >>> in_sync = [node.id for node in status.nodes if status.is_in_sync(node)]
        """
        lag, counts = self.lag(node), node.id in self.acknowledging or node.id in self.learners
        follows = lag is not None and lag <= IN_SYNC_LAG_ENTRIES and counts
        return follows or (self.leader is not None and node.id == self.leader.id)

    def refusal(self, node_id: str) -> str:
        """Why the other members refuse connections of a node.

        Args:
            node_id: Id of the node.

        Returns:
            What the leader reports, without a leader what all other voters report; empty when they accept it.

        Examples:
            >>> reason = status.refusal("n3")
        """
        if self.leader is not None:
            return _refused_by(self.leader, node_id)
        others = [
            _refused_by(other, node_id) for other in self.nodes if other.id in self.voters and other.id != node_id and other.reachable
        ]
        return others[0] if others and all(others) else ""

    def lag(self, node: NodeStatus) -> int | None:
        """How many committed entries a node has not committed yet.

        Args:
            node: The node.

        Returns:
            The number of entries; None without a leader, and for the leader.

        Examples:
            >>> behind = {node.id: status.lag(node) for node in status.nodes}
        """
        if self.leader is None or node is self.leader or not node.reachable:
            return None
        return max(0, self.leader.committed_index - node.committed_index)

    def last_contact_ms(self, node: NodeStatus) -> int | None:
        """Milliseconds since the leader last received something from a node.

        Args:
            node: The node.

        Returns:
            The time; None when it is unknown.

        Examples:
            >>> silent = [node.id for node in status.nodes if (status.last_contact_ms(node) or 0) > 3_000]
        """
        peer = self.peer(node)
        return peer.last_contact_ms if peer is not None and peer.last_contact_ms >= 0 else None

    def peer(self, node: NodeStatus) -> PeerStatus | None:
        """What the leader knows of a node.

        Args:
            node: The node.

        Returns:
            Its state; None of the leader itself, of a node that is no member, and without a leader.

        Examples:
            >>> away = [node.id for node in status.nodes if (peer := status.peer(node)) is not None and not peer.connected]
        """
        if self.leader is None or node is self.leader:
            return None
        return next((peer for peer in self.leader.peers if peer.id == node.id), None)


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The replica groups of a cluster.

    Attributes:
        name: The cluster's name.
        replica_groups: Its replica groups with their nodes and leaders, by name.
    """

    name: str
    replica_groups: tuple[ReplicaGroup, ...]


def judge_group(name: str, nodes: Iterable[NodeStatus]) -> ReplicaGroupStatus:
    """The state of replica group ``name``, by what its nodes report."""
    found = tuple(node for node in nodes if node.replica_group == name)
    leaders = [node for node in found if node.role == "leader" and node.leader_confirmed]
    leader = max(leaders, key=lambda node: node.term, default=None)
    source = leader or max((node for node in found if node.voters), key=lambda node: node.committed_index, default=None)
    voters = source.voters if source else tuple(node.id for node in found)
    learners = source.learners if source else ()
    group = ReplicaGroupStatus(name, found, leader, voters, learners, frozenset())
    return replace(group, acknowledging=frozenset(voter for voter in voters if _acknowledges(group, voter)))


def _acknowledges(group: ReplicaGroupStatus, voter: str) -> bool:
    node = next((each for each in group.nodes if each.id == voter), None)
    if node is not None and node.state.startswith(CANNOT_STORE):
        return False
    leader = group.leader
    if leader is None:
        return node is not None and node.reachable and not group.refusal(voter)
    return voter == leader.id or any(peer.id == voter and peer.acknowledges for peer in leader.peers)


def _refused_by(node: NodeStatus, other_id: str) -> str:
    """Why ``node`` and the other one have no connection; empty when it is ``node``'s own folder that the other one refuses."""
    text = next((peer.refused for peer in node.peers if peer.id == other_id), "")
    return "" if OTHER_FOLDER in text and f"{other_id}{OTHER_FOLDER}" not in text else text
