"""Registrations of replica groups that live by Raft's rules, for tests of what name servers make of them."""

from __future__ import annotations

from typing import Any

from dledger_wire._pb import routes_pb2

NODES = ("n0", "n1", "n2")


def registration(group: str = "g0", node: str = "n0", *, term: int = 1, sequence: int = 1, **fields: Any) -> routes_pb2.Registration:
    """Of a node with its address, and with members unless they are given."""
    told = routes_pb2.Registration(
        cluster="c", group=group, node_id=node, address=f"{group}-{node}:1", term=term, started_at_ms=1, sequence=sequence
    )
    told.configuration_index = 1
    if "members" not in fields:
        told.members.extend(members(*NODES, group=group))
    told.role = "leader" if fields.get("master") else "follower"
    told.MergeFrom(routes_pb2.Registration(**fields))
    return told


def members(*nodes: str, group: str = "g0") -> list[routes_pb2.Member]:
    return [routes_pb2.Member(id=node, address=f"{group}-{node}:1", voter=True) for node in nodes]


def master(
    group: str = "g0", node: str = "n0", *, term: int = 1, topics: dict[str, int] | None = None, version: int = 1, **fields: Any
) -> routes_pb2.Registration:
    """Of the master of ``term``, with the whole table of topics: name -> queues."""
    rows = [
        routes_pb2.RouteQueues(topic=name, read_queues=count, write_queues=count, perm=6, topic_epoch="E")
        for name, count in (topics or {}).items()
    ]
    return registration(group, node, term=term, master=True, has_topics=True, topics=rows, topics_version=version, **fields)


class Group:
    """A replica group whose registrations can be collected: what a node tells is what a replica can know."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.term, self.leader = 0, ""
        self.configuration, self.members = 1, tuple[str, ...](NODES)
        self.version: int = 0
        self.topics: dict[str, int] = {}
        self.told: list[routes_pb2.Registration] = []
        self._sequence = dict.fromkeys(NODES, 0)
        self._terms = dict.fromkeys(NODES, 0)

    def elect(self, node: str) -> None:
        self.term += 1
        self.leader = node
        self._terms[node] = self.term
        self.tell(node)

    def resign(self) -> None:
        node, self.leader = self.leader, ""
        if node:
            self.tell(node, resigned=True)

    def create(self, topic: str, queues: int) -> None:
        if self.leader:
            self.version += 1
            self.topics = {**self.topics, topic: queues}
            self.tell(self.leader)

    def reconfigure(self, count: int) -> None:
        if self.leader:
            self.configuration += 1
            self.members = NODES[:count]
            self.tell(self.leader)

    def follow(self, node: str) -> None:
        """A follower hears of the newest term."""
        self._terms[node] = self.term
        self.tell(node)

    def tell(self, node: str, **fields: Any) -> None:
        self._sequence[node] += 1
        make = master if node == self.leader else registration
        told = make(
            self.name,
            node,
            term=self._terms[node],
            sequence=self._sequence[node],
            members=members(*self.members, group=self.name),
            **fields,
            **({"topics": self.topics, "version": self.version} if node == self.leader else {"topics_version": self.version}),
        )
        told.configuration_index = self.configuration
        self.told.append(told)
