"""A cluster of real processes for one run: free ports, its own data folder, all processes ended at the end.

Used by ``dledger bench failover``, scripts/quickstart and the cluster tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from broker.config.cluster_file import ClusterConfig
from dledger_cli.context import cluster_status, run
from dledger_cli.local.layout import Layout, layout_of, write_files
from dledger_cli.local.local_process import LocalProcess
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import LocalCluster
from dledger_cli.local.waiting import differences, leader_of, until
from dledger_client.admin.cluster_status import NodeStatus, ReplicaGroupStatus, judge_group
from dledger_client.admin.status_text import sentence
from dledger_wire.errors import DledgerError

T = TypeVar("T")


class PrivateCluster:
    """Real processes of nodes, and of name servers if there are to be any, on free ports under ``data``.

    ``limit_s``: how long to wait for a state of the nodes when the call names no limit of its own.
    """

    limit_s = 60.0

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
        return {node.id: node for group in self.groups() for node in group.nodes}

    def groups(self) -> list[ReplicaGroupStatus]:
        """The replica groups, judged by the nodes of the cluster file."""
        found = run(cluster_status(self.config, as_node=True))
        return [judge_group(group.name, [node for node in group.nodes if node.configured]) for group in found]

    def leader(self, timeout_s: float | None = None) -> str:
        """The confirmed leader of the first group with the newest term."""
        return self._wait(lambda: leader_of(self.groups(), self.config.groups[0].name), timeout_s, lambda: "no leader")

    def wait_healthy(self, timeout_s: float | None = None) -> None:
        """Wait until every node is up and follows a confirmed leader.  DledgerError, with its last error, when a node ended."""
        seen: list[ReplicaGroupStatus] = []

        def healthy() -> bool:
            if ended := self.local.ended(self.processes):
                raise DledgerError(ended)
            seen[:] = self.groups()
            return all(group.healthy for group in seen)

        self._wait(healthy, timeout_s, lambda: f"not healthy: {sentence(seen)}")

    def wait_equal(self, timeout_s: float | None = None) -> int:
        """Wait until all replicas of the first group have committed and applied the same; returns the commit position."""
        seen: list[ReplicaGroupStatus] = []

        def equal() -> bool:
            seen[:] = self.groups()[:1]
            return not differences(seen)

        self._wait(equal, timeout_s, lambda: f"replicas differ: {differences(seen)}")
        return seen[0].nodes[0].committed_pos

    def _wait(self, found: Callable[[], T], timeout_s: float | None, problem: Callable[[], str]) -> T:
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
