"""What one client knows: replica groups with their leaders, and the queues of its topics.

Owns the rules by which answers are merged.  Of two answers about a replica group the one with the higher term counts, of two of the same
term the one that names a leader, whoever gave them and in whatever order they arrive.
"""

from __future__ import annotations

from dledger_client.cluster.routes import ReplicaGroup, TopicQueues
from dledger_wire.addresses import is_address


class RouteCache:
    """Used on one event loop."""

    def __init__(self) -> None:
        self.cluster = ""
        self.groups: dict[str, ReplicaGroup] = {}
        self.topics: dict[str, list[TopicQueues]] = {}

    def learn_group(self, told: ReplicaGroup) -> None:
        """Somebody told of a replica group."""
        known = self.groups.get(told.name)
        if known is None or (known.term, bool(known.leader_address)) <= (told.term, bool(told.leader_address)):
            self.groups[told.name] = told

    def leader_is(self, group: str, address: str) -> None:
        """A node said who leads: remembered until an answer with a newer term."""
        known = self.groups.get(group)
        if known is not None and is_address(address) and known.leader_address != address:
            leader_id = next((node.id for node in known.nodes if node.address == address), "")
            self.groups[group] = ReplicaGroup(group, known.term, leader_id, address, known.nodes)

    def node_addresses(self) -> list[str]:
        """Of every node of every known replica group."""
        return [node.address for group in self.groups.values() for node in group.nodes]
