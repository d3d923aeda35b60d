"""Runs of ``world.py`` with a name: what cluster, which faults, which operation meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.cluster import QUICK_RETRIES
from tests.sim.network import NetworkSettings
from tests.sim.spread.replacement_watch import POLICY
from tests.sim.spread.replacing import ReplacingWorld
from tests.sim.spread.world import SpreadWorld
from tests.unit.client.sim_rig import Rig, run_world

LIMIT_S = 600.0
SOON = "name_service: {registerInterval: 1s, expireAfter: 3s}\n"  # so that registrations expire while faults last


@dataclass(frozen=True, slots=True)
class Variant:
    """``operation``: see ``operations.OPERATIONS``; ``name_servers``: how many processes of their own, drawn from; ``secured``: in which
    part of the seeds there are users, rules, a secret of the cluster, and intruders."""

    operation: str = ""
    name_servers: tuple[int, ...] = (3,)
    secured: float = 0.25


VARIANTS = {
    "groups": Variant(),
    "groups-embedded": Variant(name_servers=(0,), secured=0.0),
    "groups-added": Variant("add", (3, 3, 1, 0)),
    "groups-drained": Variant("drain", (3, 3, 1, 0)),
    "groups-secured": Variant(name_servers=(3, 3, 0), secured=1.0),
}


def run(name: str, seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> SpreadWorld:
    """One run; any violation raises, with the faults that were carried out."""
    variant, draw = VARIANTS[name], random.Random(f"{name} {seed}")
    network = NetworkSettings(slow_chance=draw.choice((0.0, 0.02)))
    servers, settings = draw.choice(variant.name_servers), draw.choice(("", SOON, SOON))
    secured = random.Random(f"secured {name} {seed}").random() < variant.secured
    shape = {"groups": 2, "name_servers": servers, "settings": QUICK_RETRIES + settings, "secured": secured}
    rig = Rig(seed, network=network, readable=readable, **shape)
    world = SpreadWorld(rig, seed, variant.operation)
    run_world(rig, name, world, LIMIT_S, sink)
    return world


def run_spares(seed: int, *, readable: bool = False, sink: Callable[[str], None] | None = None) -> ReplacingWorld:
    """One run of the scenario ``spares``; any violation raises."""
    draw = random.Random(f"spares {seed}")
    network = NetworkSettings(slow_chance=draw.choice((0.0, 0.02)))
    servers, spares = draw.choice((3, 3, 0)), draw.choice((1, 2, 2))
    shape = {
        "groups": 2,
        "name_servers": servers,
        "spares": spares,
        "settings": POLICY,
        "secured": random.Random(f"s {seed}").random() < 0.5,
    }
    rig = Rig(seed, network=network, readable=readable, **shape)
    world = ReplacingWorld(rig, seed)
    run_world(rig, "spares", world, LIMIT_S, sink)
    return world
