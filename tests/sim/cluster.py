"""Whole nodes in virtual time: replica groups of ``BrokerNode`` on simulated disks and cables, started, killed, powered off, started again.

Owns the hosts and their lives; ``groups.py`` has what belongs to one replica group.  Every node is the product's own code, from the log's
files to the services; only clock, randomness, disk and network are injected.  The seed decides everything: the same seed gives the same
trace.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from broker.config.cluster_file import ClusterConfig
from broker.config.layer_settings import store_settings_of
from broker.node import BrokerNode
from dledger.log.config import LogConfig
from dledger.replica.unsynced import LogDivergedError
from dledger_wire._pb import routes_pb2
from dledger_wire.errors import StorageDamagedError, StorageFailedError, StorageFullError
from dledger_wire.security import principal
from tests.sim import coverage
from tests.sim.archive import Archive
from tests.sim.async_loss import AsyncLoss, mark_of
from tests.sim.disk import DiskSettings
from tests.sim.disk_content import Loss
from tests.sim.groups import GroupNodes, Shape, SimGroup, cluster_file, group_nodes, only_first
from tests.sim.host import Folder, Host, Machine, new_machine
from tests.sim.invariants import Invariants
from tests.sim.loop import Process, SimLoop
from tests.sim.name_servers import SimNameServers
from tests.sim.network import NetworkSettings, ProcessNetwork, SimNetwork
from tests.sim.result import FINDINGS, LivenessError, replay_command
from tests.sim.security import APPLICATION, CLUSTER, SimSecurity
from tests.sim.spare_hosts import SimSpares
from tests.sim.trace import Trace

SMALL_LOG = LogConfig(segment_bytes=32 << 10, cache_bytes=64 << 10, piece_bytes=16 << 10, fill_window_bytes=0, open_files_limit=16)
QUICK_RETRIES = "broker: {messageDelayLevel: 500ms 500ms 500ms 1s}\n"  # a setting: what is refused comes again soon


def are_equal(nodes: Sequence[BrokerNode]) -> bool:
    """Whether these replicas have the same log, and have applied all of it.

    By the last entry's term, too: a replica whose tail a majority lost may hold as many entries as the log that replaces it.
    """
    marks = {(node.raft.log.last, node.store.applied_index) for node in nodes}
    return len(marks) == 1 and all(last.index == applied for last, applied in marks)


class SimCluster:
    """One replica group, or ``groups`` of them with ``nodes`` each, and the world around them.  ``shape``: see ``groups.Shape``.

    ``invariants`` and ``async_loss`` are those of the first group, which is all there is in most scenarios.
    """

    def __init__(
        self,
        seed: int,
        *,
        readable: bool = False,
        network: NetworkSettings | None = None,
        disk: DiskSettings | None = None,
        log: LogConfig = SMALL_LOG,
        archive: bool = False,
        **shape: Unpack[Shape],
    ) -> None:
        self.seed = seed
        self.log = log
        self.random = random.Random(seed)
        self.loop = SimLoop(shuffle=random.Random(self.random.getrandbits(64)), max_handles=3_000_000)
        self.trace = Trace(self.loop, readable=readable)
        self.net = SimNetwork(self.loop, random.Random(self.random.getrandbits(64)), self.trace, network)
        self.groups: dict[str, SimGroup] = {}
        self.operator_at_work = False  # one changes members at a time
        self.client_ips: list[str] = []
        self.hosts: dict[str, Host] = {}
        self.security = SimSecurity(shape.get("secured", False), seed)
        self.name_servers = SimNameServers(self.loop, self.net, self.trace, self.security, shape.get("name_servers", 0), self.random)
        self._archive = archive
        self._disk = disk or DiskSettings()
        self._shape = shape
        self._group_nodes: list[GroupNodes] = []
        for _ in range(shape.get("groups", 1)):
            self.add_group(shape.get("nodes", 3))
        self.spares = SimSpares(self, shape.get("spares", 0))

    def add_group(self, nodes: int = 3, *, first: bool = False) -> SimGroup:
        """One more replica group in the cluster file; its nodes are yet to be started.  Those that run go on with the file they have."""
        added = group_nodes(len(self._group_nodes), len(self.hosts), nodes)
        self._group_nodes.insert(0 if first else len(self._group_nodes), added)
        self.config = ClusterConfig.parse(cluster_file(self._group_nodes, self._shape), "sim.yaml")
        node_ids = [node_id for node_id, _ in added.nodes]
        group = self.groups[added.name] = SimGroup(added.name, node_ids, [Invariants(self.trace, Archive() if self._archive else None)])
        for each in self.groups.values():
            each.invariants.strangers = {node_id for other in self.groups.values() if other is not each for node_id in other.node_ids}
        self.watch_services(group, 0)
        flush = self.config.store
        if flush.flushDiskType == "ASYNC_FLUSH":
            group.async_loss = AsyncLoss(nodes, flush.flushIntervalCommitLog / 1000)
        for node_id, address in added.nodes:
            host = self.hosts[node_id] = new_machine(Host, node_id, address, self.loop, self.trace, self.random, replace(self._disk))
            host.group = group.name
        return group

    def watch_services(self, group: SimGroup, lineage: int) -> None:
        """Let the invariants of a lineage know which of its nodes run."""
        of_lineage = group.lineages[lineage]
        of_lineage.services.running = lambda: [
            host.node for host in self.running(group.name) if host.node is not None and host.lineage == lineage
        ]

    def begin_lineage(self, host: Host, first: int, terms: Sequence[int]) -> None:
        """An unsafe recovery from a log with these terms from entry ``first`` on; its node had promised nothing yet in the new lineage."""
        group = self.group_of(host.node_id)
        self.invariants_of(host.node_id).forget(host.node_id)
        group.lineages.append(group.lineages[host.lineage].of_new_lineage(first, terms))
        newest = len(group.lineages) - 1
        for each in self.hosts_of(group.name):
            if each is host or not each.disk.names:  # an empty folder is of none yet
                each.lineage = newest
        self.watch_services(group, newest)

    def leave_out(self, group: str) -> None:
        """A replica group that was removed is no more in the cluster file.  Those that run go on with the file they have."""
        self._group_nodes = [each for each in self._group_nodes if each.name != group]
        self.config = ClusterConfig.parse(cluster_file(self._group_nodes, self._shape), "sim.yaml")

    @property
    def invariants(self) -> Invariants:
        return self.groups["g0"].invariants

    @property
    def async_loss(self) -> AsyncLoss | None:
        return self.groups["g0"].async_loss

    def group_of(self, node_id: str) -> SimGroup:
        return self.groups[self.hosts[node_id].group]

    def invariants_of(self, node_id: str) -> Invariants:
        """Of the lineage that its folder belongs to."""
        return self.group_of(node_id).lineages[self.hosts[node_id].lineage]

    def hosts_of(self, group: str) -> list[Host]:
        return [self.hosts[node_id] for node_id in self.groups[group].node_ids]

    def machines(self) -> list[Machine]:
        """Of all nodes, spare nodes and name servers."""
        spares = [host for name, host in self.spares.hosts.items() if name not in self.hosts]
        return [*self.hosts.values(), *spares, *self.name_servers.hosts.values()]

    @property
    def bootstrap(self) -> str:
        """What clients begin with: the name servers, if there are any."""
        if self.name_servers.hosts:
            return ",".join(self.name_servers.addresses)
        return ",".join(host.address for host in self.hosts.values())

    # Starting and stopping nodes

    def start(self, node_id: str) -> None:
        """Start a node's process; it runs until it is killed or fails."""
        if node_id in self.spares.hosts:
            self.spares.start(node_id)
            return
        host = self.hosts[node_id]
        own = principal.node(CLUSTER, host.group, node_id)
        security = self.security.of_member(own, lambda: node.security.known_users())
        process, env = host.new_process(self.net, security.network)
        invariants = self.invariants_of(node_id)
        if "diverged" in mark_of(host.disk):
            invariants.forget_stored(node_id)  # it begins anew
            invariants.coverage.count(coverage.BEGUN_ANEW)
        settings = self._config_of(host).node(node_id)
        # Messages are small here: they take the way that large ones take out of the log's files.
        store = replace(store_settings_of(settings), levels=host.levels, stored_bytes=1, stored_run_bytes=1)
        node = host.node = BrokerNode(settings, env, log_config=self.log, store_settings=store, security=security)
        invariants.watch(node_id, node)
        self.trace.note("start", host.ip, f"run {host.runs}")
        self.loop.spawn(process, self.run_node(host, node), "node")

    def other_flush_mode(self, host: Host) -> None:
        """From its next start on."""
        now = host.flush_mode or self.config.store.flushDiskType
        host.flush_mode = "SYNC_FLUSH" if now == "ASYNC_FLUSH" else "ASYNC_FLUSH"

    def _config_of(self, host: Host) -> ClusterConfig:
        """The cluster file as it lies on this machine."""
        if not host.flush_mode:
            return self.config
        store = self.config.store.changed(flushDiskType=host.flush_mode)
        return self.config.changed(store=store)

    async def run_node(self, host: Host, node: BrokerNode) -> None:
        """The life of a node on its machine."""
        try:
            await node.open()
            reason = await node.failed
        except Exception as error:
            reason = error
        host.ended = reason
        self.trace.note("ended", host.ip, type(reason).__name__)
        loss = self.groups[host.group].async_loss
        if isinstance(reason, LogDivergedError) and loss is not None and loss.windows:
            await node.stop(hand_over=False)  # and starts again at once, as broker.main does
            self.loop.call_for(self.loop.world, self.loop.now_s, self.ensure_running, host.node_id)
            return
        expected = host.bad_disk and isinstance(reason, StorageFailedError | StorageFullError | OSError)
        if isinstance(reason, StorageDamagedError) and host.disk.settings.read_failure_chance:
            expected = True  # what cannot be read for now is like what is damaged
        if not expected and not (host.rotten and isinstance(reason, StorageDamagedError)):
            host.problems.append(reason)

    def ensure_running(self, node_id: str) -> None:
        """Start a node unless it runs; one that stopped by itself is taken away first, as a supervisor does."""
        host = self.hosts.get(node_id) or self.spares.hosts[node_id]
        if host.ended is not None:
            self.end(host, silent=False)
            host.disk.process_died()
        if host.process is None and not host.at_repair:
            self.start(node_id)

    def start_all(self) -> None:
        """Everything for the first time."""
        for name_id in self.name_servers.hosts:
            self.name_servers.start(name_id, self.config)
        for node_id in self.hosts:
            self.start(node_id)
        for name in self.spares.hosts:
            self.spares.start(name)

    def ensure_all_running(self) -> None:
        for name_id in self.name_servers.hosts:
            self.name_servers.ensure_running(name_id, self.config)
        for node_id in [*self.hosts, *(name for name, host in self.spares.hosts.items() if not host.group)]:
            self.ensure_running(node_id)

    async def stop(self, node_id: str) -> None:
        """Stop a node in order, leadership handed over; one that is not up yet is killed."""
        host = self.hosts[node_id]
        process, node = host.process, host.node
        if process is not None and node is not None and self.is_up(host):
            self.trace.note("stop", host.ip)
            stopping = self.loop.spawn(process, node.stop(hand_over=True), "stop")
            while process.alive and not stopping.done():  # noqa: ASYNC110 - it may be killed meanwhile, and then never ends
                await asyncio.sleep(0.01)
            if stopping.done() and stopping.exception() is not None and not host.bad_disk:
                host.problems.append(stopping.exception() or RuntimeError())
        if host.process is process:
            self.kill(node_id)

    @staticmethod
    def is_up(host: Host) -> bool:
        """Whether its node has opened its folder and takes part."""
        return host.node is not None and host.node.is_open and host.ended is None

    def kill(self, node_id: str) -> None:
        """kill -9: what the kernel has, stays."""
        host = self.hosts[node_id]
        if not host.at_repair:
            self.end(host, silent=False)
            host.disk.process_died()

    def power_off(self, node_id: str, loss: Loss) -> None:
        """The machine goes: unsynced bytes may be lost or torn, and nobody hears a connection end."""
        host, group = self.hosts[node_id], self.group_of(node_id)
        if host.at_repair:
            return
        suspects = self.suspects(group.name)
        self.end(host, silent=True)
        host.disk.power_failure(loss)
        host.boots += 1
        if group.async_loss is not None:
            since_s = group.async_loss.power_lost(node_id, self.loop.now_s, suspects)
            self.invariants_of(node_id).forget_stored(node_id)
            if since_s is not None:
                group.invariants.may_forget(since_s)

    def suspects(self, group: str = "g0") -> list[str]:
        """The nodes of a group that may lack what they acknowledged (ASYNC_FLUSH)."""
        marks = [(host, mark_of(host.disk)) for host in self.hosts_of(group)]
        return [host.node_id for host, mark in marks if mark and (mark["suspect"] or mark["boot"] != f"{host.ip}/{host.boots}")]

    def wipe(self, node_id: str) -> None:
        """Its folder is lost; only for a node that a committed configuration leaves out, which comes back as somebody new."""
        host = self.hosts[node_id]
        host.old_folder = self.take_folder(node_id)
        group = self.group_of(node_id)
        host.rotten, host.wiped, host.lineage = "", True, len(group.lineages) - 1
        if host.lineage:  # its members of before are not those in the file: an empty node must not begin the group with those
            whole = [each.node_id for each in self.hosts_of(group.name) if each.lineage == host.lineage and not each.wiped]
            self.config = only_first(self.config, group.name, whole)
        self.trace.note("wipe", host.ip)

    def take_folder(self, node_id: str) -> Folder:
        """Its node is killed, and its disk is empty from now on."""
        self.kill(node_id)
        disk = self.hosts[node_id].disk
        folder = Folder(disk.names, disk.durable_names, self.invariants_of(node_id).forget(node_id))
        disk.names, disk.durable_names = {}, {}
        return folder

    def put_folder(self, node_id: str, folder: Folder) -> None:
        """On a disk that is empty."""
        disk = self.hosts[node_id].disk
        disk.names, disk.durable_names = dict(folder.names), dict(folder.durable_names)
        self.invariants_of(node_id).remember(node_id, folder.promises)

    def end(self, host: Host, *, silent: bool) -> None:
        """End the process on a machine; its disk is told by the caller."""
        if host.process is None:
            return
        self.trace.note("kill", host.ip)
        self.loop.kill(host.process, host.node)
        self.net.process_died(host.process, silent=silent)
        host.process = host.node = None

    def new_client(self, ip: str, user: str = APPLICATION) -> tuple[Process, ProcessNetwork]:
        """A process on a machine of its own, for clients of ``user``."""
        process = Process(ip, 1)
        self.client_ips.append(ip)
        return process, self.net.of(process, self.security.of_user(user))

    def network_as(self, process: Process, told: routes_pb2.Registration) -> ProcessNetwork:
        """Of a process that sends what a node has sent before."""
        return self.net.of(process, self.security.of_principal(principal.node(CLUSTER, told.group, told.node_id)))

    # Looking

    def happened(self) -> dict[str, int]:
        """What of ``coverage.ALL`` did."""
        counts: Counter[str] = Counter()
        for group in self.groups.values():
            for lineage in group.lineages:
                counts.update(lineage.coverage.counts)
        counts[coverage.REPAIRED] += sum(path.endswith("-repaired") for host in self.hosts.values() for path in host.disk.names)
        return dict(sorted((name, count) for name, count in counts.items() if count))

    def running(self, group: str | None = None) -> list[Host]:
        """The hosts with a process, of one group or of all."""
        return [host for host in self.hosts.values() if host.process is not None and group in (None, host.group)]

    async def until(self, condition: Callable[[], bool], otherwise: str, limit_s: float, *, every_s: float = 0.02) -> None:
        """Wait for what must come about once everything is healed; LivenessError with ``otherwise`` after ``limit_s``."""
        end_s = self.loop.now_s + limit_s
        while not condition():
            if self.problems():
                raise AssertionError(self.problems())
            if self.loop.now_s > end_s:
                raise LivenessError(f"{otherwise}, long after everything was healed")
            await asyncio.sleep(every_s)

    def master_node(self, group: str = "g0") -> BrokerNode | None:
        """The node that is the master of a group; None while there is none."""
        name = self.master(group)
        return self.hosts[name].node if name is not None else None

    def master(self, group: str = "g0") -> str | None:
        """The node that is master of a group in the highest term of its newest lineage, among those that run."""
        newest = len(self.groups[group].lineages) - 1
        nodes = [(host.node_id, host.node) for host in self.running(group) if host.node is not None and host.lineage == newest]
        masters = [(node.roles.master_term, node_id) for node_id, node in nodes if node.roles.master_term]
        return max(masters)[1] if masters else None

    def has_masters(self) -> bool:
        """Whether every group has one."""
        return all(self.master(name) is not None for name in self.groups)

    def note_run(self, error: BaseException, scenario: str, faults: Iterable[object], keep: Sequence[int] | None = None) -> None:
        """Say with an error where the run stood, what struck it, and how to see it again."""
        error.add_note(f"replay: {replay_command(scenario, self.seed, keep)}")
        error.add_note(f"at {self.loop.now_s:.3f} s; nodes: {[(host.node_id, host.process) for host in self.hosts.values()]}")
        for position, fault in enumerate(faults):
            error.add_note(f"fault {position}: {fault}")
        for problem in self.problems():
            error.add_note(problem)

    def problems(self) -> list[str]:
        """What was violated, what nodes stopped with, and what nobody caught."""
        violations = [text for group in self.groups.values() for lineage in group.lineages for text in lineage.violations]
        return violations + [text for text, _error in self._errors()]

    def strays(self) -> list[str]:
        """The problems that no invariant speaks of."""
        return [text for text, error in self._errors() if not isinstance(error, FINDINGS)]

    def _errors(self) -> list[tuple[str, BaseException | None]]:
        ended = [(f"{machine.name}: {problem!r}", problem) for machine in self.machines() for problem in machine.problems]
        unhandled = self.loop.unhandled
        return ended + [(str(context.get("exception") or context["message"]), context.get("exception")) for context in unhandled]
