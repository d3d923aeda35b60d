"""One world of whole nodes: everything that a simulated cluster can do at once, of which each seed draws a part (swarm testing).

Owns the features, and how the plans of ``faults.py`` are woven into one; ``core/one_world.py`` does the same with cores alone.  Most
features are off in each world, because those that are on hide each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.sim import faults
from tests.sim.disk_content import Loss
from tests.sim.faults import LEADER, Fault

Plan = Callable[[Sequence[str], random.Random], list[Fault]]

FEATURES: dict[str, tuple[Plan, ...]] = {
    "members": (faults.plan_members,),
    "async": (faults.plan_async,),
    "flush-modes": (),
    "folders": (faults.plan_folders,),
    "retention": (faults.plan_retention, faults.plan_stale_copies),
    "network": (),
    "recovery": (),
    "groups": (),
    "security": (),
    "spares": (),
    "levels": (),
    "disks": (faults.plan_disks,),
    "clocks": (faults.plan_clocks,),
    "elections": (faults.plan_split, faults.plan_recipes, faults.plan_kill_the_leader),
    "anything": (faults.plan_everything,),
}
# Not on together: what holds then cannot be said by whoever watches.
APART = {
    "recovery": ("async", "flush-modes", "folders", "clocks", "spares"),
    "spares": ("async", "flush-modes", "folders", "members", "elections"),
    "levels": ("members", "folders", "recovery", "spares", "elections"),  # a build of before cannot join a group that has risen
}
MOST_FEATURES = 4
MOST_OF_A_PLAN = 8  # faults


def draw_features(draw: random.Random, always: str = "") -> tuple[str, ...]:
    """``always``: a feature that is one of them."""
    chosen: list[str] = []
    while not chosen or (always and always not in chosen) or _are_apart(chosen):
        chosen = draw.sample(sorted(FEATURES), draw.randint(2, MOST_FEATURES))
    if "flush-modes" in chosen and "async" not in chosen:
        chosen.append("async")
    return tuple(sorted(chosen))


def _are_apart(chosen: Sequence[str]) -> bool:
    return any(name in chosen and other in chosen for name, others in APART.items() for other in others)


def plan(features: Sequence[str], names: Sequence[str], draw: random.Random) -> list[Fault]:
    """The plans of the features that are on, woven into one.

    Under ASYNC_FLUSH the power goes for fewer than a majority at a time: nothing that was acknowledged may be lost then.
    """
    strands = [draw.choice(FEATURES[name])(names, draw)[:MOST_OF_A_PLAN] for name in features if FEATURES[name]]
    if "flush-modes" in features:
        strands.append(_flush_modes(names, draw))
    if "recovery" in features:
        strands.append(_recoveries(names, draw))
    if "levels" in features:
        strands.append([Fault("upgrade", draw.random() * 0.5, (name,), draw.random(), amount=draw.random()) for name in names])
    if "spares" in features:
        strands.append(_absences(names, draw))
    woven: list[Fault] = []
    while strands := [strand for strand in strands if strand]:
        strand = draw.choice(strands)
        woven += strand[: (count := draw.randint(1, 3))]  # what belongs together in a plan often stays together
        del strand[:count]
    if "async" in features:
        woven = [replace(fault, kind="lone-power") if fault.kind == "power" else fault for fault in woven]
    return woven


def _flush_modes(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Sometimes the power goes right after the start in the other mode."""
    found = []
    for _ in range(draw.randint(1, 4)):
        nodes = (draw.choice(names),)
        found.append(Fault("flush-mode", draw.random() * 0.3, nodes, draw.random() * draw.choice((0.01, 0.05, 0.5)), amount=draw.random()))
        if draw.random() < 0.6:
            found.append(Fault("lone-power", 0.0, nodes, draw.random() * 0.1, Loss.NOTHING_KEPT))
    return found


def _recoveries(names: Sequence[str], draw: random.Random) -> list[Fault]:
    found = []
    for _ in range(draw.choice((1, 1, 2))):
        nodes, lasts_s = (draw.choice((LEADER, *names)),), draw.random() * draw.choice((0.3, 2.0))
        found.append(Fault("recover", 0.1 + draw.random() * 0.4, nodes, lasts_s, blocks=draw.random() < 0.5, amount=draw.random()))
    return found


def _absences(names: Sequence[str], draw: random.Random) -> list[Fault]:
    """Members are away for so long that spare nodes take their places; spare nodes end meanwhile."""
    found = []
    for _ in range(draw.choice((1, 1, 2))):
        kind, nodes = draw.choice(("kill", "power", "isolate")), (draw.choice((LEADER, *names)),)
        found.append(Fault(kind, draw.random() * 0.4, nodes, 4.0 + draw.random() * 10, draw.choice(list(Loss)), blocks=False))
        for _ in range(draw.choice((0, 1, 1, 2))):
            found.append(Fault("spare", 1.0 + draw.random() * 2, nodes, draw.random() * 2, blocks=False, amount=draw.random()))
    return found
