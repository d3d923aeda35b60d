"""Whole nodes in virtual time: three ``BrokerNode`` on simulated disks and cables, started, killed, powered off and started again.

Owns the hosts and their lives.  Every node is the product's own code, from the log's files to the services; only clock, randomness, disk
and network are injected.  The seed decides everything: the same seed gives the same trace.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.config.cluster_file import ClusterConfig
from broker.config.layer_settings import store_settings_of
from broker.node import BrokerNode
from dledger.log.config import LogConfig
from dledger.replica.unsynced import LogDivergedError
from dledger.runtime.env import Environment
from dledger_wire.errors import StorageDamagedError, StorageFailedError, StorageFullError
from tests.sim import coverage
from tests.sim.archive import Archive
from tests.sim.async_loss import AsyncLoss, mark_of
from tests.sim.clock import SimClock
from tests.sim.disk import DiskSettings, SimDisk
from tests.sim.disk_content import Content, Loss
from tests.sim.invariants import Invariants, Promises
from tests.sim.loop import Process, SimLoop
from tests.sim.network import NetworkSettings, ProcessNetwork, SimNetwork
from tests.sim.result import FINDINGS, replay_command
from tests.sim.trace import Trace

PORT = 10911
SMALL_LOG = LogConfig(segment_bytes=32 << 10, cache_bytes=64 << 10, piece_bytes=16 << 10, fill_window_bytes=0, open_files_limit=16)


@dataclass(slots=True, eq=False)
class Folder:
    """A data folder that was taken off its machine: its files, and what its node had promised and stored."""

    names: dict[str, Content]
    durable_names: dict[str, Content]
    promises: Promises


@dataclass(slots=True, eq=False)
class Host:
    """One machine: its disk and clock outlive the processes on it."""

    node_id: str
    address: str
    disk: SimDisk
    clock: SimClock
    rng: random.Random
    runs: int = 0
    boots: int = 1
    process: Process | None = None
    node: BrokerNode | None = None
    ended: BaseException | None = None  # what the node that ran last stopped with, when it stopped by itself
    wiped: bool = False  # its folder was lost, and it is not a voter again yet
    rotten: str = ""  # of which files bits were flipped on its disk
    old_folder: Folder | None = None  # the one of before the member was replaced
    bad_disk: bool = False  # its disk was made to fail, so its node may stop for that reason
    problems: list[BaseException] = field(default_factory=list)

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]


class SimCluster:
    """One group of nodes and the world around it."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        readable: bool = False,
        network: NetworkSettings | None = None,
        disk: DiskSettings | None = None,
        priorities: Mapping[str, int] | None = None,
        log: LogConfig = SMALL_LOG,
        settings: str = "",
        store: str = "",
        archive: Archive | None = None,
    ) -> None:
        self.seed = seed
        self.log = log
        self.random = random.Random(seed)
        self.loop = SimLoop(shuffle=random.Random(self.random.getrandbits(64)), max_handles=3_000_000)
        self.trace = Trace(self.loop, readable=readable)
        self.net = SimNetwork(self.loop, random.Random(self.random.getrandbits(64)), self.trace, network)
        self.invariants = Invariants(self.trace, archive)
        self.config = ClusterConfig.parse(_cluster_file(nodes, priorities or {}, store) + settings, "sim.yaml")
        flush = self.config.store
        self.async_loss: AsyncLoss | None = None
        if flush.flushDiskType == "ASYNC_FLUSH":
            self.async_loss = AsyncLoss(nodes, flush.flushIntervalCommitLog / 1000)
        self.operator_at_work = False  # one changes members at a time
        self.client_ips: list[str] = []
        self.hosts: dict[str, Host] = {}
        self.invariants.services.running = lambda: [host.node for host in self.running() if host.node is not None]
        for _, node in self.config.all_nodes():
            rng = random.Random(self.random.getrandbits(64))
            ip = node.address.rpartition(":")[0]
            sim_disk = SimDisk(self.loop, ip, random.Random(self.random.getrandbits(64)), self.trace, replace(disk or DiskSettings()))
            clock = SimClock(self.loop, offset_ms=rng.randrange(1000), rate=1.0 + rng.uniform(-0.002, 0.002))
            self.hosts[node.id] = Host(node.id, node.address, sim_disk, clock, rng)

    @property
    def bootstrap(self) -> str:
        return ",".join(host.address for host in self.hosts.values())

    # Starting and stopping nodes

    def start(self, node_id: str) -> None:
        """Start a node's process; it runs until it is killed or fails."""
        host = self.hosts[node_id]
        host.runs += 1
        host.ended = None
        process = host.process = Process(host.ip, host.runs)
        rng = random.Random(host.rng.getrandbits(64))
        env = Environment(host.clock, rng, host.disk.mount(process), self.net.of(process), boot_id=f"{host.ip}/{host.boots}")
        if "diverged" in mark_of(host.disk):
            self.invariants.forget_stored(node_id)  # it begins anew
            self.invariants.coverage.count(coverage.BEGUN_ANEW)
        settings = self.config.node(node_id)
        store = store_settings_of(settings)
        node = host.node = BrokerNode(settings, env, log_config=self.log, store_settings=store)
        self.invariants.watch(node_id, node)
        self.trace.note("start", host.ip, f"run {host.runs}")
        self.loop.spawn(process, self._run(host, node), "node")

    async def _run(self, host: Host, node: BrokerNode) -> None:
        try:
            await node.open()
            reason = await node.failed
        except Exception as error:
            reason = error
        host.ended = reason
        self.trace.note("ended", host.ip, type(reason).__name__)
        if isinstance(reason, LogDivergedError) and self.async_loss is not None and self.async_loss.windows:
            await node.stop(hand_over=False)  # and starts again at once, as broker.main does
            self.loop.call_for(self.loop.world, self.loop.now_s, self.ensure_running, host.node_id)
            return
        expected = host.bad_disk and isinstance(reason, StorageFailedError | StorageFullError | OSError)
        if not expected and not (host.rotten and isinstance(reason, StorageDamagedError)):
            host.problems.append(reason)

    def ensure_running(self, node_id: str) -> None:
        """Start a node unless it runs; one that stopped by itself is taken away first, as a supervisor does."""
        host = self.hosts[node_id]
        if host.ended is not None:
            self.kill(node_id)
        if host.process is None:
            self.start(node_id)

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
        self._end(self.hosts[node_id], silent=False)
        self.hosts[node_id].disk.process_died()

    def power_off(self, node_id: str, loss: Loss) -> None:
        """The machine goes: unsynced bytes may be lost or torn, and nobody hears a connection end."""
        host, suspects = self.hosts[node_id], self.suspects()
        self._end(host, silent=True)
        host.disk.power_failure(loss)
        host.boots += 1
        if self.async_loss is not None:
            since_s = self.async_loss.power_lost(node_id, self.loop.now_s, suspects)
            self.invariants.forget_stored(node_id)
            if since_s is not None:
                self.invariants.may_forget(since_s)

    def suspects(self) -> list[str]:
        """The nodes that may lack what they acknowledged (ASYNC_FLUSH)."""
        marks = [(host, mark_of(host.disk)) for host in self.hosts.values()]
        return [host.node_id for host, mark in marks if mark and (mark["suspect"] or mark["boot"] != f"{host.ip}/{host.boots}")]

    def wipe(self, node_id: str) -> None:
        """Its folder is lost; only for a node that a committed configuration leaves out, which comes back as somebody new."""
        host = self.hosts[node_id]
        host.old_folder = self.take_folder(node_id)
        host.rotten, host.wiped = "", True
        self.trace.note("wipe", host.ip)

    def take_folder(self, node_id: str) -> Folder:
        """Its node is killed, and its disk is empty from now on."""
        self.kill(node_id)
        disk = self.hosts[node_id].disk
        folder = Folder(disk.names, disk.durable_names, self.invariants.forget(node_id))
        disk.names, disk.durable_names = {}, {}
        return folder

    def put_folder(self, node_id: str, folder: Folder) -> None:
        """On a disk that is empty."""
        disk = self.hosts[node_id].disk
        disk.names, disk.durable_names = dict(folder.names), dict(folder.durable_names)
        self.invariants.remember(node_id, folder.promises)

    def _end(self, host: Host, *, silent: bool) -> None:
        if host.process is None:
            return
        self.trace.note("kill", host.ip)
        self.loop.kill(host.process, host.node)
        self.net.process_died(host.process, silent=silent)
        host.process = host.node = None

    def new_client(self, ip: str) -> tuple[Process, ProcessNetwork]:
        """A process on a machine of its own, for clients."""
        process = Process(ip, 1)
        self.client_ips.append(ip)
        return process, self.net.of(process)

    # Looking

    def happened(self) -> dict[str, int]:
        """What of ``coverage.ALL`` did."""
        counts = self.invariants.coverage.counts.copy()
        counts[coverage.REPAIRED] += sum(path.endswith("-repaired") for host in self.hosts.values() for path in host.disk.names)
        return dict(sorted((name, count) for name, count in counts.items() if count))

    def running(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.process is not None]

    def master(self) -> str | None:
        """The node that is master of the highest term, among those that run."""
        masters = [(host.node.roles.master_term, host.node_id) for host in self.running() if host.node and host.node.roles.master_term]
        return max(masters)[1] if masters else None

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
        return self.invariants.violations + [text for text, _error in self._errors()]

    def strays(self) -> list[str]:
        """The problems that no invariant speaks of."""
        return [text for text, error in self._errors() if not isinstance(error, FINDINGS)]

    def _errors(self) -> list[tuple[str, BaseException | None]]:
        ended = [(f"{host.node_id}: {problem!r}", problem) for host in self.hosts.values() for problem in host.problems]
        unhandled = self.loop.unhandled
        return ended + [(str(context.get("exception") or context["message"]), context.get("exception")) for context in unhandled]


def _cluster_file(nodes: int, priorities: Mapping[str, int], store: str) -> str:
    lines = "\n".join(
        f"      - {{id: n{number}, address: '10.0.0.{number + 1}:{PORT}', priority: {priorities.get(f'n{number}', 0)}}}"
        for number in range(nodes)
    )
    queue_files = "" if "mappedFileSizeConsumeQueue" in store else "mappedFileSizeConsumeQueue: 20000"  # sparse ones count as full here
    store = ", ".join(part for part in ("maxHashSlotNum: 256, maxIndexNum: 1000", queue_files, store) if part)
    return f"cluster: sim\ngroups:\n  - name: g0\n    nodes:\n{lines}\nstore: {{{store}}}\n"
