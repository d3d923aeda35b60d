"""Nodes that stand still for a tenth of a second up to two seconds at a time, as on a machine with too much to do, and nothing else wrong.

    python -m tests.sim.core.slow_nodes --seeds 20
    python -m tests.sim.core.slow_nodes --seeds 20 --fixed

Every election there is one that a longer timeout would have spared.  Prints how many there were, by how often nodes stand still, and how
much of the time the group's timeout was the least one.  ``--fixed``: the timeout is always the configured one, as before it adapted; nodes
stand still at the same moments.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, replace

from tests.sim.core.clients import Clients
from tests.sim.core.node import CoreNode
from tests.sim.core.settings import ELECTION_MS, CoreSettings
from tests.sim.core.world import World

SHORTEST_MS, LONGEST_MS = 100.0, 2000.0
EVERY_S = (2, 5, 20, 60, 200)  # how often one of the nodes stands still, on the average
MINUTES = 10.0
LOOK_MS = 1000.0


@dataclass(slots=True)
class Watched:
    """What one run showed."""

    elections: int = 0  # after the first
    short: float = 0.0  # the share of looks at the leader's timeout that found less than the configured one


def watch(seed: int, every_s: float, minutes: float = MINUTES, *, fixed: bool = False) -> Watched:
    name = f"slow nodes {seed} {every_s}"
    settings = CoreSettings(clients=1, think_ms=200.0, kinds=("append", "read"))
    if fixed:
        settings.core = replace(settings.core, least_election_timeout_ms=ELECTION_MS)
    world = World(name, settings)
    Clients(world, name)
    draw = random.Random(f"{name} stalls")
    nodes = list(world.nodes.values())
    looks: list[bool] = []

    def stall() -> None:
        node = draw.choice(nodes)
        for_ms = SHORTEST_MS * (LONGEST_MS / SHORTEST_MS) ** draw.random()
        if not node.paused:
            node.paused = True
            world.after(for_ms, end, node)
        stall_later()

    def stall_later() -> None:
        world.after(draw.expovariate(1 / (every_s * 1000)), stall)

    def end(node: CoreNode) -> None:
        world.resume(node)

    def look() -> None:
        leader = world.leader()
        looks.append(leader is not None and leader.core._core.silence.timeout_ms < ELECTION_MS)
        world.after(LOOK_MS, look)

    stall_later()
    world.after(LOOK_MS, look)
    world.run(minutes * 60_000)
    return Watched(len(world.safety.leaders) - 1, sum(looks) / len(looks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of virtual time in each run")
    parser.add_argument("--every", type=float, nargs="+", default=EVERY_S, help="seconds between two times, on the average")
    parser.add_argument("--fixed", action="store_true", help="the timeout is always the configured one")
    arguments = parser.parse_args()
    total = 0
    for every_s in arguments.every:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        found = [watch(seed, every_s, arguments.minutes, fixed=arguments.fixed) for seed in seeds]
        elections, short = sum(run.elections for run in found), sum(run.short for run in found) / len(found)
        stalls = round(arguments.minutes * 60 / every_s * len(found))
        print(f"a node stands still every {every_s:g} s: {elections} elections in about {stalls} times, {short:.0%} with less", flush=True)
        total += elections
    print(f"{total} elections", flush=True)


if __name__ == "__main__":
    main()
