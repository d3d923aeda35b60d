"""What a drill asks of any cluster, its own or one in use: who leads, whether it is whole, and what an operator does to it.

Owns the connection of the drill to the cluster, until ``close``.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from dledger_cli.local.waiting import ObservedCluster, until
from dledger_client import Admin, TlsSettings
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.types import SecuritySettings
from dledger_drill.cluster.machines import DrillMachine
from dledger_drill.hosts.machine import Process
from dledger_drill.hosts.shared_links import SharedLinks
from dledger_drill.hosts.shared_machines import SharedMachines
from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

T = TypeVar("T")

NO_LOGIN: Mapping[str, str] = MappingProxyType(
    dict.fromkeys((USER, PASSWORD_FILE, CA, CERT, KEY), "")
)  # those variables are of another cluster

STATUS_MS = 1_000
LEADER_S = 1.5  # that a fault looks for a leader: another fault may have ended it


class Cluster(ObservedCluster):
    """``Target`` of faults/base.py.

    Attributes:
        addresses: Of nodes, by id.
        groups: Replica group -> ids of its nodes.
        machines: Those that are the drill's own, by the name of node or name server.
        logs: Where a person finds the logs of nodes.
        described: For the report: settings, and what nodes keep their data on.
        is_own: No other user has it: its replicas come to rest, and may be compared.
        client_namespace: Network namespace for processes of clients; None: that of this process.
        ca: File with the authority that workloads are to trust; empty: without TLS, or as the environment says.
        client_environment: Variables for processes of clients, which say as which user they connect; an empty one is not set there.
        workloads: The process that makes load, while it runs.
        interrupted: While it is set, whatever waits for nodes gives up.
    """

    addresses: Mapping[str, str]
    groups: Mapping[str, Sequence[str]]
    machines: SharedMachines[DrillMachine]
    logs: str
    described: Mapping[str, str]
    is_own = False
    name_servers: Sequence[str] = ()
    client_namespace: int | None = None
    ca = ""
    client_environment: Mapping[str, str] = NO_LOGIN

    def __init__(self) -> None:
        self.workloads: Process | None = None
        self._admin: Admin | None = None
        self._last_leaders: dict[str, str] = {}
        self.interrupted = threading.Event()

    def start_stopped(self) -> None:
        """Start what does not run and no fault keeps down."""
        for name in self.machines:
            self.machines.start_unheld(name)

    @abstractmethod
    def start_all(self) -> None:
        """Return when all nodes are healthy."""

    @abstractmethod
    def restart_node(self, name: str) -> None:
        """Stop a node in order and start it again; it may not be healthy yet when this returns."""

    @property
    def links(self) -> SharedLinks:
        raise not_of_one_in_use("its links are not touched")

    def replace_member(self, group: str, node: str) -> None:
        raise not_of_one_in_use(f"{node} is not replaced")

    def rotate_certificates(self) -> None:
        raise not_of_one_in_use("its certificates are not touched")

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.groups.values() for node in nodes]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses[node] for node in self.nodes)

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            security: SecuritySettings = {"tls": TlsSettings(ca=self.ca)} if self.ca else {}
            self._admin = Admin(self.bootstrap, **security)
        return self._admin

    def group_statuses(self) -> list[ReplicaGroupStatus]:
        nodes = {group: {node: self.addresses[node] for node in names} for group, names in self.groups.items()}
        return self.admin.cluster_status(nodes=nodes, timeout_ms=STATUS_MS)

    def leader(self, group: str = "", timeout_s: float | None = 30.0) -> str:
        self._last_leaders[group] = super().leader(group, timeout_s)
        return self._last_leaders[group]

    def leader_or_last(self, group: str) -> str:
        try:
            return self.leader(group, LEADER_S)
        except DeadlineExceededError:
            if group not in self._last_leaders:
                raise
            return self._last_leaders[group]

    def transfer_leader(self, group: str, to: str) -> None:
        self.admin.transfer_leader(to, replica_group=group)

    def wait_whole(self, timeout_s: float) -> None:
        """As ``wait_healthy``, when no fault has stopped a node: DledgerError at once for one that ended by itself."""
        self.wait_healthy(timeout_s)

    def is_healthy(self, groups: Sequence[ReplicaGroupStatus]) -> bool:
        return len(groups) == len(self.groups) and super().is_healthy(groups)

    def wait(self, found: Callable[[], T], timeout_s: float | None, problem: Callable[[], str], *, to_the_end: bool = False) -> T:
        """Ask until the answer is true.  DeadlineExceededError with the ``problem`` and the last error.

        ``to_the_end``: also when the drill is interrupted, since what was begun would leave the cluster half done.
        """

        def pause(seconds: float) -> None:
            if self.interrupted.wait(seconds):
                raise DledgerError(f"{problem()}: the drill was interrupted")

        sleep = time.sleep if to_the_end else pause
        return until(found, timeout_s or self.limit_s, problem, self.logs, retried=(DledgerError,), pause=sleep)

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def not_of_one_in_use(what: str) -> InvalidArgumentError:
    """For what is done to a drill's own cluster alone."""
    return InvalidArgumentError(f"the cluster is in use: {what}")
