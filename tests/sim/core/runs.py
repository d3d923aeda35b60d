"""Runs of simulated cores by name and seed: a plan of faults in a drawn world, then everything heals and all is compared.

Names begin with ``core-``; ``scripts/sim`` runs them like the scenarios of whole nodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dledger.core.quorum import majority
from tests.checkers.append_log import Outcome
from tests.sim.core import one_world
from tests.sim.core.clients import Clients
from tests.sim.core.faults import (
    Strikes,
    plan_anything,
    plan_blackouts,
    plan_coups,
    plan_folders,
    plan_forgetting,
    plan_forgetting_folders,
    plan_forgetting_members,
    plan_handovers,
    plan_members,
    plan_partings,
    plan_promotions,
    plan_restarts,
    plan_rotations,
    plan_seclusions,
)
from tests.sim.core.node import CoreNode
from tests.sim.core.settings import ELECTION_MS, CoreSettings, draw_settings
from tests.sim.core.world import World
from tests.sim.faults import Fault, shortened
from tests.sim.result import LivenessError, RunResult, replay_command
from tests.sim.shrink import Times

LEADER_LIMIT_MS = 10 * ELECTION_MS  # once everything is healed
SETTLE_LIMIT_MS = 40 * ELECTION_MS
WARM_UP_LIMIT_MS = 20 * ELECTION_MS
# Runs are shorter than the minutes in which the election timeout falls: in most of them it falls at once, or within seconds.
# (lateness_window_ms, wary_ms)
MEMORIES_MS = ((2_000, 0), (10_000, 1_000), (300_000, 300_000))


@dataclass(frozen=True, slots=True)
class CoreScenario:
    """A plan and what the world is like beyond the swarm's draw."""

    plan: Callable[[Sequence[str], random.Random], list[Fault]]
    shape: Callable[[CoreSettings, random.Random], None] = lambda _settings, _draw: None


def _reordering(settings: CoreSettings, draw: random.Random) -> None:
    """Messages overtake each other, come twice and much later."""
    settings.ordered = False
    settings.delay_ms, settings.jitter_ms = 1.0, draw.choice((5.0, 60.0))
    settings.double_chance, settings.late_chance = 0.1, draw.choice((0.02, 0.1))
    settings.sync_ms, settings.think_ms = draw.choice((0.3, 5.0)), 5.0
    settings.voters, settings.kinds = draw.choice((3, 3, 5)), ("append", "append", "poll")


def _slow_syncs(settings: CoreSettings, draw: random.Random) -> None:
    """Much is written and not yet synced at any moment."""
    settings.sync_ms = draw.choice((8.0, 40.0, 150.0))
    settings.delay_ms, settings.jitter_ms = draw.choice((0.2, 1.0)), draw.choice((0.2, 2.0))
    settings.drop_chance = 0.0
    settings.voters = draw.choice((3, 3, 5))


def _changing(settings: CoreSettings, draw: random.Random) -> None:
    settings.spares = draw.choice((1, 2, 3))
    settings.voters = draw.choice((1, 2, 3, 3, 4))


def _few_clients(settings: CoreSettings, draw: random.Random) -> None:
    settings.voters, settings.spares = draw.choice((2, 3, 3, 4)), draw.choice((1, 2))
    settings.clients, settings.think_ms = 1, draw.choice((20.0, 100.0))
    settings.drop_chance = settings.late_chance = 0.0


def _busy(settings: CoreSettings, draw: random.Random) -> None:
    settings.voters = draw.choice((3, 3, 5))
    settings.think_ms, settings.clients = 5.0, 5


def _everything_late(settings: CoreSettings, draw: random.Random) -> None:
    """Messages and completions of syncs come long after they mattered."""
    settings.voters, settings.spares = draw.choice((3, 5, 5)), 0
    settings.delay_ms, settings.jitter_ms, settings.ordered = 1.0, draw.choice((2.0, 20.0)), draw.random() < 0.5
    settings.late_chance, settings.late_ms = draw.choice((0.02, 0.1)), 4000.0
    settings.double_chance = draw.choice((0.0, 0.2))
    settings.completion_lag_ms, settings.sync_ms = draw.choice((500.0, 4000.0)), draw.choice((1.0, 40.0, 150.0))
    settings.lag_chance = draw.choice((0.3, 0.9))
    settings.kinds, settings.think_ms = ("append", "append", "write", "read", "read"), draw.choice((10.0, 40.0))


def _late_completions(settings: CoreSettings, draw: random.Random) -> None:
    """Five nodes; syncs are told much later, and acknowledgements come late too."""
    settings.voters, settings.spares = 5, 0
    settings.drop_chance, settings.late_chance, settings.late_ms = 0.0, draw.choice((0.0, 0.2)), 6000.0
    settings.sync_ms, settings.completion_lag_ms, settings.lag_chance = draw.choice((5.0, 40.0)), 6000.0, 0.5
    settings.kinds, settings.think_ms, settings.timeout_ms = ("append",), 20.0, 300.0


