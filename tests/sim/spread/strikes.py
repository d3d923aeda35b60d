"""Carries out what strikes name servers and consumers (``plans.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.sim.cluster import SimCluster
from tests.sim.disk_content import Loss
from tests.sim.loop import Process
from tests.sim.name_servers import NameServerHost
from tests.sim.spread.plans import Strike

if TYPE_CHECKING:
    from tests.sim.spread.world import SpreadWorld

Pair = tuple[str, str]


async def strike_clients(world: SpreadWorld, plan: Sequence[Strike]) -> None:
    """On consumers; a killed one comes back under another name."""
    running = []
    for strike in plan:
        await asyncio.sleep(strike.after_s)
        running.append(asyncio.ensure_future(_strike_client(world, strike)))
    await asyncio.gather(*running)


async def _strike_client(world: SpreadWorld, strike: Strike) -> None:
    cluster = world.cluster
    group = world.groups[strike.number % len(world.groups)]
    names = sorted(group.members)
    if not names:
        return
    name = names[strike.number % len(names)]
    process = group.members[name].process
    cluster.trace.note("strike", process.host, str(strike))
    if strike.kind == "kill":
        group.kill(name, silent=strike.number % 2 == 0)
        await asyncio.sleep(strike.lasts_s)
        await world.join_again(group)
    elif strike.kind == "pause":
        await _pause(cluster, [process], strike.lasts_s)
    else:
        await _cut(cluster, _both_ways([process.host], [machine.ip for machine in cluster.machines()]), strike.lasts_s)


async def strike_name_servers(cluster: SimCluster, plan: Sequence[Strike]) -> None:
    running = []
    for strike in plan:
        await asyncio.sleep(strike.after_s)
        running.append(asyncio.ensure_future(_strike_name_server(cluster, strike)))
    await asyncio.gather(*running)


async def _strike_name_server(cluster: SimCluster, strike: Strike) -> None:
    servers = cluster.name_servers
    all_hosts = list(servers.hosts.values())
    host = all_hosts[strike.number % len(all_hosts)]
    cluster.trace.note("strike", host.ip, str(strike))
    if strike.kind == "clock":
        host.clock.jump_wall(round((strike.number - 6) * 10_000 * strike.lasts_s))
    elif strike.kind == "pause":
        await _pause(cluster, [host.process] if host.process is not None else [], strike.lasts_s)
    elif strike.kind in ("kill", "power", "wipe", "all-killed", "all-wiped"):
        await _end(cluster, all_hosts if strike.kind.startswith("all") else [host], strike)
    else:
        await _cut(cluster, _pairs(cluster, host, strike.kind), strike.lasts_s)


async def _end(cluster: SimCluster, hosts: Sequence[NameServerHost], strike: Strike) -> None:
    servers = cluster.name_servers
    for host in hosts:
        if strike.kind == "power":
            servers.power_off(host.name, list(Loss)[strike.number % len(Loss)])
        elif "wipe" in strike.kind:
            servers.wipe(host.name)
        else:
            servers.kill(host.name)
    await asyncio.sleep(strike.lasts_s)
    for host in hosts:
        servers.ensure_running(host.name, cluster.config)


def _pairs(cluster: SimCluster, host: NameServerHost, kind: str) -> list[Pair]:
    """Which cables are cut: between name servers, to nodes, to clients, or all of one."""
    others = [other.ip for other in cluster.name_servers.hosts.values() if other is not host]
    nodes = [node.ip for node in cluster.hosts.values()]
    if kind == "split":
        return _both_ways([host.ip], others)
    if kind == "from-nodes":
        return [(node, host.ip) for node in nodes]
    if kind == "from-clients":
        return _both_ways([host.ip], cluster.client_ips)
    return _both_ways([host.ip], [*others, *nodes, *cluster.client_ips])


def _both_ways(some: Sequence[str], others: Sequence[str]) -> list[Pair]:
    return [pair for one in some for other in others for pair in ((one, other), (other, one))]


async def _cut(cluster: SimCluster, pairs: Sequence[Pair], lasts_s: float) -> None:
    for pair in pairs:
        cluster.net.cut(*pair)
    await asyncio.sleep(lasts_s)
    for pair in pairs:
        cluster.net.heal(*pair)


async def _pause(cluster: SimCluster, processes: Sequence[Process], lasts_s: float) -> None:
    for process in processes:
        cluster.loop.pause(process)
    await asyncio.sleep(lasts_s)
    for process in processes:
        cluster.loop.resume(process)
