"""Operators of simulated clusters: they change who belongs to the group, by the product's own steps, whoever leads meanwhile.

Owns the goals (a member is taken out and comes back, with its folder or without; the leader takes itself out) and brings everybody back
at the end, so that all replicas can be compared.  One operator works at a time.
"""

from __future__ import annotations

import asyncio
import random

from broker.membership.membership_steps import membership_steps
from dledger.node import RaftNode
from dledger_wire.errors import DledgerError
from tests.levels import NEXT_BUILD
from tests.sim import coverage, rot
from tests.sim.cluster import SimCluster
from tests.sim.host import Host

STEP_S = 0.1
CHANGE_TIMEOUT_S = 2.0
CAREFUL_S = 30.0


def leading(cluster: SimCluster, node_id: str) -> tuple[Host, RaftNode] | None:
    """The master of a node's group, and its Raft node."""
    master = cluster.master(cluster.hosts[node_id].group)
    host = cluster.hosts[master] if master is not None else None
    if host is None or host.node is None or host.process is None or not cluster.is_up(host):
        return None
    return host, host.node.raft


def is_voter(cluster: SimCluster, node_id: str) -> bool | None:
    """None: not known, nobody leads or the last change is not committed."""
    found = leading(cluster, node_id)
    if found is None or found[1]._replica.core.membership_index > found[1].commit_index:
        return None
    membership = found[1].membership
    return True if node_id in membership.voters else False if node_id in membership.learners else None


def is_out(cluster: SimCluster, node_id: str) -> bool:
    """Whether a committed configuration leaves it out."""
    found = leading(cluster, node_id)
    if found is None or found[1]._replica.core.membership_index > found[1].commit_index:
        return False
    return node_id not in found[1].membership


async def ask(cluster: SimCluster, action: str, node_id: str) -> None:
    """One command to whoever leads; what it answers is only noted, since it may be out of date already."""
    found = leading(cluster, node_id)
    if found is None or found[0].process is None:
        await asyncio.sleep(STEP_S)
        return
    host, raft = found
    if action == "remove" and not rot.most_are_sound(cluster, set(raft.membership.voters) - {node_id}):
        await asyncio.sleep(STEP_S)  # the damage may be on those alone then, and nobody knows it yet
        return

    async def change() -> None:
        try:
            for step in membership_steps(raft.membership, action, node_id, ""):
                await raft.change_members(step.voters, step.learners, {}, CHANGE_TIMEOUT_S)
        except DledgerError as error:
            cluster.trace.note("refused", host.ip, f"{action} {node_id}: {error.code}")
        else:
            cluster.trace.note("members", host.ip, f"{action} {node_id}: {raft.membership}")

    cluster.loop.spawn(found[0].process, change(), action)
    await asyncio.sleep(STEP_S)


def move_leadership(cluster: SimCluster, host: Host, target: str | None) -> None:
    """One command to ``host``; nobody promises that it works while everything breaks."""
    if host.process is None or host.node is None or not cluster.is_up(host):
        return

    async def move(raft: RaftNode = host.node.raft) -> None:
        try:
            await raft.transfer(target, timeout_s=1.0)
        except DledgerError as error:
            cluster.trace.note("refused", host.ip, error.code)

    cluster.loop.spawn(host.process, move(), "transfer")


async def change_flush_mode(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """Start a node in the other mode, after an orderly stop or a kill."""
    if draw.random() < 0.4:
        await cluster.stop(host.node_id)
    else:
        cluster.kill(host.node_id)
    cluster.other_flush_mode(host)
    cluster.ensure_running(host.node_id)
    await asyncio.sleep(lasts_s)


async def upgrade(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """Start a node with the build of the next release, after an orderly stop or a kill."""
    if draw.random() < 0.6:
        await cluster.stop(host.node_id)
    else:
        cluster.kill(host.node_id)
    host.levels = NEXT_BUILD
    cluster.ensure_running(host.node_id)
    await asyncio.sleep(lasts_s)


async def take_out_and_bring_back(cluster: SimCluster, host: Host, draw: random.Random, until_s: float, *, wipe: bool = False) -> None:
    """Remove a member, perhaps lose its folder, add it as a learner and promote it when it has caught up."""
    while cluster.loop.now_s < until_s and not is_out(cluster, host.node_id):
        await ask(cluster, "remove", host.node_id)
    if not is_out(cluster, host.node_id):
        return
    if draw.random() < 0.4 or wipe:
        cluster.wipe(host.node_id)
        cluster.start(host.node_id)
    await asyncio.sleep(draw.random() * 0.3)
    await bring_back(cluster, host.node_id, until_s)


async def bring_back(cluster: SimCluster, node_id: str, until_s: float) -> None:
    while cluster.loop.now_s < until_s and not cluster.problems():
        voter = is_voter(cluster, node_id)
        if voter:
            host = cluster.hosts[node_id]
            if host.wiped:
                cluster.invariants.coverage.count(coverage.READDED)
            host.wiped = False
            return
        if voter is False:
            await ask(cluster, "promote", node_id)
        elif is_out(cluster, node_id):
            await ask(cluster, "add", node_id)
        else:
            await asyncio.sleep(STEP_S)


async def restore(cluster: SimCluster) -> None:
    """Faults are over: everybody is a voter again."""
    for node_id in cluster.hosts:
        await bring_back(cluster, node_id, cluster.loop.now_s + CAREFUL_S)