def _late_answers(settings: CoreSettings, draw: random.Random) -> None:
    """Three nodes whose answers are under way for an election timeout and more, and clients that mostly read."""
    settings.voters, settings.spares = 3, 0
    settings.delay_ms, settings.jitter_ms, settings.drop_chance, settings.sync_ms = 0.5, 1.0, 0.0, 0.3
    settings.late_chance, settings.late_ms = draw.choice((0.2, 0.5)), 2000.0
    settings.kinds, settings.think_ms = ("write", "read", "read", "read"), 10.0
    settings.clients, settings.timeout_ms = 8, 200.0


def _two_and_one(settings: CoreSettings, draw: random.Random) -> None:
    settings.voters, settings.spares = 2, 1
    settings.drop_chance, settings.delay_ms, settings.jitter_ms = 0.0, 1.0, 2.0
    settings.kinds = ("append",)


def _folders(settings: CoreSettings, draw: random.Random) -> None:
    """Small groups, so that an old or an empty folder and one that missed something would be a majority."""
    settings.voters, settings.spares = draw.choice((3, 3, 3, 5)), 0
    settings.drop_chance, settings.late_chance = draw.choice((0.0, 0.02)), draw.choice((0.0, 0.02))
    settings.delay_ms, settings.jitter_ms, settings.sync_ms = 1.0, draw.choice((0.2, 2.0)), draw.choice((0.3, 1.0, 8.0))
    settings.think_ms, settings.kinds = 10.0, ("append", "append", "poll")


def _asynchronous(settings: CoreSettings, draw: random.Random) -> None:
    """ASYNC_FLUSH: acknowledged before it is synced."""
    settings.background_sync_ms = draw.choice((20.0, 300.0, 5000.0))
    settings.core = replace(settings.core, loses_unsynced=True)
    settings.voters, settings.spares = draw.choice((2, 3, 3, 4, 5)), 0
    settings.sync_ms, settings.think_ms = draw.choice((0.3, 8.0)), 5.0
    settings.kinds = ("append", "append", "poll")


def _forgetting_members(settings: CoreSettings, draw: random.Random) -> None:
    """ASYNC_FLUSH in groups so small that one voter more or less decides who may elect."""
    _asynchronous(settings, draw)
    settings.voters, settings.spares = draw.choice((1, 2, 2, 3, 3)), draw.choice((1, 1, 2))
    settings.drop_chance = settings.late_chance = 0.0
    settings.background_sync_ms, settings.think_ms = draw.choice((300.0, 5000.0, 5000.0)), 20.0


def _forgetting_folders(settings: CoreSettings, draw: random.Random) -> None:
    _asynchronous(settings, draw)
    settings.voters, settings.drop_chance, settings.late_chance = 3, 0.0, 0.0


CORE_SCENARIOS = {
    "core-swarm": CoreScenario(plan_anything),
    "core-reorder": CoreScenario(plan_partings, _reordering),
    "core-restarts": CoreScenario(plan_restarts, _slow_syncs),
    "core-blackout": CoreScenario(plan_blackouts, _slow_syncs),
    "core-partings": CoreScenario(plan_partings, _busy),
    "core-members": CoreScenario(plan_members, _changing),
    "core-coups": CoreScenario(plan_coups, _few_clients),
    "core-rotations": CoreScenario(plan_rotations, _everything_late),
    "core-handovers": CoreScenario(plan_handovers, _everything_late),
    "core-seclusions": CoreScenario(plan_seclusions, _late_completions),
    "core-late-answers": CoreScenario(plan_partings, _late_answers),
    "core-async": CoreScenario(plan_restarts, _asynchronous),
    "core-forgetting": CoreScenario(plan_forgetting, _asynchronous),
    "core-async-members": CoreScenario(plan_forgetting_members, _forgetting_members),
    "core-async-folders": CoreScenario(plan_forgetting_folders, _forgetting_folders),
    "core-promotions": CoreScenario(plan_promotions, _two_and_one),
    "core-folders": CoreScenario(plan_folders, _folders),
    "core-one-world": CoreScenario(plan_anything, one_world.shape),
}


