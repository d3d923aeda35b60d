"""Runs with a name: which plan of faults, how much work, what network and disks.  ``run`` takes a name and a seed and says what came of it.

A run has three acts: the group comes up, clients work while faults strike, everything heals; then everything is compared.  Times are
virtual; whatever is drawn, is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from broker.node import BrokerNode
from dledger.log.config import LogConfig
from tests.checkers.append_log import check
from tests.checkers.queues import check_group_offsets
from tests.sim import one_world, operators
from tests.sim.clock import EPOCH_MS
from tests.sim.cluster import SMALL_LOG, SimCluster
from tests.sim.core.runs import CORE_SCENARIOS, run_core
from tests.sim.disk import DiskSettings
from tests.sim.faults import (
    POLL_S,
    Fault,
    carry_out,
    plan_async,
    plan_async_blackout,
    plan_blackout,
    plan_clocks,
    plan_damage,
    plan_disks,
    plan_everything,
    plan_folders,
    plan_kill_the_leader,
    plan_members,
    plan_mixture,
    plan_recipes,
    plan_retention,
    plan_rot,
    plan_split,
    plan_stale_copies,
    plan_storm,
    plan_swarm,
    shortened,
)
from tests.sim.invariants import check_logs_match
from tests.sim.loop import START_S
from tests.sim.network import NetworkSettings
from tests.sim.result import LivenessError, RunResult
from tests.sim.shrink import Times
from tests.sim.workload import Workload
from tests.sim.worlds import WORLDS, run_world

RUN_LIMIT_S = 300.0
STAMP_LIMIT_MS = 10_000  # clocks of hosts may be off by half of that without a leap
LEADER_LIMIT_S = 15.0  # once faults have stopped


@dataclass(frozen=True, slots=True)
class Scenario:
    """A plan of faults and the size of the work."""

    plan: Callable[[Sequence[str], random.Random], list[Fault]]
    messages: int = 25
    queues: int = 2
    nodes: Sequence[int] = (3,)
    read_chance: float = 0.25
    network: Callable[[random.Random], NetworkSettings] = lambda _draw: NetworkSettings()
    disk: Callable[[random.Random], DiskSettings] = lambda _draw: DiskSettings()
    log: LogConfig = SMALL_LOG
    settings: str = ""  # of the cluster file, beside those of the store
    store: str = ""
    deletes: bool = False  # old messages
    archive: bool = False  # what was applied
    committers: int = 0  # clients that commit and read offsets of a consumer group
    batch_bytes: int = 0  # of producers; 0: their default
    drawn: Callable[[random.Random], Scenario] | None = None  # instead of this one


def _rough_network(draw: random.Random) -> NetworkSettings:
    return NetworkSettings(
        slow_chance=draw.choice((0.0, 0.02)),
        drop_chance=draw.choice((0.0, 0.0, 0.02)),
        duplicate_chance=draw.choice((0.0, 0.0, 0.02)),
        reorder_chance=draw.choice((0.0, 0.0, 0.05)),
    )


def _slow_network(draw: random.Random) -> NetworkSettings:
    return NetworkSettings(delay_jitter_s=draw.choice((0.0007, 0.01, 0.03)), slow_chance=draw.choice((0.0, 0.1)))


def _any_disk(draw: random.Random) -> DiskSettings:
    return DiskSettings(sync_s=draw.choice((0.0008, 0.01, 0.03)))


_KEPT = "cleanFileForciblyEnable: false"  # else a full disk costs messages, as told
_DAMAGE = Scenario(
    plan_damage,
    messages=80,
    nodes=(3, 5),
    read_chance=1.0,
    log=replace(SMALL_LOG, segment_bytes=4 << 10, cache_bytes=8 << 10),
    batch_bytes=1024,
)
SCENARIOS = {
    "kill-the-leader": Scenario(plan_kill_the_leader, network=lambda draw: NetworkSettings(slow_chance=draw.choice((0.0, 0.02)))),
    "blackout": Scenario(plan_blackout, disk=_any_disk),
    "split": Scenario(plan_split, messages=60, nodes=(3, 3, 5), network=_rough_network),
    "storm": Scenario(plan_storm, nodes=(3, 3, 5), network=_slow_network, disk=_any_disk),
    "everything": Scenario(
        plan_everything, messages=60, queues=3, nodes=(3, 3, 3, 5), read_chance=1.0, network=_rough_network, disk=_any_disk
    ),
    "members": Scenario(plan_members, messages=60, nodes=(3, 3, 5), read_chance=0.5, network=_rough_network, disk=_any_disk),
    "folders": Scenario(plan_folders, messages=60, nodes=(3, 3, 5), read_chance=0.5, disk=_any_disk),
    "offsets": Scenario(plan_split, messages=20, nodes=(3, 3, 5), network=_rough_network, committers=3),
    "swarm": Scenario(
        plan_swarm,
        messages=60,
        queues=3,
        nodes=(3, 3, 5),
        read_chance=1.0,
        network=_rough_network,
        disk=_any_disk,
        committers=2,
    ),
    "rot": Scenario(
        plan_rot,
        messages=80,
        read_chance=1.0,
        log=replace(SMALL_LOG, segment_bytes=4 << 10, cache_bytes=8 << 10),
        batch_bytes=1024,
    ),
    "clocks": Scenario(
        plan_clocks,
        messages=80,
        nodes=(3, 3, 5),
        network=_rough_network,
        log=replace(SMALL_LOG, segment_bytes=4 << 10, cache_bytes=8 << 10),
        batch_bytes=1024,
    ),
    "recipes": Scenario(plan_recipes, messages=60, nodes=(3, 3, 5), network=_slow_network, disk=_any_disk),
    "damage": _DAMAGE,
    "trusting": replace(_DAMAGE, log=replace(_DAMAGE.log, verify_bytes=2 << 10)),
    "retention": Scenario(
        plan_retention,
        messages=80,
        queues=2,
        read_chance=0.0,
        network=_rough_network,
        disk=_any_disk,
        log=replace(SMALL_LOG, segment_bytes=4 << 10, cache_bytes=8 << 10),
        deletes=True,
        batch_bytes=1024,  # a request must fit the small segments
        settings="raft: {peerPushQuota: 64KiB}\n",
        store="mappedFileSizeConsumeQueue: 200",
    ),
}
_ASYNC = "flushDiskType: ASYNC_FLUSH, flushCommitLogLeastPages: 0, flushIntervalCommitLog: "
SCENARIOS["async"] = Scenario(
    plan_async, messages=60, nodes=(3, 3, 5), read_chance=0.5, network=_rough_network, disk=_any_disk, store=_ASYNC + "400"
)
SCENARIOS["async-blackout"] = Scenario(plan_async_blackout, messages=60, nodes=(3, 3, 5), read_chance=0.0, store=_ASYNC + "50")
SCENARIOS["disks"] = replace(SCENARIOS["retention"], plan=plan_disks, nodes=(3, 3, 5))
SCENARIOS["mixture"] = replace(SCENARIOS["disks"], plan=plan_mixture)
SCENARIOS["stale-copies"] = replace(SCENARIOS["retention"], plan=plan_stale_copies)


def _one_world(draw: random.Random, always: str = "") -> Scenario:
    features = one_world.draw_features(draw, always)
    deletes = {"retention", "disks"} & {*features}  # the plans of both delete old messages
    base = SCENARIOS["retention" if deletes else "swarm"]
    flush = _ASYNC + draw.choice(("50", "400", "2000")) if "async" in features else ""
    if "recovery" in features:  # what was read or committed of a lineage of before is not in this one
        base = replace(base, archive=True, read_chance=0.0, committers=0)
    return replace(
        base,
        plan=partial(one_world.plan, features),
        nodes=(3, 3, 3, 5),
        network=_rough_network if "network" in features else lambda _draw: NetworkSettings(),
        store=", ".join(filter(None, (base.store, flush))),
    )


SCENARIOS["one-world"] = Scenario(plan_swarm, drawn=_one_world)
ONE_WORLD_WITH = {f"one-world:{feature}": feature for feature in one_world.FEATURES}  # those worlds that have the feature
NAMES = (*sorted(SCENARIOS), *sorted(WORLDS), *sorted(CORE_SCENARIOS))


def run(
    name: str,
    seed: int,
    *,
    readable: bool = False,
    sink: Callable[[str], None] | None = None,
    keep: Sequence[int] | None = None,
    times: Times | None = None,
) -> RunResult:
    """One run.  Violations of safety raise; what clients saw wrong is in ``anomalies``.

    ``keep``: the faults of the plan to carry out; ``times``: how much sooner and shorter.
    """
    if name in CORE_SCENARIOS:
        return run_core(name, seed, sink=sink, keep=keep, times=times)
    if name in WORLDS:
        if keep is not None or times:
            raise ValueError(f"faults of {name} strike its own actors too: none can be left out")
        return run_world(name, seed, readable=readable, sink=sink)
    draw = random.Random(f"{name} {seed}")
    scenario = _scenario(name, draw)
    nodes = draw.choice(scenario.nodes)
    cluster = SimCluster(
        seed,
        nodes=nodes,
        readable=readable,
        network=scenario.network(draw),
        disk=scenario.disk(draw),
        log=scenario.log,
        settings=scenario.settings,
        store=scenario.store if scenario.deletes else ", ".join(filter(None, (scenario.store, _KEPT))),
        archive=scenario.deletes or scenario.archive,
    )
    reads = draw.random() < scenario.read_chance
    options = {"batch_bytes": scenario.batch_bytes} if scenario.batch_bytes else {}
    workload = Workload(
        cluster,
        queues=scenario.queues,
        messages=scenario.messages,
        send_timeout_ms=20_000,
        reads=reads,
        committers=scenario.committers,
        options=options,
    )
    plan = shortened(scenario.plan(list(cluster.hosts), draw), times)
    try:
        cluster.loop.run_until_complete(_in_time(_acts(cluster, workload, plan, keep)))
    except BaseException as error:
        cluster.note_run(error, name, plan, keep)
        raise
    finally:
        cluster.trace.give(sink)
        cluster.loop.close()
    anomalies = _anomalies(cluster, workload)
    return RunResult(
        seed,
        cluster.trace.hash,
        cluster.trace.events,
        cluster.invariants.steps,
        cluster.loop.now_s - START_S,
        workload.acknowledged,
        workload.read,
        len(cluster.invariants.leaders),
        len(cluster.invariants.committed) - 1,
        tuple(str(fault) for fault in plan),
        tuple(anomalies),
        tuple(cluster.strays()),
        cluster.happened(),
    )


def _anomalies(cluster: SimCluster, workload: Workload) -> list[str]:
    """What clients saw wrong, and what stopped nodes."""
    workload.judge()
    if cluster.async_loss is not None:
        for history in workload.histories:
            cluster.async_loss.forgive(history)
    found = [str(anomaly) for history in workload.histories for anomaly in check(history)] + cluster.problems()
    return found + [str(anomaly) for anomaly in check_group_offsets(workload.offset_calls)]


def _scenario(name: str, draw: random.Random) -> Scenario:
    if name in ONE_WORLD_WITH:
        return _one_world(draw, ONE_WORLD_WITH[name])
    scenario = SCENARIOS[name]
    return scenario if scenario.drawn is None else scenario.drawn(draw)


async def _in_time(acts: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(RUN_LIMIT_S) as limit:
            await acts
    except TimeoutError as error:
        if limit.expired():
            raise LivenessError(f"the run is not over after {RUN_LIMIT_S:.0f} s") from error
        raise


async def _acts(cluster: SimCluster, workload: Workload, plan: Sequence[Fault], keep: Sequence[int] | None) -> None:
    for node_id in cluster.hosts:
        cluster.start(node_id)
    spawn = cluster.loop.spawn
    await spawn(workload.process, workload.create_topic(), "create topic")
    producing = spawn(workload.process, workload.produce(), "produce")
    reading = spawn(workload.process, workload.read_along(), "read")
    committing = [spawn(process, workload.commit_along(number), "commit") for number, (process, _) in enumerate(workload.committers)]
    asking = spawn(cluster.loop.world, workload.ask_read_indexes(), "read index")
    await carry_out(cluster, plan, keep)
    cluster.net.heal_all()
    for node_id in cluster.hosts:
        cluster.ensure_running(node_id)
    await _until(cluster, lambda: cluster.master() is not None, LEADER_LIMIT_S, "no master")
    if any(fault.kind in ("members", "part-change", "replace-member", "recover") for fault in plan):
        await operators.restore(cluster)
    await producing
    workload.stop_reading()
    await asking
    await reading
    for each in committing:
        await each
    await _until(cluster, lambda: _is_settled(_supervised(cluster)), LEADER_LIMIT_S, "replicas do not come together")
    if cluster.problems():
        return
    nodes = _nodes(cluster)
    cluster.invariants.check_nothing_lost(nodes)
    _check_store_times(cluster, nodes)
    await check_logs_match(nodes)
    await spawn(workload.process, workload.drain(), "drain")


def _check_store_times(cluster: SimCluster, nodes: Sequence[BrokerNode]) -> None:
    """What the log was stamped with last is not far from what time it really is, whatever single clocks showed."""
    real_ms = EPOCH_MS + cluster.loop.now_s * 1000
    for node in nodes:
        ahead_ms = node.store.applied.store_ms - real_ms
        if ahead_ms > STAMP_LIMIT_MS:
            cluster.invariants.violations.append(f"{node.settings.node.id}: the newest stamp is {ahead_ms:.0f} ms ahead of the time")


async def _until(cluster: SimCluster, condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait in virtual time; when a node has failed there is nothing to wait for."""
    limit_s += cluster.loop.now_s
    while not condition() and not cluster.problems():
        if cluster.loop.now_s > limit_s:
            raise LivenessError(f"{what}, long after everything was healed")
        await asyncio.sleep(POLL_S)


def _supervised(cluster: SimCluster) -> SimCluster:
    """Start what stopped by itself: a write that failed while its disk did is sometimes met only when the file is needed, after that."""
    for node_id, host in cluster.hosts.items():
        if host.ended is not None:
            cluster.ensure_running(node_id)
    return cluster


def _nodes(cluster: SimCluster) -> list[BrokerNode]:
    return [host.node for host in cluster.hosts.values() if host.node is not None and cluster.is_up(host)]


def _is_settled(cluster: SimCluster) -> bool:
    """One master, and everybody has applied everything."""
    nodes = _nodes(cluster)
    if cluster.master() is None or len(nodes) < len(cluster.hosts):
        return False
    marks = {(node.raft.log.last, node.store.applied_index) for node in nodes}
    last, applied = next(iter(marks))
    return len(marks) == 1 and last.index == applied
