"""What a drill asks of any cluster, its own or one in use: who leads, whether it is whole, and what an operator does to it.

Owns the connection of the drill to the cluster, until ``close``.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar

from dledger_cli.local.waiting import differences, leader_of, until
from dledger_client import Admin
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.admin.status_text import sentence
from dledger_client.types import SecuritySettings
from dledger_drill.hosts.machine import Process
from dledger_drill.hosts.machines import DrillMachine
from dledger_drill.hosts.shared_links import SharedLinks
from dledger_drill.hosts.shared_machines import SharedMachines
from dledger_wire.errors import DeadlineExceededError, DledgerError
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

T = TypeVar("T")

NO_LOGIN: Mapping[str, str] = MappingProxyType(
    dict.fromkeys((USER, PASSWORD_FILE, CA, CERT, KEY), "")
)  # those variables are of another cluster

STATUS_MS = 1_000
LEADER_S = 1.5  # that a fault looks for a leader: another fault may have ended it


class Cluster(ABC):
    """``Target`` of faults/base.py.

    ``workloads``: the process that makes load, while it runs.  ``interrupted``: while it is set, whatever waits for nodes gives up.
    """

    def __init__(self) -> None:
        self.workloads: Process | None = None
        self._admin: Admin | None = None
        self._last_leaders: dict[str, str] = {}
        self.interrupted = threading.Event()

    @property
    @abstractmethod
    def addresses(self) -> Mapping[str, str]:
        """Of nodes, by id."""

    @property
    @abstractmethod
    def groups(self) -> Mapping[str, Sequence[str]]:
        """Replica group -> ids of its nodes."""

    @property
    @abstractmethod
    def machines(self) -> SharedMachines[DrillMachine]:
        """Those that are the drill's own, by the name of node or name server."""

    @property
    @abstractmethod
    def name_servers(self) -> Sequence[str]: ...

    @property
    @abstractmethod
    def links(self) -> SharedLinks: ...

    @property
    @abstractmethod
    def client_namespace(self) -> int | None:
        """Network namespace for processes of clients; None: that of this process."""

    @property
    @abstractmethod
    def logs(self) -> str:
        """Where a person finds the logs of nodes."""

    @property
    @abstractmethod
    def is_own(self) -> bool:
        """Nobody else uses it: its replicas come to rest, and may be compared."""

    def start_stopped(self) -> None:
        """Start what does not run and no fault keeps down."""
        for name in self.machines:
            self.machines.start_unheld(name)

    @property
    @abstractmethod
    def described(self) -> dict[str, str]:
        """For the report: settings, and what nodes keep their data on."""

    @property
    def ca(self) -> str:
        """File with the authority that workloads are to trust; empty: without TLS, or as the environment says."""
        return ""

    @property
    def client_environment(self) -> Mapping[str, str]:
        """Variables for processes of clients, which say as which user they connect; an empty one is not set there."""
        return NO_LOGIN

    @abstractmethod
    def start_all(self) -> None:
        """Return when all nodes are healthy."""

    @abstractmethod
    def restart_node(self, name: str) -> None:
        """Stop a node in order and start it again; it may not be healthy yet when this returns."""

    @abstractmethod
    def replace_member(self, group: str, node: str) -> None: ...

    @abstractmethod
    def rotate_certificates(self) -> None: ...

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.groups.values() for node in nodes]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses[node] for node in self.nodes)

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.bootstrap, **self._security())
        return self._admin

    def _security(self) -> SecuritySettings:
        return {}

    def statuses(self) -> list[ReplicaGroupStatus]:
        """As the nodes tell it now."""
        nodes = {group: {node: self.addresses[node] for node in names} for group, names in self.groups.items()}
        return self.admin.cluster_status(nodes=nodes, timeout_ms=STATUS_MS)

    def leader(self, group: str, timeout_s: float = 30.0) -> str:
        """The confirmed leader."""

        def found() -> str:
            return leader_of(self.statuses(), group)

        self._last_leaders[group] = self.wait(found, timeout_s, lambda: f"replica group {group} has no leader")
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

    def wait_healthy(self, timeout_s: float = 60.0) -> None:
        """Until every node is up and follows a confirmed leader."""
        seen: list[ReplicaGroupStatus] = []
        self.wait(lambda: self.is_healthy(seen), timeout_s, lambda: f"not healthy: {sentence(seen)}")

    def wait_whole(self, timeout_s: float) -> None:
        """As ``wait_healthy``, when nobody has stopped a node on purpose: DledgerError at once for one that ended by itself."""
        self.wait_healthy(timeout_s)

    def is_healthy(self, seen: list[ReplicaGroupStatus] | None = None) -> bool:
        """``seen`` gets what the nodes tell."""
        found = self.statuses()
        if seen is not None:
            seen[:] = found
        return len(found) == len(self.groups) and all(group.healthy for group in found)

    def wait_equal(self, timeout_s: float = 60.0) -> None:
        """Until the replicas of each group have committed and applied the same."""
        marks: list[tuple[int, ...]] = []

        def equal() -> bool:
            marks[:] = differences(self.statuses())
            return not marks

        self.wait(equal, timeout_s, lambda: f"replicas differ: {marks}")

    def wait(self, found: Callable[[], T], timeout_s: float, problem: Callable[[], str], *, to_the_end: bool = False) -> T:
        """Ask until the answer is true.  DeadlineExceededError with the ``problem`` and the last error.

        ``to_the_end``: also when the drill is interrupted, since what was begun would leave the cluster half done.
        """

        def pause(seconds: float) -> None:
            if self.interrupted.wait(seconds):
                raise DledgerError(f"{problem()}: the drill was interrupted")

        return until(found, timeout_s, problem, self.logs, retried=(DledgerError,), pause=time.sleep if to_the_end else pause)

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
