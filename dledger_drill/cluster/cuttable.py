"""A private cluster of one network whose nodes can be cut off from each other: for ``dledger bench failover`` and the cluster tests."""

from __future__ import annotations

from collections.abc import Mapping

from dledger_cli.local.layout import Layout
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_drill.hosts.cables import Cables


class CuttableCluster(PrivateCluster):
    """Its nodes are connected by ``cables``."""

    cables: Cables

    def _dialled(self, layout: Layout, addresses: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        self.cables = Cables({node: addresses[node] for node in layout.nodes})
        return self.cables.dialled(layout.groups.values())

    def isolate(self, node_id: str) -> None:
        """Cut a node off from all others; clients reach it."""
        self.cables.isolate(node_id, [node.id for _, node in self.config.all_nodes() if node.id != node_id])

    def kill_all(self) -> None:
        super().kill_all()
        self.cables.close()
