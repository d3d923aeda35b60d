"""Data folders that are not the ones that belong there: a voter's is lost without its removal, or an old one is put back for a while.

Owns when that may be struck: once all nodes go by a committed configuration that names the member's folder, one member at a time, so that
the rest of the group could tell.  In the end the right folder is in its place again.
"""

from __future__ import annotations

import asyncio
import random

from dledger.core.types import NodeId
from tests.sim import operators
from tests.sim.cluster import SimCluster
from tests.sim.host import Folder, Host


def may_strike(cluster: SimCluster, host: Host) -> bool:
    """Whether all nodes run and know the folder of this one from what is committed."""
    if cluster.operator_at_work or host.wiped or not all(cluster.is_up(each) for each in cluster.hosts_of(host.group)):
        return False
    nodes = [each.node for each in cluster.hosts_of(host.group) if each.node is not None]
    known = {node.raft._replica.members.settled_store(NodeId(host.node_id)) for node in nodes}
    return len(known) == 1 and known == {host.node.identity.store_id if host.node is not None else ""}


async def lose(cluster: SimCluster, host: Host, lasts_s: float) -> None:
    """The folder is lost, the node starts on an empty one, and nobody removes the member; then the disk is found again."""
    if not may_strike(cluster, host):
        return
    await _in_place_of(cluster, host, None, lasts_s, "lost folder")


async def put_old_back(cluster: SimCluster, host: Host, lasts_s: float) -> None:
    """The folder of before the member was replaced is put in the place of the newer one."""
    if host.old_folder is not None and may_strike(cluster, host):
        await _in_place_of(cluster, host, host.old_folder, lasts_s, "old folder")


async def _in_place_of(cluster: SimCluster, host: Host, other: Folder | None, lasts_s: float, text: str) -> None:
    cluster.operator_at_work = True
    try:
        right = cluster.take_folder(host.node_id)
        if other is not None:
            cluster.put_folder(host.node_id, other)
        cluster.trace.note(text, host.ip)
        cluster.start(host.node_id)
        await asyncio.sleep(lasts_s)
        cluster.take_folder(host.node_id)
        cluster.put_folder(host.node_id, right)
        cluster.start(host.node_id)
    finally:
        cluster.operator_at_work = False


async def replace(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """Operators replace a member by itself with an empty folder; the old one is kept."""
    if cluster.operator_at_work:
        return
    cluster.operator_at_work = True
    try:
        await operators.take_out_and_bring_back(cluster, host, draw, cluster.loop.now_s + lasts_s, wipe=True)
    finally:
        cluster.operator_at_work = False
