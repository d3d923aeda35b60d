"""The other replica groups of the cluster as a node knows them: those of its cluster file, and later ones that name servers return.

A group that was added is known from the directory; one that was removed is left out.  Nothing is forgotten because a directory does not
mention it: a name server that has just started knows nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.config.cluster_file import ClusterConfig
from dledger_wire._pb import routes_pb2
from dledger_wire.status import REMOVED


@dataclass(frozen=True, slots=True)
class KnownNode:
    id: str
    address: str
    voter: bool = True
    member: bool = True  # a voter or a learner; others only registered for the group


class KnownGroups:
    """``version``: of the directory that was taken last."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self.version = 0
        self._configured = {group.name: [KnownNode(node.id, node.address) for node in group.nodes] for group in cluster.groups}
        self._to_be_added = {node.id for _group, node in cluster.all_nodes() if node.spare}
        self._returned: dict[str, list[KnownNode]] = {}
        self._removed: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of the cluster file and then by name."""
        later = sorted(self._returned.keys() - self._configured.keys())
        return (name for name in [*self._configured, *later] if name not in self._removed)

    def nodes_of(self, name: str) -> list[KnownNode]:
        return self._returned.get(name) or self._configured.get(name, [])

    def addresses_of(self, name: str) -> list[str]:
        """Of all nodes that the cluster file or the directory names."""
        return list(dict.fromkeys(node.address for node in [*self._configured.get(name, ()), *self._returned.get(name, ())]))

    def members_of(self, name: str) -> list[KnownNode]:
        """Those that the cluster file names, and those that the directory calls members; none that has merely registered."""
        return list(dict.fromkeys([*self._configured.get(name, ()), *(node for node in self._returned.get(name, ()) if node.member)]))

    def stale_nodes_of(self, name: str) -> list[KnownNode]:
        """Nodes that the cluster file names and that the group does not have any more."""
        now = {node.id for node in self._returned.get(name, ()) if node.member}
        return [node for node in self._configured.get(name, ()) if now and node.id not in now and node.id not in self._to_be_added]

    def take(self, directory: routes_pb2.DirectoryReply) -> None:
        if directory.unchanged:
            return
        self.version = directory.version
        for group in directory.groups:
            if group.state == REMOVED:
                self._removed.add(group.name)
                self._returned.pop(group.name, None)
                continue
            self._removed.discard(group.name)
            if group.nodes:
                self._returned[group.name] = [KnownNode(node.id, node.address, node.voter, node.member) for node in group.nodes]
