"""Disks that are slow, full or fail now and then, as faults of a plan.

Owns how each is carried out and undone: a node may stop for it, and is started again when it is over.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.sim.cluster import SimCluster
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.faults import Fault


async def slow_disk(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    settings = hosts[0].disk.settings
    settings.slow_chance, settings.slow_s = 0.3, 0.05 + fault.amount * 0.5
    await asyncio.sleep(fault.lasts_s)
    settings.slow_chance = 0.0


async def full_disk(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Somebody else fills the disk, and makes room again later."""
    host = hosts[0]
    host.bad_disk = True
    capacity, host.disk.settings.capacity_bytes = host.disk.settings.capacity_bytes, host.disk.used_bytes() + round(fault.amount * 4096)
    await asyncio.sleep(fault.lasts_s)
    host.disk.settings.capacity_bytes = max(capacity, 1 << 40)
    cluster.ensure_running(host.node_id)


async def full_disks(cluster: SimCluster, fault: Fault, _hosts: list[Host]) -> None:
    """All disks fill in the same moment, and have room again one after the other."""
    draw, machines = random.Random(fault.amount), list(cluster.hosts.values())
    for host in machines:
        host.bad_disk = True
        host.disk.settings.capacity_bytes = host.disk.used_bytes() + draw.randrange(4096)
    await asyncio.sleep(fault.lasts_s)
    draw.shuffle(machines)
    for host in machines:
        host.disk.settings.capacity_bytes = 1 << 40
        cluster.ensure_running(host.node_id)
        await asyncio.sleep(draw.choice((0.0, 0.3)))


async def failing_reads(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Reads fail by chance, and succeed when they are tried again: a loose cable."""
    host = hosts[0]
    host.bad_disk = True
    host.disk.settings.read_failure_chance = 0.02 + fault.amount * 0.3
    await asyncio.sleep(fault.lasts_s)
    host.disk.settings.read_failure_chance = 0.0
    cluster.ensure_running(host.node_id)


async def failing_writes(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Writes fail by chance; the node has to stop, and is started again."""
    host = hosts[0]
    host.bad_disk = True
    host.disk.settings.write_failure_chance = 0.02 + fault.amount * 0.3
    await asyncio.sleep(fault.lasts_s)
    host.disk.settings.write_failure_chance = 0.0
    cluster.ensure_running(host.node_id)


async def failing_sync(cluster: SimCluster, fault: Fault, hosts: list[Host]) -> None:
    """Syncs fail, and the kernel forgets what they were for; the node has to stop, and is started again."""
    host = hosts[0]
    host.bad_disk = True
    host.disk.settings.sync_failure_chance = 0.2 + fault.amount
    await asyncio.sleep(fault.lasts_s)
    host.disk.settings.sync_failure_chance = 0.0
    cluster.ensure_running(host.node_id)
