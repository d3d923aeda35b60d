"""The directory of a cluster: every replica group with its nodes, as name servers have it, or as the nodes report themselves.

Owns how both answers become the same picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.cluster.responses import object_of
from dledger_wire._pb import routes_pb2
from dledger_wire.status import ACTIVE, REMOVED

NODE_TIMEOUT_S = 0.5  # of nodes of a group that no name server knows


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A node as the directory has it.

    Attributes:
        id: The node's id.
        address: Its address, ``host:port``.
        host: Label of its machine.
        rack: Label of its rack.
        voter: Whether it is a voter of its replica group.
        member: Whether it is a voter or a learner.
        in_sync: Whether it has everything that is committed and acknowledges.
        missing: Whether it has not registered lately.
        state: ok, or what is wrong with it.
        role: leader, follower, candidate, pre_candidate or learner.
        version: Version of dledger.
        disk_used_percent: How full its disk is.
    """

    id: str
    address: str
    host: str = ""
    rack: str = ""
    voter: bool = False
    member: bool = True
    in_sync: bool = False
    missing: bool = False
    state: str = ""
    role: str = ""
    version: str = ""
    disk_used_percent: float = 0.0


@dataclass(frozen=True, slots=True)
class RegisteredGroup:
    """A replica group as the directory has it.

    Attributes:
        name: The replica group.
        state: active, draining or removed.
        term: The newest term of a leader.
        leader_id: Id of the leader; empty when there is none.
        nodes: Its members, then other nodes that registered for it.
        wanted_voters: How many voters it is to have; 0: unknown.
        wanted_learners: How many learners it is to have.
        topics: How many topics have queues in it.
        messages_in_per_s: Messages stored a second.
        bytes_in_per_s: Bytes stored a second.
        spare: The spare node that the group is taking in; empty when there is none.
        absent: The member whose place ``spare`` takes; empty for a learner that the group lacks.
    """

    name: str
    state: str
    term: int
    leader_id: str
    nodes: tuple[RegisteredNode, ...]
    wanted_voters: int = 0
    wanted_learners: int = 0
    topics: int = 0
    messages_in_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    spare: str = ""
    absent: str = ""

    @property
    def is_removed(self) -> bool:
        """Whether it is no more; the directory keeps its name."""
        return self.state == REMOVED

    @property
    def leader(self) -> RegisteredNode | None:
        """The node that leads."""
        return next((node for node in self.nodes if node.id == self.leader_id), None) if self.leader_id else None

    @property
    def voters(self) -> tuple[RegisteredNode, ...]:
        """The members that vote."""
        return tuple(node for node in self.nodes if node.member and node.voter)

    @property
    def learners(self) -> tuple[RegisteredNode, ...]:
        """The members that only copy the log."""
        return tuple(node for node in self.nodes if node.member and not node.voter)

    @property
    def lagging(self) -> tuple[RegisteredNode, ...]:
        """Members that are there and not in sync."""
        return tuple(node for node in self.nodes if node.member and not node.in_sync and not node.missing)

    @property
    def missing(self) -> tuple[RegisteredNode, ...]:
        """Members that have not registered lately."""
        return tuple(node for node in self.nodes if node.member and node.missing)

    @property
    def disk_used_percent(self) -> float:
        """Of the fullest disk."""
        return max((node.disk_used_percent for node in self.nodes), default=0.0)


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    """All replica groups of a cluster.

    Attributes:
        cluster: The cluster's name.
        groups: The replica groups by name, removed ones too.
        spares: Nodes that belong to no replica group yet.
        from_name_server: False: no name server knows of all groups, the nodes of the others were asked.
    """

    cluster: str
    groups: tuple[RegisteredGroup, ...]
    spares: tuple[RegisteredNode, ...] = ()
    from_name_server: bool = True


def directory_of(reply: routes_pb2.DirectoryReply) -> ClusterDirectory:
    groups = [object_of(RegisteredGroup, group, nodes=tuple(_node(node) for node in group.nodes)) for group in reply.groups]
    return ClusterDirectory(reply.cluster, tuple(groups), tuple(_node(node) for node in reply.spares))


def _node(node: routes_pb2.RegisteredNode) -> RegisteredNode:
    return object_of(RegisteredNode, node, in_sync=node.in_sync and not node.expired, missing=node.expired)


def group_of_nodes(group: ReplicaGroupStatus) -> RegisteredGroup:
    nodes = tuple(
        RegisteredNode(
            id=node.id,
            address=node.address,
            voter=node.id in group.voters,
            member=group.is_member(node.id),
            in_sync=group.is_in_sync(node),
            missing=not node.reachable,
            state=node.state or node.error,
            role=node.role,
            version=node.version,
            disk_used_percent=node.disk_used_percent,
        )
        for node in group.nodes
    )
    return RegisteredGroup(group.name, ACTIVE, group.term, group.leader_id, nodes)