def run_core(
    name: str, seed: int, *, sink: Callable[[str], None] | None = None, keep: Sequence[int] | None = None, times: Times | None = None
) -> RunResult:
    """One run.  Violations of safety and liveness raise; what clients saw wrong is in ``anomalies``."""
    scenario = CORE_SCENARIOS[name]
    draw = random.Random(f"{name} {seed}")
    settings = draw_settings(draw)
    scenario.shape(settings, draw)
    window_ms, wary_ms = random.Random(f"{name} {seed} memory").choice(MEMORIES_MS)
    settings.core = replace(settings.core, lateness_window_ms=window_ms, wary_ms=wary_ms)
    world = World(f"{name} {seed}", settings, sink)
    names = [str(node) for node in world.nodes]
    planned = one_world.plan(settings.features, names, draw) if settings.features else scenario.plan(names, draw)
    plan = shortened(planned, times)
    clients = Clients(world, f"{name} {seed}")
    try:
        anomalies = _acts(world, clients, plan, keep, draw)
    except BaseException as error:
        error.add_note(f"replay: {replay_command(name, seed, keep, times)}")
        error.add_note(f"at {world.now_ms:.3f} ms of {settings}")
        for position, fault in enumerate(plan):
            error.add_note(f"fault {position}: {fault}")
        raise
    polled = sum(len(each.result) for each in world.operations if each.kind == "poll" and each.outcome is Outcome.ACKED)
    return RunResult(
        seed,
        world.trace_hash & 0xFFFFFFFF,
        world.events,
        world.steps,
        world.now_ms / 1000,
        clients.acknowledged,
        polled,
        len(world.safety.leaders),
        world.safety.commit,
        tuple(str(fault) for fault in plan),
        tuple(anomalies),
        happened=dict(sorted(world.safety.counters.items())),
    )


def _acts(world: World, clients: Clients, plan: Sequence[Fault], keep: Sequence[int] | None, draw: random.Random) -> list[str]:
    settings = world.settings
    slowness_ms = settings.completion_lag_ms + (settings.late_ms if settings.late_chance else 0.0)
    if not world.run(WARM_UP_LIMIT_MS + 10 * slowness_ms, until=lambda: world.safety.commit > 0):
        raise LivenessError("no leader in a group without faults")
    strikes = Strikes(world, plan, keep)
    world.run(world.now_ms + strikes.end_ms)
    strikes.heal()
    absent = _leave_one_dead(world, draw)
    # What a leader that died had sent may be late by ``slowness_ms``, and keeps others from looking for another.
    if not world.run(world.now_ms + LEADER_LIMIT_MS + slowness_ms + _one_by_one_ms(world), until=lambda: _led(world)):
        raise LivenessError(f"no confirmed leader, long after everything was healed: {_statuses(world)}")
    world.run(world.now_ms + 200)
    if absent is not None:
        world.restart(absent)
    clients.stopped = True
    limit_ms = world.now_ms + SETTLE_LIMIT_MS + _one_by_one_ms(world, behind=True)
    if not world.run(limit_ms, until=lambda: clients.done and _settled(world)):
        raise LivenessError(f"replicas do not come together, long after everything was healed: {_statuses(world)}")
    leader = world.leader()
    if leader is None:
        raise LivenessError("the leader is gone although nothing fails")
    members = [world.nodes[name] for name in (*leader.core.membership.voters, *leader.core.membership.learners)]
    for node in members:
        world.safety.check_holds_all(node)
    return [f"{anomaly.kind}: {anomaly.text}" for anomaly in clients.anomalies({node.name: node.machine for node in members})]


def _leave_one_dead(world: World, draw: random.Random) -> CoreNode | None:
    """Sometimes one node does not come back, and the others must do without it: a majority of every configuration anybody goes by."""
    if draw.random() < 0.5:
        return None
    node = draw.choice(list(world.nodes.values()))
    # Also of one that is not a member itself: a leader that leaves leads by it until it is committed.
    memberships = [other.core.membership.voters for other in world.nodes.values()]
    if any(node.name in voters and len(voters) - 1 < majority(len(voters)) for voters in memberships):
        return None
    if any(other.disk.suspect for other in world.nodes.values() if other is not node):
        return None  # without that one nobody could tell what the suspect one lost
    world.crash(node, silent=draw.random() < 0.5)
    return node


def _one_by_one_ms(world: World, *, behind: bool = False) -> float:
    """How long the smallest windows take for all that is not committed yet, or with ``behind`` for all that some node lacks."""
    settings = world.settings
    held = [node.core.last.index for node in world.nodes.values() if node.up]
    missing = max(held, default=0) - (min(held, default=0) if behind else world.safety.commit)
    return max(missing, 0) * (2 * (settings.delay_ms + settings.jitter_ms) + settings.sync_ms)


def _led(world: World) -> bool:
    leader = world.leader()
    return leader is not None and leader.core.is_confirmed_leader and leader.name in leader.core.membership.voters


def _settled(world: World) -> bool:
    """All members hold and have applied the leader's whole log, on disk too."""
    leader = world.leader()
    if leader is None or not _led(world):
        return False
    last = leader.core.last
    members = [world.nodes[name] for name in (*leader.core.membership.voters, *leader.core.membership.learners)]
    if any(node.disk.suspect for node in members):
        return False
    return all(node.core.last == last and node.applied == last.index and node.disk.last == last for node in members)


def _statuses(world: World) -> list[object]:
    return [node.core.status() if node.up else node.name for node in world.nodes.values()]
