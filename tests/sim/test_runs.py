"""Whole nodes and clients in virtual time: fresh seeds of every scenario for every commit; the same seed gives the same run.

A failure prints the seed and the command that replays it with its trace; ``failed_once.py`` keeps those that found something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.elsewhere import assert_the_same_elsewhere
from tests.sim.failed_once import NODES
from tests.sim.fresh import CHUNK, base_seed, chunks
from tests.sim.result import replay_command
from tests.sim.scenarios import SCENARIOS, run

# Chosen by what a seed costs: 0.08 s (blackout) to 0.35 s (swarm).  kill-the-leader has a thousand in a file of its own.
SEEDS = {
    "blackout": 100,
    "split": 60,
    "storm": 60,
    "everything": 60,
    "swarm": 40,
    "one-world": 10,
    "members": 50,
    "offsets": 20,
    "retention": 40,
    "rot": 30,
    "recipes": 50,
    "damage": 30,
    "stale-copies": 20,
    "trusting": 20,
    "clocks": 30,
    "folders": 20,
    "async": 20,
    "async-blackout": 20,
    "disks": 20,
    "mixture": 20,
}
FIXED = 2  # seeds of each scenario that every run of the suite sees


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What thousands of dying nodes log helps nobody; the trace of a seed does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_clean(scenario: str, seed: int) -> None:
    result = run(scenario, seed)
    assert not result.anomalies, f"{result.anomalies}\nreplay: {replay_command(scenario, seed)}"
    assert result.acknowledged > 0
    assert result.committed > 0


@pytest.mark.parametrize(("scenario", "first"), chunks(SEEDS))
def test_nothing_acknowledged_is_lost_doubled_changed_or_reordered(scenario: str, first: int) -> None:
    base = base_seed() + first
    for seed in range(base, base + CHUNK):
        assert_clean(scenario, seed)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_the_first_seeds_of_every_scenario_are_clean(scenario: str) -> None:
    for seed in range(FIXED):
        assert_clean(scenario, seed)


def test_seeds_follow_from_the_code(tmp_path: Path) -> None:
    """The same code gives the same seeds wherever it lies; one more line gives others."""
    (tmp_path / "dledger").mkdir()
    code = tmp_path / "dledger" / "core.py"
    code.write_text("x = 1\n")
    first = base_seed(tmp_path)
    assert base_seed(tmp_path) == first
    code.write_text("x = 2\n")
    assert base_seed(tmp_path) != first


@pytest.mark.parametrize(("scenario", "seed"), NODES)
def test_seeds_that_failed_once_pass(scenario: str, seed: int) -> None:
    assert_clean(scenario, seed)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_the_same_seed_gives_the_same_trace_byte_for_byte(scenario: str) -> None:
    traces: list[list[str]] = [[], []]
    results = [run(scenario, 3, readable=True, sink=lines.append) for lines in traces]
    assert results[0] == results[1]
    assert len(traces[0]) > 100
    assert "\n".join(traces[0]) == "\n".join(traces[1])


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    assert_the_same_elsewhere(SCENARIOS, 3)


def test_different_seeds_give_different_traces() -> None:
    assert len({run("kill-the-leader", seed).trace_hash for seed in range(5)}) == 5


def test_a_fault_left_out_of_a_plan_leaves_the_others_as_they_are() -> None:
    whole = run("everything", 5)
    less = run("everything", 5, keep=[1])
    assert whole.faults == less.faults
    assert whole.trace_hash != less.trace_hash
    assert not less.anomalies
