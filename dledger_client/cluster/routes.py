"""Routes: nodes, replica groups with their leaders, the queues of a topic in a replica group, and what one client knows of them.

Owns the types, which are part of the public API, and the rules by which answers are merged, from any source and in any order.  Of two
answers about a replica group the one with the higher term counts, of two of the same term the one that names a leader.  Of two answers
about a topic's queues in a replica group the one with the newer table of topics counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from dledger_wire._pb import broker_pb2, routes_pb2
from dledger_wire.addresses import is_address
from dledger_wire.java_hash import cached_java_hash
from dledger_wire.names import is_node_name
from dledger_wire.status import Perm
from dledger_wire.tasks import wait_up_to

MAX_SKIPPED = 100  # unusable nodes that are logged, once each

_logger = logging.getLogger(__name__)

Queue = TypeVar("Queue")


class RouteCache:
    """Used on one event loop.  ``topic_listeners`` are called with the name of each topic whose known queues changed."""

    def __init__(self) -> None:
        self.cluster = ""
        self.groups: dict[str, ReplicaGroup] = {}
        self.topics: dict[str, list[TopicQueues]] = {}
        self.unseen: dict[str, str] = {}  # topics that this client may not know of, with its name
        self.topic_listeners: list[Callable[[str], None]] = []
        self._changes: dict[str, asyncio.Event] = {}  # by replica group that a caller waits for
        self._skipped: set[tuple[str, str]] = set()

    def set_unseen(self, topic: str, caller: str) -> None:
        """An answer said that ``caller``, which this client is, may not know of a topic; empty: it may."""
        if caller:
            self.unseen[topic] = caller
        else:
            self.unseen.pop(topic, None)

    # Replica groups

    def learn_group(self, info: ReplicaGroup) -> None:
        """An answer named a replica group."""
        known = self.groups.get(info.name)
        if known is None or (known.term, bool(known.leader_address)) <= (info.term, bool(info.leader_address)):
            self.set_group(info)

    def set_group(self, group: ReplicaGroup) -> None:
        """What is known of a replica group is this, whatever was known before."""
        known = self.groups.get(group.name)
        self.groups[group.name] = group
        if known is None or (known.term, known.leader_address) != (group.term, group.leader_address):
            event = self._changes.pop(group.name, None)
            if event is not None:
                event.set()

    def leader_is(self, group: str, address: str) -> None:
        """A node named the leader: remembered until an answer with a newer term."""
        known = self.groups.get(group)
        if known is not None and is_address(address) and known.leader_address != address:
            leader_id = next((node.id for node in known.nodes if node.address == address), "")
            self.set_group(ReplicaGroup(group, known.term, leader_id, address, known.nodes))

    def forget_group(self, name: str) -> None:
        """The replica group was removed."""
        self.groups.pop(name, None)
        for topic, queues in list(self.topics.items()):
            self.set_topic(topic, [each for each in queues if each.replica_group != name])

    def newer_leader(self, name: str, term: int) -> ReplicaGroup | None:
        """The replica group, if a leader in a newer term than ``term`` is known."""
        known = self.groups.get(name)
        return known if known is not None and known.leader_address and known.term > term else None

    async def led_after(self, name: str, term: int) -> ReplicaGroup:
        """The replica group, as soon as a leader in a newer term than ``term`` is known."""
        while (found := self.newer_leader(name, term)) is None:
            event = self._changes.get(name)
            if event is None:
                event = self._changes[name] = asyncio.Event()
            await event.wait()
        return found

    async def pause(self, name: str, term: int, seconds: float) -> None:
        """Wait, for less when a leader of the replica group in a newer term than ``term`` is known before."""
        await wait_up_to(seconds, self.led_after(name, term))

    def node_addresses(self, groups: Iterable[str] | None = None) -> list[str]:
        """Of every node of those replica groups, or of all that are known."""
        found = self.groups.values() if groups is None else [self.groups[name] for name in groups if name in self.groups]
        return list(dict.fromkeys(node.address for group in found for node in group.nodes))

    # Topics

    def newest(self, topic: str, info: Sequence[TopicQueues]) -> list[TopicQueues]:
        """The queues of ``info``, each as the newest known table of topics of its replica group has them."""
        known = {queues.replica_group: queues for queues in self.topics.get(topic, ())}
        old = [known.get(each.replica_group, each) for each in info]
        return [kept if kept.version > each.version > 0 else each for kept, each in zip(old, info, strict=True)]

    def set_topic(self, name: str, queues: Iterable[TopicQueues]) -> list[TopicQueues]:
        """The queues of a topic are these; none: the topic is not known.  Returns them by the names of their replica groups."""
        known, now = self.topics.pop(name, []), sorted(queues, key=lambda each: each.replica_group)
        if now:
            self.topics[name] = now
        if known != now:
            for listener in list(self.topic_listeners):
                listener(name)
        return now

    # Nodes that cannot be called

    def usable(self, node_id: str, address: str, source: str) -> bool:
        """Whether a node can be called.  One that cannot is skipped, with one log line: a mistyped member must not keep clients from
        others."""
        if is_node_name(node_id) and is_address(address):
            return True
        if (node_id, address) not in self._skipped and len(self._skipped) < MAX_SKIPPED:
            self._skipped.add((node_id, address))
            _logger.warning("%s: node %r has the unusable address %r; skipped", source, node_id[:100], address[:100])
        return False

    def group_of(self, info: broker_pb2.GroupInfo | routes_pb2.GroupRoute, source: str) -> ReplicaGroup:
        """A replica group from an answer, without what cannot be used of it."""
        leader_id, leader_address = info.leader_id, info.leader_address
        if leader_address and not is_address(leader_address):
            self.usable(leader_id, leader_address, source)
            leader_id = leader_address = ""
        usable = (node for node in info.nodes if self.usable(node.id, node.address, source))
        nodes = tuple(Node(node.id, node.address, node.voter) for node in usable)
        return ReplicaGroup(info.name, info.term, leader_id, leader_address, nodes)


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
        priorities: Whether the number of a queue is the priority of its messages, the highest the most urgent.
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
    priorities: bool = False


def queues_for_writes(parts: Iterable[TopicQueues]) -> list[tuple[str, int]]:
    """The queues that take messages, as (replica group, queue id), sorted: a key keeps its queue, whichever node answered."""
    return sorted((each.replica_group, queue_id) for each in parts if each.perm & Perm.WRITE for queue_id in range(each.write_queues))


def queues_for_keys(queues: list[Queue], replica_group: Callable[[Queue], str], *, priorities: bool) -> list[Queue]:
    """Those of these sorted queues that get messages without a priority: with priorities the lowest of each replica group."""
    return [next(same) for _, same in groupby(queues, replica_group)] if priorities else queues


def place_of_key(key: str, queues: int) -> int:
    """Which of so many queues has the messages of a key, as RocketMQ's SelectMessageQueueByHash computes it."""
    return abs(cached_java_hash(key)) % queues


def queues_in(topic: str, said: broker_pb2.TopicInfo | routes_pb2.GroupQueues, epoch: str, version: int, largest: int) -> TopicQueues:
    """What a node or a name server says of a topic in one replica group."""
    counts = said.read_queues, said.write_queues, said.perm
    return TopicQueues(topic, said.group, *counts, epoch, version, largest, tuple(said.groups), said.priorities)
