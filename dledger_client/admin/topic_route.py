"""What ``Admin`` returns of a topic's route, as a name server reports it; as nodes do while no name server answers."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client.cluster.routes import ReplicaGroup, TopicQueues


@dataclass(frozen=True, slots=True)
class RoutePart:
    """A topic's route in one replica group.

    Attributes:
        group: The replica group: its nodes and their leader.
        queues: The topic's queues in it.
        state: ``active`` or ``draining``; empty: unknown.
        version: Version of what is known of the replica group; 0: a node answered.
    """

    group: ReplicaGroup
    queues: TopicQueues
    state: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of a topic.

    Attributes:
        topic: The topic.
        parts: Its replica groups, by name.
        answered_by: Address of the process that answered.
        by_name_server: Whether a name server answered; False: a node.
        complete: Whether it knows every replica group.
        version: Version of what is known of the topic; 0: a node answered.
    """

    topic: str
    parts: tuple[RoutePart, ...]
    answered_by: str
    by_name_server: bool
    complete: bool = False
    version: int = 0
