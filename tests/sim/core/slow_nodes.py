"""Nodes that stand still for a tenth of a second up to two seconds at a time, as on a machine with too much to do, and nothing else wrong.

    python -m tests.sim.core.slow_nodes --seeds 20

Every election there is one that a longer timeout would have spared.  Prints how many there were, by how often nodes stand still.
"""

from __future__ import annotations

import argparse
import random

from tests.sim.core.clients import Clients
from tests.sim.core.node import CoreNode
from tests.sim.core.settings import CoreSettings
from tests.sim.core.world import World

SHORTEST_MS, LONGEST_MS = 100.0, 2000.0
EVERY_S = (2, 5, 20, 60, 200)  # how often one of the nodes stands still, on the average
MINUTES = 10


def elections(seed: int, every_s: float, minutes: float = MINUTES) -> int:
    """How many leaders there were after the first."""
    name = f"slow nodes {seed} {every_s}"
    world = World(name, CoreSettings(clients=1, think_ms=200.0, kinds=("append", "read")))
    Clients(world, name)
    draw = random.Random(f"{name} stalls")
    nodes = list(world.nodes.values())

    def stall() -> None:
        node = draw.choice(nodes)
        for_ms = SHORTEST_MS * (LONGEST_MS / SHORTEST_MS) ** draw.random()
        if not node.paused:
            node.paused = True
            world.after(for_ms, end, node)
        world.after(draw.expovariate(1 / (every_s * 1000)), stall)

    def end(node: CoreNode) -> None:
        world.resume(node)

    world.after(5000.0, stall)
    world.run(minutes * 60_000)
    return len(world.safety.leaders) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    for every_s in EVERY_S:
        found = [elections(seed, every_s) for seed in range(arguments.seeds)]
        stalls = round(MINUTES * 60 / every_s * arguments.seeds)
        print(f"a node stands still every {every_s:3} s: {sum(found)} elections in about {stalls} times", flush=True)


if __name__ == "__main__":
    main()
