"""The simulator still brings about what it is there for: over some fixed seeds everything worth simulating happens."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from tests.sim import coverage
from tests.sim.scenarios import run
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

# A few dozen, of the scenarios that are made for it.  One of each scenario in turn, until there is nothing left to be seen: about half.
SEEDS = {
    "blackout": (*range(20), 47),  # a torn tail is rare
    "members": range(4),
    "retention": range(6),
    "recipes": (*range(30), 33),  # power lost while a conflict is cut is
    "damage": range(2),
    "async-blackout": range(6),
}


def test_whatever_the_simulator_is_there_for_happens() -> None:
    happened: Counter[str] = Counter()
    for turn in zip_longest(*([(scenario, seed) for seed in seeds] for scenario, seeds in SEEDS.items())):
        for scenario, seed in filter(None, turn):
            happened.update(run(scenario, seed).happened)
        if all(happened[name] for name in coverage.ALL):
            return
    assert not [name for name in coverage.ALL if not happened[name]], happened
