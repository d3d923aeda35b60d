"""A cluster for one drill: real processes on machines of their own, and what faults and operators do to them.

Owns its machines, its files below one folder, and every process that it started, until ``close``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from broker.process.allocator import MALLOC_SETTINGS
from dledger_client import Admin
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_client.admin.status_text import sentence
from dledger_drill.cluster.layout import NAME_PORT, PORT, QUORUM_PORT, Layout, cluster_file, layout_of
from dledger_drill.cluster.machines import Machines
from dledger_drill.faults.roles import kill, running
from dledger_drill.hosts.cables import Cables
from dledger_drill.hosts.capabilities import Capabilities
from dledger_drill.hosts.machines import DrillMachine
from dledger_drill.hosts.ports import free_ports
from dledger_drill.hosts.shared_links import SharedLinks
from dledger_drill.plan.model import DrillOptions
from dledger_wire.errors import DeadlineExceededError, DledgerError, InvalidArgumentError

T = TypeVar("T")

COMMAND = (sys.executable, "-P", "-m", "dledger_cli")
POLL_S = 0.03
START_S = 180.0
STATUS_MS = 1_000
LEADER_S = 1.5  # that a fault looks for a leader: another fault may have ended it
MEMBER_S = 60.0


class PrivateCluster:
    """``Target`` of faults/base.py.

    ``command``: what starts a node, before ``node`` or ``nameserver``: a build that is sabotaged has another one.
    """

    def __init__(self, folder: Path, options: DrillOptions, capabilities: Capabilities, *, command: Sequence[str] = COMMAND) -> None:
        self.folder = folder
        self._command = list(command)
        self._layout = layout_of(options)
        self._machines = Machines(folder / "machines", capabilities)
        self._cables: Cables | None = None
        self._last_leaders: dict[str, str] = {}
        self._files: dict[str, Path] = {}
        self._admin: Admin | None = None
        try:
            self.addresses = self._make_machines()
            self._write_files(options)
        except BaseException:
            self.close()
            raise

    def _make_machines(self) -> dict[str, str]:
        for name in [*self._layout.nodes, *self._layout.name_servers]:
            self._machines.add(name, faults_of_disk=name in self._layout.nodes)
        found: dict[str, str] = {}
        self._quorum: dict[str, str] = {}
        shared = self._machines.network is None
        ports = iter(free_ports(2 * len(self.machines)) if shared else ())
        for name, machine in self.machines.items():
            is_node = name in self._layout.nodes
            found[name] = f"{machine.ip}:{next(ports, PORT if is_node else NAME_PORT)}"
            if not is_node:
                self._quorum[name] = f"{machine.ip}:{next(ports, QUORUM_PORT)}"
        return found

    def _write_files(self, options: DrillOptions) -> None:
        self.config_file = self.folder / "cluster.yaml"
        self.config_file.write_text(cluster_file(self._layout, self.addresses, self._quorum, options.settings), encoding="utf-8")
        if self._machines.network is not None:
            self._links = SharedLinks(self._machines.network.links)
            return
        self._cables = Cables({node: self.addresses[node] for node in self._layout.nodes})
        self._links = SharedLinks(self._cables)
        for nodes in self._layout.groups.values():
            for node in nodes:
                dialled = {other: self._cables.address(node, other) for other in nodes if other != node}
                text = cluster_file(self._layout, self.addresses, self._quorum, options.settings, dialled)
                self._files[node] = self.folder / f"cluster-{node}.yaml"
                self._files[node].write_text(text, encoding="utf-8")

    # What faults are given

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        return self._layout.groups

    @property
    def machines(self) -> Mapping[str, DrillMachine]:
        return self._machines.by_name

    @property
    def name_servers(self) -> Sequence[str]:
        return self._layout.name_servers

    @property
    def links(self) -> SharedLinks:
        return self._links

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses[node] for node in self._layout.nodes)

    @property
    def client_namespace(self) -> int | None:
        """Network namespace for processes of clients; None: that of this process."""
        return self._machines.clients

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def leader(self, group: str, timeout_s: float = 30.0) -> str:
        """The confirmed leader."""

        def found() -> str:
            leader = next((each.leader for each in self.statuses() if each.name == group), None)
            return leader.id if leader is not None else ""

        self._last_leaders[group] = self._wait(found, timeout_s, lambda: f"replica group {group} has no leader")
        return self._last_leaders[group]

    def leader_or_last(self, group: str) -> str:
        try:
            return self.leader(group, LEADER_S)
        except DeadlineExceededError:
            if group not in self._last_leaders:
                raise
            return self._last_leaders[group]

    def start_node(self, name: str) -> None:
        machine = self.machines[name]
        if running(machine) is not None:
            return
        kind = "node" if name in self._layout.nodes else "nameserver"
        file = self._files.get(name, self.config_file)
        command = [*self._command, kind, "--config", str(file), "--id", name, "--data", str(machine.disk.path)]
        machine.start(command, self.log_of(name), {**MALLOC_SETTINGS, **_import_path()})

    def wait_healthy(self, timeout_s: float = 60.0) -> None:
        """Until every node is up and follows a confirmed leader."""
        seen: list[ReplicaGroupStatus] = []

        def healthy() -> bool:
            seen[:] = self.statuses()
            return len(seen) == len(self.groups) and all(group.healthy for group in seen)

        self._wait(healthy, timeout_s, lambda: f"not healthy: {sentence(seen)}")

    def transfer_leader(self, group: str, to: str) -> None:
        self.admin.transfer_leader(to, replica_group=group)

    def replace_member(self, group: str, node: str) -> str:
        """Each step is asked for until it is done: another fault may be at work, and a node that is left out would stay so."""
        machine = self.machines[node]
        kill(machine)
        steps: list[tuple[Callable[[], object], str]] = [
            (lambda: self.admin.remove_member(node, replica_group=group), "is not removed from"),
            (lambda: self.admin.add_member(node, self.addresses[node], replica_group=group), "is not added to"),
            (lambda: self.admin.promote_member(node, replica_group=group), "does not catch up with"),
        ]
        for number, (step, problem) in enumerate(steps):
            if number == 1:
                shutil.rmtree(machine.disk.path / node, ignore_errors=True)
            if number == 2:
                self.start_node(node)
            self._wait(lambda step=step: _is_done(step), MEMBER_S, lambda problem=problem: f"{node} {problem} replica group {group}")  # type: ignore[misc]
        return node

    def rotate_certificates(self) -> None:
        raise InvalidArgumentError("the cluster has no certificates")

    # What the drill does

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.bootstrap)
        return self._admin

    def statuses(self) -> list[ReplicaGroupStatus]:
        """As the nodes tell it now."""
        nodes = {group: {node: self.addresses[node] for node in names} for group, names in self.groups.items()}
        return self.admin.cluster_status(nodes=nodes, timeout_ms=STATUS_MS)

    def start_all(self) -> None:
        for name in [*self.name_servers, *self._layout.nodes]:
            self.start_node(name)
        self.wait_healthy(START_S)

    def wait_equal(self, timeout_s: float = 60.0) -> None:
        """Until the replicas of each group have committed and applied the same."""
        marks: set[tuple[int, int, int]] = set()

        def equal() -> bool:
            for group in self.statuses():
                marks.clear()
                marks.update((node.last_index, node.committed_index, node.applied_index) for node in group.nodes if node.reachable)
                if len(marks) != 1 or not all(node.reachable for node in group.nodes) or len(set(next(iter(marks)))) != 1:
                    return False
            return True

        self._wait(equal, timeout_s, lambda: f"replicas differ: {sorted(marks)}")

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._cables is not None:
            self._cables.close()
            self._cables = None
        self._machines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _wait(self, found: Callable[[], T], timeout_s: float, problem: Callable[[], str]) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if answer := found():
                    return answer
                error: DledgerError | None = None
            except DledgerError as raised:
                error = raised
            if time.monotonic() > deadline:
                said = f"{problem()}{f' ({error.message})' if error is not None else ''}"
                raise DeadlineExceededError(f"after {timeout_s:g} s: {said}; logs: {self.folder}/*.log")
            time.sleep(POLL_S)


def _is_done(step: Callable[[], object]) -> bool:
    """Errors are passed on, for ``_wait`` to try again.  A step that was done while its answer was lost is refused as not possible."""
    with contextlib.suppress(InvalidArgumentError):
        step()
    return True


def _import_path() -> dict[str, str]:
    """Nodes import what this process does, also from a checkout that is not installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file():
        return {}
    return {"PYTHONPATH": os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH", "")) if part)}
