"""What the simulator found, each as the shortest run that shows it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from dledger.core.types import EntryKind, HardState, NodeId
from dledger.log.hard_state import HardStateFile
from dledger.log.log import Log
from dledger_wire.errors import StorageFailedError
from tests.sim.cluster import SMALL_LOG, SimCluster
from tests.sim.disk import MountedDisk, SimDisk
from tests.sim.disk_content import Loss
from tests.sim.loop import Process, SimLoop
from tests.sim.trace import Trace
from tests.sim.workload import Workload


class Machine:
    """One disk, and processes on it one after the other."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk(self.loop, "h", random.Random(1), Trace(self.loop))
        self.process = Process("h", 0)

    def run(self, work: Callable[[MountedDisk], Awaitable[None]], *, for_s: float = 60.0) -> None:
        """Let a process work to its end, or for a while; then it is killed."""
        self.process = Process("h", 1)

        async def whole() -> None:
            await work(self.disk.mount(self.process))

        task = self.loop.spawn(self.process, whole())

        async def watch() -> None:
            await asyncio.wait([task], timeout=for_s)

        self.loop.run_until_complete(watch())
        if task.done():
            task.result()
        self.loop.kill(self.process)
        self.disk.process_died()


@pytest.mark.parametrize("write_s", [0.0001, 0.0003, 0.0006, 0.001])
def test_a_promise_read_after_a_kill_survives_the_loss_of_power_that_follows(write_s: float) -> None:
    machine = Machine()
    seen: list[HardState] = []

    async def save(disk: MountedDisk) -> None:
        hard_state = await HardStateFile.open(disk, log_is_empty=True)
        await hard_state.save(HardState(7, NodeId("n2")))
        await asyncio.sleep(1)

    async def read(disk: MountedDisk) -> None:
        seen.append((await HardStateFile.open(disk, log_is_empty=True)).state)

    async def create(disk: MountedDisk) -> None:
        await HardStateFile.open(disk, log_is_empty=True)

    machine.run(create)
    opened_s = machine.loop.now_s

    machine.run(create)  # how long opening takes
    opened_s = machine.loop.now_s - opened_s
    machine.run(save, for_s=opened_s + write_s)
    machine.run(read)
    machine.disk.power_failure(Loss.NOTHING_KEPT)
    machine.run(read)
    assert seen[0] == seen[1]


def test_entries_read_after_a_failed_sync_survive_the_loss_of_power_that_follows() -> None:
    machine = Machine()
    ends: list[tuple[int, bool]] = []

    async def append(disk: MountedDisk) -> None:
        log, _report = await Log.open(disk, SMALL_LOG)
        log.save_hard_state(1, None)
        log.append(log.encode(1, EntryKind.NORMAL, [b"first"]))
        await log.flush()
        await asyncio.sleep(1)  # its index unit is written
        log.append(log.encode(1, EntryKind.NORMAL, [b"second"]))
        machine.disk.broken_paths["commitlog/"] = "sync"
        with pytest.raises(StorageFailedError):
            await log.flush()

    async def look(disk: MountedDisk) -> None:
        log, report = await Log.open(disk, SMALL_LOG)
        ends.append((log.durable.index, bool(report.damaged)))

    machine.run(append)
    machine.disk.broken_paths.clear()
    machine.run(look)
    machine.disk.power_failure(Loss.NOTHING_KEPT)
    machine.run(look)
    assert ends == [(2, False), (2, False)]


def test_a_node_whose_disk_fails_behind_its_back_stops_without_waiting_for_the_next_write() -> None:
    cluster = SimCluster(1)

    async def story() -> None:
        for node_id, host in cluster.hosts.items():
            host.bad_disk = True
            cluster.start(node_id)
        await asyncio.sleep(0.1)
        for host in cluster.hosts.values():
            host.disk.broken_paths["index-units/"] = "sync"
        await asyncio.sleep(10)  # the first leader's entry is the only thing written

    cluster.loop.run_until_complete(story())
    assert [type(host.ended) for host in cluster.hosts.values()] == [StorageFailedError] * 3


def test_a_group_with_a_member_down_keeps_a_leader_whose_disk_is_full() -> None:
    """Another one would need its vote, which a full disk holds up."""
    cluster = SimCluster(1)
    workload = Workload(cluster, queues=1, messages=30, reads=False, committers=0, options={})

    async def story() -> None:
        cluster.start_all()
        await cluster.loop.spawn(workload.process, workload.create_topic(), "create topic")
        leader = cluster.master_node()
        assert leader is not None
        cluster.power_off(next(name for name, each in cluster.hosts.items() if each.node is not leader), Loss.ALL_KEPT)
        host = next(each for each in cluster.hosts.values() if each.node is leader)
        host.bad_disk = True
        host.disk.settings.capacity_bytes = 0
        producing = cluster.loop.spawn(workload.process, workload.produce(), "produce")
        await cluster.until(lambda: leader.raft.disk_full_ms > 0, "the disk is not full", 10)
        await asyncio.sleep(5)
        assert cluster.master_node() is leader
        await leader.raft.read_barrier(1)
        host.disk.settings.capacity_bytes = 1 << 40
        await producing
        assert workload.acknowledged == 30

    cluster.loop.run_until_complete(story())
