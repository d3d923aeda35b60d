"""``dledger member unsafe-recover`` in simulated clusters: the folder of a stopped node becomes that of the only voter, of a new lineage.

Owns the steps on the simulated disk, which are the product's own, and what an operator does around them: the old members come back with
their folders, as a group of their own, until each is wiped and added.
"""

from __future__ import annotations

import asyncio
import random

from dledger.core.types import EntryId
from dledger.log.log import Log
from dledger_offline.recovery.only_voter import Survivor, check_others_wait, look_at_disk, make_only_voter
from dledger_wire.errors import DataDirectoryError, DledgerError, StorageDamagedError
from dledger_wire.security.network_security import OPEN
from tests.sim import operators
from tests.sim.cluster import SimCluster
from tests.sim.groups import only_first
from tests.sim.host import Host

MOST_RECOVERIES = 2  # in one run
AGAIN_S = 0.2
BACK_S = 30.0
NOT_THIS_ONE = (DataDirectoryError, StorageDamagedError)  # an operator takes another survivor then, or a backup


async def recover_alone(cluster: SimCluster, node_id: str) -> EntryId:
    """Give the command for a node that is killed or stopped; its last entry then.  DledgerError when the command is refused.

    The node is of a new lineage of its group then.  Nodes that are started from now on have a cluster file in which all others of the
    group have ``spare: true``.
    """
    host = cluster.hosts[node_id]
    config = only_first(cluster.config, host.group, (node_id,))
    process, env = host.new_process(cluster.net, OPEN)

    async def command() -> tuple[EntryId, int, list[int]]:
        found = await look_at_disk(config, node_id, env.disk, cluster.log)
        check_others_wait(config, found)
        last = await make_only_voter(found, env.random, env.clock.wall_ms())
        return last, *await _terms(found)

    try:
        last, first, terms = await cluster.loop.spawn(process, command(), "unsafe-recover")
    finally:
        cluster.end(host, silent=False)
        host.disk.process_died()
    cluster.config = config
    cluster.begin_lineage(host, first, terms)
    cluster.trace.note("recovered", host.ip, str(last))
    return last


async def _terms(found: Survivor) -> tuple[int, list[int]]:
    """The first entry of the log, and the terms of all."""
    log, _report = await Log.open(found.disk, found.log)
    try:
        first = log.first_index
        entries = [log.entry_id(index) for index in range(first, log.last.index + 1)]
        return first, [entry.term for entry in entries if entry is not None]
    finally:
        await log.close()


async def recover(cluster: SimCluster, survivor: Host, draw: random.Random, lasts_s: float) -> None:
    """An operator takes a group for lost, goes on with one survivor, and is wrong about some of the others: they come back for a while."""
    group = cluster.groups[survivor.group]
    if cluster.operator_at_work or survivor.lineage != len(group.lineages) - 1 or len(group.lineages) > MOST_RECOVERIES:
        return
    cluster.operator_at_work = True
    hosts = cluster.hosts_of(group.name)
    others = [host for host in hosts if host is not survivor]
    try:
        if not await _command(cluster, survivor, hosts):
            return
        chance = draw.choice((0.0, 0.0, 0.5, 1.0))
        for other in others:
            if draw.random() < chance:
                cluster.wipe(other.node_id)
        await asyncio.sleep(draw.random() * 0.5)
        for host in hosts:  # those with a folder are a group of their own, if they are a majority of it
            cluster.ensure_running(host.node_id)
        await asyncio.sleep(lasts_s)
        draw.shuffle(others)
        for other in others:
            if other.lineage != survivor.lineage:
                cluster.wipe(other.node_id)
                cluster.ensure_running(other.node_id)
            await operators.bring_back(cluster, other.node_id, cluster.loop.now_s + BACK_S * draw.choice((0.0, 1.0)))
    finally:
        cluster.operator_at_work = False


async def _command(cluster: SimCluster, survivor: Host, hosts: list[Host]) -> bool:
    """Give it until it is carried out, while nothing of the group runs; whether it could be."""
    for host in hosts:
        cluster.kill(host.node_id)
        host.at_repair = True
    try:
        while True:
            try:
                await recover_alone(cluster, survivor.node_id)
            except NOT_THIS_ONE as error:
                cluster.trace.note("refused", survivor.ip, error.code)
                return False
            except (DledgerError, OSError) as error:
                cluster.trace.note("failed", survivor.ip, repr(error))
                await asyncio.sleep(AGAIN_S)
            else:
                return True
    finally:
        for host in hosts:
            host.at_repair = False
        for host in hosts if survivor.lineage != len(cluster.groups[survivor.group].lineages) - 1 else ():
            cluster.ensure_running(host.node_id)
