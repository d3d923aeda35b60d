"""Faults in several steps, each waiting for what the one before brought about: known recipes for losing what was acknowledged.

Owns when the next step is due: another leader is there, a conflict is being cut, a copy is under way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from dledger.snapshot.source import SnapshotSource
from tests.sim import coverage, operators
from tests.sim.cluster import SimCluster
from tests.sim.disk_content import Loss
from tests.sim.host import Host

POLL_S = 0.02
WAIT_S = 3.0
MIDDLE_S = 0.002  # the middle of cutting a log's tail is at most this and a few syncs away


async def pause_kill(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """A leader stands still until there is another one, and ends while it does, or just when it moves again."""
    process = host.process
    if process is None:
        return
    cluster.loop.pause(process)
    await _until(lambda: _another_leads(cluster, host))
    if draw.random() < 0.5:
        cluster.loop.resume(process)
        await asyncio.sleep(draw.random() * 0.02)
    await _end(cluster, host, draw, lasts_s)


async def part_kill(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """A leader is alone; it ends, or the one chosen instead of it does, before they see each other again."""
    pairs = _cut_off(cluster, host)
    await _until(lambda: _another_leads(cluster, host))
    await asyncio.sleep(draw.random() * 0.2)
    master = cluster.master(host.group)
    victim = host if master is None or draw.random() < 0.5 else cluster.hosts[master]
    await _end(cluster, victim, draw, lasts_s * draw.random())
    await asyncio.sleep(draw.random() * 0.2)
    _heal(cluster, pairs)


async def cut_kill(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """A leader alone with its clients comes to hold what nobody else will have, and loses power in the middle of cutting that."""
    delay_s, loss = draw.random() * (MIDDLE_S + 3 * host.disk.settings.sync_s), draw.choice(list(Loss))
    cutting: list[float] = []
    invariants = cluster.groups[host.group].invariants

    def cut(node_id: str) -> None:
        if node_id == host.node_id and not cutting:
            cutting.append(cluster.loop.now_s)
            invariants.coverage.count(coverage.CUT_SHORT)
            cluster.loop.call_for(cluster.loop.world, cluster.loop.now_s + delay_s, cluster.power_off, node_id, loss)

    invariants.on_cut.append(cut)
    pairs = _cut_off(cluster, host)
    await _until(lambda: _another_leads(cluster, host))
    await asyncio.sleep(draw.random() * 0.3)
    _heal(cluster, pairs)
    await _until(lambda: bool(cutting))
    await asyncio.sleep(delay_s + lasts_s * 0.2)
    invariants.on_cut.remove(cut)
    cluster.ensure_running(host.node_id)


async def part_change(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """A leader changes the members when it is alone: the configuration it goes by is cut with its log's tail."""
    if cluster.operator_at_work:
        return
    cluster.operator_at_work = True
    pairs = _cut_off(cluster, host)
    try:
        await operators.ask(cluster, "remove", draw.choice([other.node_id for other in cluster.hosts_of(host.group) if other is not host]))
        await _until(lambda: _another_leads(cluster, host))
        await asyncio.sleep(draw.random() * min(lasts_s, 0.3))
    finally:
        _heal(cluster, pairs)
        cluster.operator_at_work = False


async def part_transfer(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """A leader is to hand over to one it does not reach."""
    target = draw.choice([other for other in cluster.hosts_of(host.group) if other is not host])
    pairs = [(host.ip, target.ip), (target.ip, host.ip)]
    for source, to in pairs:
        cluster.net.cut(source, to)
    operators.move_leadership(cluster, host, target.node_id)
    await asyncio.sleep(0.5 + lasts_s)
    _heal(cluster, pairs)


async def stale_pieces(cluster: SimCluster, host: Host, draw: random.Random, lasts_s: float) -> None:
    """Pieces of copies come late and again, those of earlier copies too, while whoever gives or takes them starts anew."""
    pieces = StalePieces(cluster, draw, cluster.loop.now_s + lasts_s)
    watching = cluster.loop.spawn(cluster.loop.world, pieces.watch(), "stale pieces")
    for _ in range(draw.randint(1, 3)):
        await asyncio.sleep(draw.random() * lasts_s / 3)
        await _end(cluster, draw.choice((host, *cluster.hosts_of(host.group))), draw, draw.random() * 0.1)
    await watching


class StalePieces:
    """Stands between the sources of copies and the network, on every node that runs."""

    def __init__(self, cluster: SimCluster, draw: random.Random, until_s: float) -> None:
        self._cluster = cluster
        self._draw = draw
        self._until_s = until_s
        self._sources: dict[SnapshotSource, None] = {}
        self._earlier: list[bytes] = []

    async def watch(self) -> None:
        while self._cluster.loop.now_s < self._until_s:
            for host in self._cluster.running():
                if host.node is not None and host.node.is_open and host.node.raft._replica.source not in self._sources:
                    self._stand_before(host.node.raft._replica.source)
            await asyncio.sleep(POLL_S)

    def _stand_before(self, source: SnapshotSource) -> None:
        self._sources[source] = None
        make, take = source._piece, source._budget.take

        async def late(size: int) -> None:
            if self._draw.random() < 0.5 and self._cluster.loop.now_s < self._until_s:
                await asyncio.sleep(self._draw.random() * 0.3)
            await take(size)

        def again(copy_id: str, pos: int, data: bytes) -> bytes:
            self._earlier.append(make(copy_id, pos, data))
            is_stale = self._draw.random() < 0.3 and self._cluster.loop.now_s < self._until_s
            return self._draw.choice(self._earlier) if is_stale else self._earlier[-1]

        source._piece, source._budget.take = again, late  # type: ignore[method-assign]


def _another_leads(cluster: SimCluster, host: Host) -> bool:
    return cluster.master(host.group) not in (None, host.node_id)


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(round(WAIT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)


async def _end(cluster: SimCluster, host: Host, draw: random.Random, away_s: float) -> None:
    """Its process or its machine ends, and is back later."""
    if draw.random() < 0.5:
        cluster.kill(host.node_id)
    else:
        cluster.power_off(host.node_id, draw.choice(list(Loss)))
    await asyncio.sleep(away_s)
    cluster.ensure_running(host.node_id)


def _cut_off(cluster: SimCluster, host: Host) -> list[tuple[str, str]]:
    pairs = [pair for other in cluster.hosts.values() if other is not host for pair in ((host.ip, other.ip), (other.ip, host.ip))]
    for source, target in pairs:
        cluster.net.cut(source, target)
    return pairs


def _heal(cluster: SimCluster, pairs: list[tuple[str, str]]) -> None:
    for source, target in pairs:
        cluster.net.heal(source, target)
