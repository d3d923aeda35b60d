"""Pure cores under every kind of fault: fresh seeds for every state of the code, so that the suite looks somewhere else each time.

A failure prints the seed and the command that replays it with its trace; ``failed_once.py`` keeps those that found something.
"""

from __future__ import annotations

import pytest

from tests.sim.core.runs import CORE_SCENARIOS, run_core
from tests.sim.elsewhere import assert_the_same_elsewhere
from tests.sim.failed_once import CORES
from tests.sim.fresh import CHUNK, base_seed, chunks
from tests.sim.result import replay_command

# Chosen by what a seed costs: 0.03 s (core-promotions, core-handovers, core-coups) to 0.5 s (core-seclusions).
SEEDS = {
    "core-swarm": 200,
    "core-one-world": 60,
    "core-reorder": 20,
    "core-restarts": 100,
    "core-blackout": 80,
    "core-partings": 20,
    "core-members": 100,
    "core-coups": 150,
    "core-rotations": 30,
    "core-handovers": 100,
    "core-late-answers": 20,
    "core-promotions": 50,
    "core-seclusions": 10,
    "core-folders": 30,
    "core-async": 30,
    "core-forgetting": 10,
    "core-async-members": 20,
    "core-async-folders": 20,
}


def assert_clean(scenario: str, seed: int) -> None:
    result = run_core(scenario, seed)
    assert not result.anomalies, f"{result.anomalies}\nreplay: {replay_command(scenario, seed)}"
    assert result.committed > 0


@pytest.mark.parametrize(("scenario", "first"), chunks(SEEDS))
def test_cores_keep_every_rule_under_faults(scenario: str, first: int) -> None:
    base = base_seed() + first
    for seed in range(base, base + CHUNK):
        assert_clean(scenario, seed)


def test_the_same_seed_gives_the_same_run() -> None:
    assert_the_same_elsewhere(CORE_SCENARIOS, 3)


def test_a_run_of_cores_shows_that_it_tests_something() -> None:
    """Over some seeds everything interesting happens: otherwise the simulator silently stopped testing it."""
    results = [run_core(name, seed) for name in CORE_SCENARIOS for seed in range(2)]
    assert sum(result.leaders for result in results) > 3 * len(results)
    assert sum(result.acknowledged for result in results) > 50 * len(results)
    assert sum(result.read for result in results) > 1000


def test_one_world_brings_about_what_it_combines() -> None:
    wanted = {
        "copied",
        "trimmed",
        "recovered",
        "flush mode changed",
        "power lost with entries not synced",
        "old folder put back",
        "changed members",
    }
    happened: set[str] = set()
    for seed in range(60):
        happened.update(run_core("core-one-world", seed).happened)
        if wanted <= happened:
            return
    assert not wanted - happened


@pytest.mark.parametrize(("scenario", "seed"), CORES)
def test_core_seeds_that_failed_once_pass(scenario: str, seed: int) -> None:
    assert_clean(scenario, seed)
