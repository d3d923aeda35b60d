"""What a soak prints in the end, and the list of scenarios."""

from __future__ import annotations

from collections import Counter

from tests.sim.__main__ import Outcome, summary
from tests.sim.catalog import WHAT
from tests.sim.scenarios import NAMES


def test_a_soak_says_how_many_seeds_of_each_scenario_ran_and_how_to_see_each_failure() -> None:
    failed = [Outcome("swarm", 7, 0, 0, ("lost",))]
    lines = summary(Counter({"swarm": 3, "core-one-world": 2}), failed)
    assert [line.split() for line in lines[:2]] == [["core-one-world", "2", "seeds", "0", "bad"], ["swarm", "3", "seeds", "1", "bad"]]
    assert lines[2:] == ["scripts/sim --scenario swarm --seed 7 --trace trace.txt"]


def test_the_list_says_what_happens_in_every_scenario() -> None:
    assert sorted(WHAT) == sorted(NAMES)
