"""A cluster for one drill: real processes on machines of their own, and what faults do to them.

Owns its machines, its files below one folder, and every process that it started, until ``close``.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from broker.process.allocator import MALLOC_SETTINGS
from dledger_cli.local.layout import layout_of, merged, write_files
from dledger_cli.local.local_process import last_words
from dledger_cli.local.ports import free_ports
from dledger_cli.local.processes import import_path
from dledger_client.admin.cluster_status import ReplicaGroupStatus
from dledger_drill.cluster.certificates import Certificates
from dledger_drill.cluster.cluster import Cluster
from dledger_drill.cluster.machines import Machines
from dledger_drill.cluster.settings import CLUSTER, NAME_PORT, NAME_SERVERS, PORT, QUORUM_PORT, SETTINGS
from dledger_drill.hosts.cables import Cables
from dledger_drill.hosts.capabilities import Capabilities
from dledger_drill.hosts.machine import Disk
from dledger_drill.hosts.shared_links import SharedLinks
from dledger_drill.hosts.shared_machines import SharedMachines
from dledger_drill.plan.model import DrillOptions
from dledger_wire.addresses import host_of
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.security import principal
from dledger_wire.security.credentials import write_new

COMMAND = (sys.executable, "-P", "-m", "dledger_cli")
START_S = 180.0
STOP_S = 30.0
MEMBER_S = 60.0
CERTIFICATE_S = 30.0
PASSWORD_BYTES = 32


class MachinesCluster(Cluster):
    """``command``: what starts a node, before ``node`` or ``nameserver``: a build that is sabotaged has another one."""

    is_own = True
    addresses: dict[str, str]

    def __init__(self, folder: Path, options: DrillOptions, capabilities: Capabilities, *, command: Sequence[str] = COMMAND) -> None:
        super().__init__()
        self.folder = folder
        self._command = list(command)
        self._layout = layout_of(CLUSTER, options.groups, options.nodes, NAME_SERVERS)
        self._machines = Machines(folder / "machines", capabilities)
        self.machines = SharedMachines(self._machines.by_name, self._start)
        self.groups, self.name_servers = self._layout.groups, self._layout.name_servers
        self.client_namespace, self.logs = self._machines.clients, f"{folder}/*.log"
        self._cables: Cables | None = None
        self._dialled: dict[str, dict[str, str]] = {}
        self._certificates: Certificates | None = None
        try:
            self._make_machines()
            self._connect()
            if options.tls:
                self._certificates = Certificates(folder / "certificates", CLUSTER, self._members())
                self.ca = self._certificates.ca
            self._write_files(options)
            self.described = self._description()
        except BaseException:
            self.close()
            raise

    def _make_machines(self) -> None:
        for name in [*self._layout.nodes, *self._layout.name_servers]:
            self._machines.add(name, faults_of_disk=name in self._layout.nodes)
        self.addresses = {}
        self._quorum: dict[str, str] = {}
        shared = self._machines.network is None
        ports = iter(free_ports(2 * len(self.machines)) if shared else ())
        for name, machine in self.machines.items():
            is_node = name in self._layout.nodes
            self.addresses[name] = f"{machine.ip}:{next(ports, PORT if is_node else NAME_PORT)}"
            if not is_node:
                self._quorum[name] = f"{machine.ip}:{next(ports, QUORUM_PORT)}"

    def _connect(self) -> None:
        if self._machines.network is not None:
            self._links = SharedLinks(self._machines.network.links)
        else:
            self._cables = Cables({node: self.addresses[node] for node in self._layout.nodes})
            self._dialled = self._cables.dialled(self._layout.groups.values())
            self._links = SharedLinks(self._cables)

    def _members(self) -> dict[str, tuple[principal.Principal, list[str]]]:
        """Who each process is, and every host it is reached at."""
        found: dict[str, tuple[principal.Principal, list[str]]] = {}
        for group, nodes in self._layout.groups.items():
            for node in nodes:
                reached = [self.addresses[node], *(others[node] for others in self._dialled.values() if node in others)]
                hosts = sorted({host_of(address) for address in reached})
                found[node] = principal.node(CLUSTER, group, node), hosts
        for name in self._layout.name_servers:
            found[name] = principal.name_server(CLUSTER, name), [self.machines[name].ip]
        return found

    def _write_files(self, options: DrillOptions) -> None:
        password = self.folder / "name-servers.password"
        write_new(str(password), secrets.token_urlsafe(PASSWORD_BYTES).encode())
        settings = merged({**SETTINGS, "name_service": {"passwordFile": str(password)}}, options.settings)
        if self._certificates is not None:
            settings["security"] = self._certificates.settings | settings.get("security", {})
        written = write_files(self.folder, self._layout, self.addresses, self._quorum, settings, self._dialled)
        self.config_file, self._files = written

    @property
    def links(self) -> SharedLinks:
        return self._links

    def _description(self) -> dict[str, str]:
        own = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        settings = {name: own[name] for name in sorted(own.keys() & {"store", "raft", "broker", "security", "replicas"})}
        disk = "ext4 on a loop device a node" if self._machines.loop_disks else "a plain folder a node"
        network = "a namespace a node" if self._machines.network is not None else "loopback, shared by all"
        return {
            "cluster": "private",
            "network": network,
            "disk": disk,
            "settings": yaml.safe_dump(settings, default_flow_style=True).strip(),
        }

    def start_all(self) -> None:
        for name in [*self.name_servers, *self._layout.nodes]:
            self.machines.start_unheld(name)
        self.wait_whole(START_S)

    def wait_whole(self, timeout_s: float) -> None:
        self.wait_healthy(timeout_s, ended=self._ended)

    def _ended(self) -> str:
        """A process that ended by itself, with its last words; empty without one."""
        name = next(iter(self.machines.ended()), "")
        return f"{name} ended by itself: {last_words(self._log_of(name))}" if name else ""

    def _log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def is_healthy(self, groups: Sequence[ReplicaGroupStatus]) -> bool:
        """Every node is a voter, too, and all name servers have a quorum."""
        voters = all(set(group.voters) == set(self.groups[group.name]) for group in groups)
        return super().is_healthy(groups) and voters and all(server.has_quorum and server.complete for server in self.admin.name_servers())

    def _start(self, name: str) -> None:
        machine = self.machines[name]
        kind = "node" if name in self._layout.nodes else "nameserver"
        file = self._files.get(name, self.config_file)
        command = [*self._command, kind, "--config", str(file), "--id", name, "--data", str(machine.disk.path)]
        machine.start(command, self._log_of(name), {**MALLOC_SETTINGS, **import_path()})

    def restart_node(self, name: str) -> None:
        held = self.machines.hold()
        try:
            held.stop(name, STOP_S)
        finally:
            held.release(name)

    def replace_member(self, group: str, node: str) -> None:
        """Each step is asked for until it is done: another fault may be at work, and a node that is left out would stay so."""
        held, admin = self.machines.hold(), self.admin

        def step(do: Callable[[], object], problem: str) -> None:
            self.wait(lambda: _is_done(do), MEMBER_S, lambda: f"{node} {problem} replica group {group}", to_the_end=True)

        held.kill(node)
        try:
            step(lambda: admin.remove_member(node, replica_group=group), "is not removed from")
            step(lambda: _wipe(self.machines[node].disk, node), "keeps its files, and is not added again to")
            step(lambda: admin.add_member(node, self.addresses[node], replica_group=group), "is not added to")
        finally:
            held.release(node)

        def promote() -> None:
            self.machines.start_if_excused(node)  # its first start may have met a full disk
            admin.promote_member(node, replica_group=group)

        step(promote, "does not catch up with")

    def rotate_certificates(self) -> None:
        """Return when every node gives new connections its new certificate."""
        certificates = self._certificates
        if certificates is None:
            raise InvalidArgumentError("the cluster has no certificates")
        certificates.rotate()
        waiting = [*self._layout.nodes, *self._layout.name_servers]

        def all_served() -> bool:
            waiting[:] = [name for name in waiting if not certificates.is_served(name, self.addresses[name])]
            return not waiting

        self.wait(all_served, CERTIFICATE_S, lambda: f"{', '.join(waiting)}: the new certificate is not in use")

    def close(self) -> None:
        super().close()
        if self._cables is not None:
            self._cables.close()
            self._cables = None
        self._machines.close()


def _wipe(disk: Disk, folder: str) -> None:
    """DledgerError while another fault keeps the disk from working."""
    try:
        disk.wipe(folder)
    except OSError as error:
        raise DledgerError(str(error)) from error


def _is_done(step: Callable[[], object]) -> bool:
    """Errors are passed on, for ``_wait`` to try again.  A step that was done while its answer was lost is refused as not possible."""
    with contextlib.suppress(InvalidArgumentError):
        step()
    return True
