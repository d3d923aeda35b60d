"""Runs with a name: which plan of faults, how much work, what network and disks.  ``run`` takes a name and a seed and says what came of it.

A run has three acts: the group comes up, clients work while faults strike, everything heals; then everything is compared.  Times are
virtual; whatever is drawn, is drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from dledger.log.config import LogConfig
from dledger_wire.feature_levels import THIS_BUILD
from tests.checkers.append_log import check
from tests.checkers.queues import check_group_offsets
from tests.sim import one_world
from tests.sim.acts import Acts
from tests.sim.cluster import SMALL_LOG, SimCluster
from tests.sim.core.runs import CORE_SCENARIOS, run_core
from tests.sim.disk import DiskSettings
from tests.sim.faults import (
    LEADER,
    Fault,
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
from tests.sim.network import NetworkSettings
from tests.sim.result import RunResult
from tests.sim.shrink import Times
from tests.sim.spread.replacement_watch import POLICY
from tests.sim.workload import Workload
from tests.sim.worlds import WORLDS, result_of, run_world


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
    groups: int = 1
    name_servers: int = 0
    secured: bool = False
    spares: int = 0
    upgrades: bool = False  # all nodes begin with a build that can do less
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
    if "groups" in features:
        base = replace(base, groups=2, messages=base.messages // 2, name_servers=draw.choice((0, 3)))
    if "spares" in features:
        base = replace(base, spares=draw.choice((1, 2)), nodes=(3,), settings=base.settings + POLICY)
    if "levels" in features:
        base = replace(base, upgrades=True)
    if "security" in features:
        base = replace(base, secured=True)
    return replace(
        base,
        plan=partial(one_world.plan, features),
        nodes=base.nodes if "spares" in features else (3, 3, 3, 5),
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
    cluster = _cluster(scenario, seed, draw, readable)
    workloads = _workloads(scenario, cluster, draw)
    plans = [_plan(scenario, cluster, workload.group, draw) for workload in workloads]
    plan = shortened([fault for each in plans for fault in each], times)
    acts = Acts(cluster, workloads, _parted(plan, plans), keep)
    try:
        cluster.loop.run_until_complete(acts.run())
    except BaseException as error:
        cluster.note_run(error, name, plan, keep)
        raise
    finally:
        cluster.trace.give(sink)
        cluster.loop.close()
    anomalies = [text for workload in workloads for text in _anomalies(workload)] + cluster.problems()
    acknowledged, read = (sum(getattr(each, what) for each in workloads) for what in ("acknowledged", "read"))
    return result_of(cluster, acknowledged, read, tuple(map(str, plan)), anomalies)


def _cluster(scenario: Scenario, seed: int, draw: random.Random, readable: bool) -> SimCluster:
    nodes = draw.choice(scenario.nodes)
    cluster = SimCluster(
        seed,
        groups=scenario.groups,
        nodes=nodes,
        readable=readable,
        network=scenario.network(draw),
        disk=scenario.disk(draw),
        log=scenario.log,
        settings=scenario.settings,
        store=scenario.store if scenario.deletes else ", ".join(filter(None, (scenario.store, _KEPT))),
        archive=scenario.deletes or scenario.archive,
        name_servers=scenario.name_servers,
        secured=scenario.secured,
        spares=scenario.spares,
    )
    for host in cluster.hosts.values() if scenario.upgrades else ():
        host.levels = THIS_BUILD
    return cluster


def _workloads(scenario: Scenario, cluster: SimCluster, draw: random.Random) -> list[Workload]:
    """One for each group."""
    reads = draw.random() < scenario.read_chance
    return [
        Workload(
            cluster,
            number,
            queues=scenario.queues,
            messages=scenario.messages,
            reads=reads,
            committers=scenario.committers,
            options={"batch_bytes": scenario.batch_bytes} if scenario.batch_bytes else {},
        )
        for number in range(scenario.groups)
    ]


def _plan(scenario: Scenario, cluster: SimCluster, group: str, draw: random.Random) -> list[Fault]:
    """What strikes the nodes of one group."""
    faults = scenario.plan(cluster.groups[group].node_ids, draw)
    return [replace(fault, nodes=tuple(f"{LEADER}:{group}" if name == LEADER else name for name in fault.nodes)) for fault in faults]


def _parted(plan: list[Fault], plans: Sequence[Sequence[Fault]]) -> list[list[Fault]]:
    """A plan for all groups, as one for each."""
    left = iter(plan)
    return [list(islice(left, len(each))) for each in plans]


def _anomalies(workload: Workload) -> list[str]:
    """What clients saw wrong."""
    workload.judge()
    found = [str(anomaly) for history in workload.histories for anomaly in check(history)]
    return found + [str(anomaly) for anomaly in check_group_offsets(workload.offset_calls)]


def _scenario(name: str, draw: random.Random) -> Scenario:
    if name in ONE_WORLD_WITH:
        return _one_world(draw, ONE_WORLD_WITH[name])
    scenario = SCENARIOS[name]
    return scenario if scenario.drawn is None else scenario.drawn(draw)
