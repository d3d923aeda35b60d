"""What ``Admin`` returns of a topic's route, as a name server reports it; as nodes do while no name server answers."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.cluster.routes import Node


@dataclass(frozen=True, slots=True)
class RoutePart:
    """A topic's route in one replica group.

    Attributes:
        replica_group: Its name.
        state: ``active`` or ``draining``; empty: unknown.
        term: The Raft term in which the leader was elected.
        leader_id: Id of the leader; empty while there is none.
        leader_address: ``host:port`` of the leader; empty while there is none.
        nodes: Its replicas.
        read_queues: Number of queues consumers read.
        write_queues: Number of queues producers write to.
        perm: Permission bits: 4 read, 2 write (see ``Perm``).
        topic_epoch: Identifies the topic; another value when it was deleted and created again.
        topics_version: Version of the replica group's table of topics.
        version: Version of what is told of the replica group; 0: a node answered.
    """

    replica_group: str
    state: str
    term: int
    leader_id: str
    leader_address: str
    nodes: tuple[Node, ...]
    read_queues: int
    write_queues: int
    perm: int
    topic_epoch: str
    topics_version: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of a topic.

    Attributes:
        topic: The topic.
        parts: Its replica groups, by name.
        answered_by: Address of who answered.
        by_name_server: Whether a name server answered; False: a node.
        complete: Whether it has heard of every replica group.
        version: Version of what is told of the topic; 0: a node answered.
    """

    topic: str
    parts: tuple[RoutePart, ...]
    answered_by: str
    by_name_server: bool
    complete: bool = False
    version: int = 0
