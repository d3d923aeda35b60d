"""One world: everything that the core simulator can do at once, of which each seed draws a part (swarm testing).

Owns the features, and how the plans that strike single ones are woven into one: what is wrong between two features shows in no scenario of
one of them.  Most features are off in each world, because those that are on hide each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.sim.core import faults
from tests.sim.core.settings import CoreSettings
from tests.sim.faults import LEADER, Fault

Plan = Callable[[Sequence[str], random.Random], list[Fault]]

# What may be on, and the plans that are made for it.
FEATURES: dict[str, tuple[Plan, ...]] = {
    "members": (faults.plan_members, faults.plan_coups, faults.plan_promotions),
    "async": (faults.plan_forgetting, faults.plan_restarts),
    "flush-modes": (),
    "folders": (faults.plan_folders,),
    "trimming": (),
    "recovery": (),
    "elections": (faults.plan_partings, faults.plan_rotations, faults.plan_seclusions, faults.plan_handovers),
    "power": (faults.plan_restarts, faults.plan_blackouts),
    "network": (),
    "anything": (faults.plan_anything,),
}
# Plans for two that are on together.
PAIRS: dict[tuple[str, str], Plan] = {
    ("async", "members"): faults.plan_forgetting_members,
    ("async", "folders"): faults.plan_forgetting_folders,
}
MOST_FEATURES = 4
MOST_OF_A_PLAN = 12  # faults


def shape(settings: CoreSettings, draw: random.Random) -> None:
    """Draw the features, and make the world fit them."""
    chosen = draw.sample(sorted(FEATURES), draw.randint(2, MOST_FEATURES))
    settings.features = tuple(chosen)
    settings.voters = draw.choice((2, 2, 2, 3, 3, 3, 4, 5))
    settings.spares = draw.choice((1, 1, 2, 3)) if "members" in chosen else 0
    if "network" not in chosen:
        settings.drop_chance = settings.double_chance = settings.late_chance = 0.0
    if "async" in chosen:
        settings.core = replace(settings.core, loses_unsynced=True)
        settings.delay_ms, settings.jitter_ms, settings.sync_ms = 1.0, 2.0, draw.choice((0.3, 8.0))
    settings.background_sync_ms = draw.choice((20.0, 300.0, 5000.0, 5000.0))
    settings.clients, settings.think_ms = draw.choice((1, 2, 3)), draw.choice((10.0, 20.0, 50.0))
    if "recovery" in chosen:
        settings.kinds = ("append", "append", "poll")  # what tells by itself which of them a recovery kept
    if "trimming" in chosen:
        settings.core = replace(settings.core, max_inflight_messages=max(settings.core.max_inflight_messages, 8))


def plan(features: Sequence[str], names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The plans of the features that are on, woven into one."""
    strands = [draw.choice(FEATURES[name])(names, draw)[:MOST_OF_A_PLAN] for name in sorted(features) if FEATURES[name]]
    strands += [both(names, draw)[:MOST_OF_A_PLAN] for pair, both in PAIRS.items() if {*pair} <= {*features}]
    for name, kind in (("flush-modes", "reflush"), ("trimming", "trim"), ("recovery", "recover")):
        if name in features:
            strands.append(_single(kind, names, draw))
    woven: list[Fault] = []
    while strands := [strand for strand in strands if strand]:
        strand = draw.choice(strands)
        woven += strand[: (count := draw.randint(1, 3))]  # what belongs together in a plan often stays together
        del strand[:count]
    return woven


def _single(kind: str, names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Faults that no plan has."""
    count = draw.randint(1, 2) if kind == "recover" else draw.randint(2, 8)
    found = []
    for _ in range(count):
        nodes = tuple(names) if kind == "trim" and draw.random() < 0.6 else (draw.choice((LEADER, *names)),)
        lasts_s = draw.random() * 2
        found.append(Fault(kind, draw.random() * 0.3, nodes, lasts_s, blocks=False, amount=draw.random()))
    return found
