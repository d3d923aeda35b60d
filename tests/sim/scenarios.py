"""Runs with a name: which faults strike when.  ``run`` takes a name and a seed and says what came of it.

Owns the fault plans.  A run has three acts: the group comes up, clients work while faults strike, everything heals; then everything is
compared.  Times are virtual; whatever a plan draws, it draws from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.checkers.append_log import check
from tests.sim.cluster import SimCluster
from tests.sim.disk import DiskSettings
from tests.sim.disk_content import Loss
from tests.sim.invariants import check_logs_match
from tests.sim.network import NetworkSettings
from tests.sim.workload import CLIENT_IP, Workload

RUN_LIMIT_S = 300.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run was: two runs of one seed must be equal in every field."""

    seed: int
    trace_hash: int
    events: int
    virtual_s: float
    acknowledged: int
    leaders: int
    anomalies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault plan and the size of the work."""

    faults: Callable[[SimCluster, random.Random], Awaitable[None]]
    messages: int = 25
    queues: int = 2
    network: Callable[[random.Random], NetworkSettings] = lambda _draw: NetworkSettings()
    disk: Callable[[random.Random], DiskSettings] = lambda _draw: DiskSettings()


async def until(condition: Callable[[], bool]) -> None:
    """Wait in virtual time."""
    while not condition():  # noqa: ASYNC110 - virtual time costs nothing
        await asyncio.sleep(POLL_S)


def strike(cluster: SimCluster, node_id: str, draw: random.Random) -> None:
    """End a node: its process, or its machine."""
    if draw.random() < 0.5:
        cluster.kill(node_id)
    else:
        cluster.power_off(node_id, draw.choice(list(Loss)))


async def kill_the_leader(cluster: SimCluster, draw: random.Random) -> None:
    """The master dies, once or twice, and comes back; sometimes a follower goes too, or a cable."""
    for _ in range(draw.choice((1, 1, 2))):
        await asyncio.sleep(0.02 + draw.random() * 0.25)
        await until(lambda: cluster.master() is not None)
        victim = cluster.master() or "n0"
        cut = None
        if draw.random() < 0.2:
            others = [host.ip for host in cluster.hosts.values() if host.node_id != victim]
            cut = (cluster.hosts[victim].ip, draw.choice(others))
            cluster.net.cut(*cut)
            await asyncio.sleep(draw.random() * 0.5)
        strike(cluster, victim, draw)
        await asyncio.sleep(draw.random() * draw.choice((0.05, 0.5, 2.0)))
        if cut is not None:
            cluster.net.heal(*cut)
        cluster.start(victim)


async def blackout(cluster: SimCluster, draw: random.Random) -> None:
    """The power goes for all machines at once, or for two of them: what was acknowledged must be on disks."""
    for _ in range(draw.choice((1, 2))):
        await asyncio.sleep(0.02 + draw.random() * 0.3)
        names = list(cluster.hosts)
        victims = names if draw.random() < 0.7 else draw.sample(names, 2)
        loss = draw.choice((Loss.NOTHING_KEPT, Loss.PREFIX, Loss.SUBSET))
        for victim in victims:
            cluster.power_off(victim, loss)
        await asyncio.sleep(draw.random() * 0.3)
        for victim in draw.sample(victims, len(victims)):
            cluster.start(victim)
            await asyncio.sleep(draw.random() * 0.3)


async def everything(cluster: SimCluster, draw: random.Random) -> None:
    """All faults, several times: kills, power failures, pauses, cuts in one or both directions, resets, clock drift, slow disks."""
    names = list(cluster.hosts)
    for _ in range(draw.randint(3, 6)):
        await asyncio.sleep(draw.random() * 0.4)
        name = draw.choice(names)
        host = cluster.hosts[name]
        kind = draw.choice(("strike", "strike", "pause", "cut", "isolate", "reset", "clock", "both", "slow"))
        cluster.trace.note("fault", host.ip, kind)
        if kind in ("strike", "both"):
            victims = [name] if kind == "strike" else draw.sample(names, 2)
            for victim in victims:
                strike(cluster, victim, draw)
            await asyncio.sleep(draw.random())
            for victim in victims:
                cluster.start(victim)
        elif kind == "pause" and host.process is not None:
            process = host.process
            cluster.loop.pause(process)
            await asyncio.sleep(draw.random() * 2)
            cluster.loop.resume(process)
        elif kind == "cut":
            other = draw.choice([ip for ip in (*(h.ip for h in cluster.hosts.values()), CLIENT_IP) if ip != host.ip])
            cluster.net.cut(host.ip, other)
            await asyncio.sleep(draw.random() * 2)
            cluster.net.heal(host.ip, other)
        elif kind == "isolate":
            others = [other.ip for other in cluster.hosts.values() if other is not host]
            for other in others:
                cluster.net.cut(host.ip, other)
                cluster.net.cut(other, host.ip)
            await asyncio.sleep(draw.random() * 3)
            for other in others:
                cluster.net.heal(host.ip, other)
                cluster.net.heal(other, host.ip)
        elif kind == "reset":
            cluster.net.break_connections(host.ip, draw.choice([other.ip for other in cluster.hosts.values() if other is not host]))
        elif kind == "clock":
            host.clock.set_rate(1.0 + draw.uniform(-0.02, 0.02))
            host.clock.jump_wall(draw.randrange(-5000, 5000))
        elif kind == "slow":
            host.disk.settings.slow_chance = 0.3
            await asyncio.sleep(draw.random())
            host.disk.settings.slow_chance = 0.0


def _rough_network(draw: random.Random) -> NetworkSettings:
    return NetworkSettings(
        slow_chance=draw.choice((0.0, 0.02)),
        drop_chance=draw.choice((0.0, 0.0, 0.02)),
        duplicate_chance=draw.choice((0.0, 0.0, 0.02)),
        reorder_chance=draw.choice((0.0, 0.0, 0.05)),
    )


SCENARIOS = {
    "kill-the-leader": Scenario(kill_the_leader, network=lambda draw: NetworkSettings(slow_chance=draw.choice((0.0, 0.02)))),
    "blackout": Scenario(blackout, disk=lambda draw: DiskSettings(sync_s=draw.choice((0.0008, 0.01, 0.03)))),
    "everything": Scenario(everything, messages=60, queues=3, network=_rough_network),
}


def run(name: str, seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> RunResult:
    """One run.  Violations of safety raise; what clients saw wrong is in ``anomalies``."""
    scenario = SCENARIOS[name]
    draw = random.Random(f"{name} {seed}")
    cluster = SimCluster(seed, readable=readable, network=scenario.network(draw), disk=scenario.disk(draw))
    workload = Workload(cluster, queues=scenario.queues, messages=scenario.messages, send_timeout_ms=20_000)
    try:
        cluster.loop.run_until_complete(asyncio.wait_for(_acts(cluster, workload, scenario, draw), RUN_LIMIT_S))
    except BaseException as error:
        error.add_note(f"seed={seed} scenario={name}: .venv/bin/python -m tests.sim {name} --seed {seed} --trace")
        error.add_note(f"at {cluster.loop.now_s:.3f} s; nodes: {[(host.node_id, host.process) for host in cluster.hosts.values()]}")
        for problem in cluster.problems():
            error.add_note(problem)
        raise
    finally:
        if sink is not None:
            for line in cluster.trace.lines:
                sink(line)
        cluster.loop.close()
    anomalies = [str(anomaly) for history in workload.histories for anomaly in check(history)] + cluster.problems()
    return RunResult(
        seed,
        cluster.trace.hash,
        cluster.trace.events,
        cluster.loop.now_s,
        workload.acknowledged,
        len(cluster.invariants.leaders),
        tuple(anomalies),
    )


async def _acts(cluster: SimCluster, workload: Workload, scenario: Scenario, draw: random.Random) -> None:
    for node_id in cluster.hosts:
        cluster.start(node_id)
    spawn = cluster.loop.spawn
    await spawn(workload.process, workload.create_topic(), "create topic")
    producing = spawn(workload.process, workload.produce(), "produce")
    await scenario.faults(cluster, draw)
    cluster.net.heal_all()
    for host in cluster.hosts.values():
        if host.process is None:
            cluster.start(host.node_id)
    await producing
    await until(lambda: _is_settled(cluster))
    if cluster.problems():
        return
    await check_logs_match([host.node for host in cluster.running() if host.node is not None])
    await spawn(workload.process, workload.drain(), "drain")


def _is_settled(cluster: SimCluster) -> bool:
    """One master, and everybody has applied everything."""
    if cluster.master() is None or cluster.problems():
        return bool(cluster.problems())
    nodes = [host.node for host in cluster.hosts.values() if host.node is not None and hasattr(host.node, "raft")]
    marks = {(node.raft.log.last, node.store.applied_index) for node in nodes if hasattr(node.raft, "log")}
    last, applied = next(iter(marks), (None, -1))
    return len(nodes) == len(cluster.hosts) and len(marks) == 1 and last is not None and last.index == applied
