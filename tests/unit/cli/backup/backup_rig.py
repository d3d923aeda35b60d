"""A replica to back up, without a store: a real log on a real disk, served by the code that nodes serve copies with, over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from broker.config.cluster_file import ClusterConfig
from dledger.core.types import EntryKind, Membership, NodeId
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.log.log import Log
from dledger.membership.configuration import Configuration
from dledger.runtime.real_disk import RealDisk
from dledger.snapshot.plan import StateSnapshot
from dledger.snapshot.source import Budget, Captured, SnapshotSource
from dledger.transport.link import NodeIdentity
from dledger_cli.local.ports import free_ports
from dledger_client.admin.replica_comparison import Replica
from dledger_offline.backup.manifest import Manifest
from dledger_offline.backup.node_folder import NodeFolder
from dledger_offline.backup.point import Point
from dledger_offline.backup.repository import Repository, open_repository
from dledger_offline.backup.take import GroupTaker, Taken, manifest_of, new_id, newest_of
from dledger_wire.batches.batch import encode_command
from dledger_wire.clock import SystemClock, system_random
from dledger_wire.errors import DeadlineExceededError
from dledger_wire.tcp.network import TcpNetwork
from store.durability.snapshots import Snapshot, Snapshots

CLUSTER, GROUP = "old", "g0"
START_MS, STEP_MS = 1_700_000_000_000, 1000  # of the first command, and between two
SMALL = LogConfig(segment_bytes=4096, fill_window_bytes=0)
OLD = Configuration(Membership((NodeId("n0"),), ()).with_stores({NodeId("n0"): "a" * 32}), {NodeId("n0"): "127.0.0.1:1"})

NEW_FILE = """
cluster: new
groups:
  - name: g0
    nodes:
      - {id: n0, address: 127.0.0.1:20001}
      - {id: n1, address: 127.0.0.1:20002}
      - {id: n2, address: 127.0.0.1:20003}
store: {mappedFileSizeCommitLog: 64KiB, maxMessageSize: 16KiB}
"""


def new_cluster() -> ClusterConfig:
    return ClusterConfig.parse(NEW_FILE, "new.yaml")


def at_ms(number: int) -> int:
    """When command ``number`` was stored."""
    return START_MS + number * STEP_MS


class Source:
    """One replica of the old cluster; open it with ``source``."""

    def __init__(self, log: Log, address: str) -> None:
        self.log = log
        self.replica = Replica(CLUSTER, GROUP, "n0", address)
        self.sent: list[int] = []  # sizes of the pieces it gave
        self.count = 0
        self.is_cut_off = False  # from the other members of its group

    async def append(self, count: int, *, size: int = 300) -> None:
        """Commit so many commands."""
        for _ in range(count):
            record = encode_command("note", {"at_ms": at_ms(self.count), "text": f"{self.count} ".ljust(size, "x")})
            self.log.append(self.log.encode(1, EntryKind.NORMAL, [record]))
            self.count += 1
        await self.log.flush()

    async def read_barrier(self, timeout_s: float) -> None:
        if self.is_cut_off:
            raise DeadlineExceededError(f"read index not confirmed and applied within {timeout_s} s")

    async def capture(self) -> Captured:
        last, log = self.log.last, self.log
        newest = at_ms(self.count - 1) if self.count else 0
        state = Snapshot(last.index, last.term, log.end_pos, newest, sections={"topics.json": {"count": self.count}})
        return Captured(log, StateSnapshot(last.index, await Snapshots.files(state)), OLD, 1)


@asynccontextmanager
async def source(folder: Path, network: Callable[[], TcpNetwork] = TcpNetwork) -> AsyncIterator[Source]:
    log, _ = await Log.open(RealDisk(str(folder)), SMALL)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    made = Source(log, address)
    identity = NodeIdentity(CLUSTER, GROUP, NodeId("n0"), "a" * 32, address)
    budget = Budget(SystemClock(), 0)
    serving = SnapshotSource(
        identity, SystemClock(), system_random(), budget, made.capture, lambda _node, _lineage: None, made.read_barrier
    )
    server = network().serve(address)
    serving.register(server)
    await server.start()
    log.append(log.encode(1, EntryKind.CONFIG, [OLD.encode()]))
    try:
        yield made
    finally:
        await server.stop(0)
        await log.close()


async def back_up(repository: Repository, *replicas: Replica, told: list[str] | None = None) -> tuple[Manifest, Taken]:
    """What the command does for a cluster of one group."""
    repository.make(CLUSTER)
    backup_id, begun_ms = new_id(repository.ids()), SystemClock().wall_ms()
    taker = GroupTaker(repository, backup_id, GROUP, newest_of(repository, GROUP, lambda _error: None))
    taker.left_aside = lambda error: told.append(error.message) if told is not None else None
    taken = await taker.take(replicas)
    manifest = manifest_of(backup_id, CLUSTER, begun_ms, {GROUP: taken})
    repository.add_whole(manifest)
    return manifest, taken


def local(folder: Path) -> Repository:
    return open_repository(str(folder))


async def restore(repository: Repository, manifest: Manifest, point: Point, node_id: str, folder: Path) -> None:
    await NodeFolder(repository, point, new_cluster().node(node_id), folder, lambda _size: None).make(manifest.id)


async def entries_of(folder: Path) -> list[RawEntry]:
    """What is in the log of a data folder."""
    log, report = await Log.open(RealDisk(str(folder)), LogConfig(segment_bytes=64 << 10, fill_window_bytes=0, verify_bytes=None))
    try:
        assert not report.damaged
        found: list[RawEntry] = []
        while (index := found[-1].index + 1 if found else log.first_index) <= log.last.index:
            found += await log.read(index, 1 << 20, log.last.index)
        return found
    finally:
        await log.close()
