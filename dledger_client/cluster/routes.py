"""What a route consists of: nodes, replica groups with their leaders, and the queues of a topic in a replica group.

Owns the types only, which are part of the public API.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """A replica of a replica group.

    Attributes:
        id: Its id.
        address: ``host:port``.
        voter: Whether it votes; False: a learner.
    """

    id: str
    address: str
    voter: bool


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """A replica group: the nodes that store the same data.

    Attributes:
        name: Its name.
        term: The Raft term in which the leader was elected.
        leader_id: Id of the leader; empty while there is none.
        leader_address: ``host:port`` of the leader; empty while there is none.
        nodes: Its replicas.
    """

    name: str
    term: int
    leader_id: str
    leader_address: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """The queues of a topic in one replica group.

    Attributes:
        topic: The topic.
        replica_group: The replica group.
        read_queues: Number of queues consumers read.
        write_queues: Number of queues producers write to.
        perm: Permission bits: 4 read, 2 write (see ``Perm``).
        topic_epoch: Identifies the topic; another value when it was deleted and created again.
        version: Version of the replica group's table of topics; 0: unknown.
        max_message_bytes: Largest message body that the brokers accept; 0: unknown.
        replica_groups: Every replica group that may have queues of the topic; empty: unknown.
    """

    topic: str
    replica_group: str
    read_queues: int
    write_queues: int
    perm: int
    topic_epoch: str
    version: int = field(default=0, compare=False)  # of the group's table of topics, which every change raises; 0: unknown
    max_message_bytes: int = field(default=0, compare=False)  # the largest body that the brokers accept; 0: unknown
    replica_groups: tuple[str, ...] = field(default=(), compare=False)
