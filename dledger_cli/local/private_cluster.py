"""A cluster of real processes for one run: free ports, its own data folder, all processes ended at the end.

Used by ``dledger bench failover``, scripts/quickstart and the cluster tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker.config.cluster_file import ClusterConfig
from dledger_cli.context import cluster_status, run
from dledger_cli.local.layout import Layout, layout_of, write_files
from dledger_cli.local.local_process import LocalProcess
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_cli.local.waiting import ObservedCluster, until
from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus, judge_group

T = TypeVar("T")


class PrivateCluster(ObservedCluster):
    """Real processes of nodes, and of name servers if there are to be any, on free ports under ``data``."""

    def __init__(
        self,
        data: Path,
        *,
        nodes: int = 3,
        groups: int = 1,
        name_servers: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        ports = iter(free_ports(2 * nodes * groups + 2 * name_servers))
        layout = layout_of("private", groups, nodes, name_servers)
        addresses = {name: f"127.0.0.1:{next(ports)}" for name in [*layout.nodes, *layout.name_servers]}
        quorum = {name: f"127.0.0.1:{next(ports)}" for name in layout.name_servers}
        # Without name servers of their own, the nodes of the first group serve names.
        own = {} if name_servers else {"name_servers": [f"127.0.0.1:{next(ports)}" for _ in range(nodes)]}
        file, self._files = write_files(data, layout, addresses, quorum, own | (settings or {}), self._dialled(layout, addresses))
        self.local = LocalCluster(ClusterConfig.load(str(file)), data)
        self.processes: dict[str, LocalProcess] = {}

    def _dialled(self, layout: Layout, addresses: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Node -> where it reaches others when that is not their own address."""
        return {}

    @property
    def config(self) -> ClusterConfig:
        return self.local.config

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for _, node in self.config.all_nodes())

    def close(self) -> None:
        self.kill_all()

    def start(self, *node_ids: str, wait: bool = True, timeout_s: float | None = None) -> None:
        """Start the named nodes, or all that do not run."""
        for node_id in node_ids or self.local.all_ids():
            process = self.processes.get(node_id)
            if process is None or process.poll() is not None:
                self.processes[node_id] = self.local.spawn(node_id, self._files.get(node_id))
        if wait:
            self.wait_healthy(timeout_s)

    def statuses(self) -> dict[str, NodeStatus]:
        """Node id -> what the node reports, of every node of the cluster file."""
        return {node.id: node for group in self.group_statuses() for node in group.nodes}

    def group_statuses(self) -> list[ReplicaGroupStatus]:
        """The replica groups, judged by the nodes of the cluster file."""
        found = run(cluster_status(self.config, as_node=True))
        return [judge_group(group.name, [node for node in group.nodes if node.configured]) for group in found]

    def wait_healthy(self, timeout_s: float | None = None, *, ended: Callable[[], str] | None = None) -> None:
        """DledgerError, with its last error, when a node ended."""
        super().wait_healthy(timeout_s, ended=ended or (lambda: self.local.ended(self.processes)))

    def wait(self, found: Callable[[], T], timeout_s: float | None, problem: Callable[[], str]) -> T:
        return until(found, timeout_s or self.limit_s, problem, f"{self.data}/*.log")

    def kill(self, node_id: str) -> None:
        """kill -9, and wait until it is gone."""
        self.processes.pop(node_id).kill()

    def terminate(self, node_id: str, timeout_s: float | None = None) -> int:
        """SIGTERM; returns the exit status."""
        return self.processes.pop(node_id).terminate(timeout_s or self.limit_s)

    def pause(self, node_id: str) -> None:
        self.processes[node_id].pause()

    def resume(self, node_id: str) -> None:
        self.processes[node_id].resume()

    def stop(self, timeout_s: float | None = None) -> None:
        """End everything in order: SIGTERM one after the other, leaders after the other nodes, name servers last."""
        roles = {node_id: node.role for node_id, node in self.statuses().items()}
        for name in sorted(self.processes, key=lambda name: (name not in roles, roles.get(name) == "leader")):
            self.terminate(name, timeout_s)

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.processes.clear()
