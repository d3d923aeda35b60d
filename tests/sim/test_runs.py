"""Whole nodes and clients in virtual time, many seeds: nothing acknowledged is lost, doubled, changed or reordered.

A failure prints the seed and the command that replays it with its trace.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import store.sequences
from dledger.core.effects import Effect, Send
from dledger.core.replication import Replication
from dledger.driver import Driver
from tests.sim.scenarios import run

KILL_THE_LEADER_SEEDS = 1000
CHUNK = 50


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What thousands of dying nodes log helps nobody; the trace of a seed does."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_clean(scenario: str, seed: int) -> None:
    result = run(scenario, seed)
    assert not result.anomalies, f"{result.anomalies}\nreplay: .venv/bin/python -m tests.sim {scenario} --seed {seed} --trace"


@pytest.mark.parametrize("first", range(0, KILL_THE_LEADER_SEEDS, CHUNK))
def test_killing_the_leader_loses_nothing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert_clean("kill-the-leader", seed)


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_a_blackout_loses_nothing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert_clean("blackout", seed)


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_all_faults_together_lose_nothing(first: int) -> None:
    for seed in range(first, first + 25):
        assert_clean("everything", seed)


@pytest.mark.parametrize("scenario", ["kill-the-leader", "blackout", "everything"])
@pytest.mark.parametrize("seed", [3, 11])
def test_the_same_seed_gives_the_same_trace_byte_for_byte(scenario: str, seed: int) -> None:
    traces: list[list[str]] = [[], []]
    results = [run(scenario, seed, readable=True, sink=lines.append) for lines in traces]
    assert results[0] == results[1]
    assert len(traces[0]) > 100
    assert "\n".join(traces[0]) == "\n".join(traces[1])


def test_different_seeds_give_different_traces() -> None:
    assert len({run("kill-the-leader", seed).trace_hash for seed in range(5)}) == 5


# The simulator has to find faults that are put in on purpose; each of these breaks a promise in a small way.


def caught_within(scenario: str, seeds: int) -> bool:
    for seed in range(seeds):
        try:
            if run(scenario, seed).anomalies:
                return True
        except (AssertionError, RuntimeError, TimeoutError):
            return True
    return False


def test_acknowledging_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    execute = Driver._execute

    def hasty(self: Driver, effect: Effect) -> None:
        execute(self, replace(effect, after_sync=False) if isinstance(effect, Send) else effect)

    monkeypatch.setattr(Driver, "_execute", hasty)
    assert caught_within("blackout", 60)


def test_committing_entries_of_older_terms_by_counting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Replication._maybe_commit

    def reckless(self: Replication) -> None:
        start, self.term_start = self.term_start, 0
        try:
            commit(self)
        finally:
            self.term_start = start

    monkeypatch.setattr(Replication, "_maybe_commit", reckless)
    assert caught_within("kill-the-leader", 60)


def test_forgetting_what_a_producer_has_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*_: Any) -> store.sequences.Verdict:
        return store.sequences.FRESH

    monkeypatch.setattr(store.sequences, "judge", forgetful)
    assert caught_within("kill-the-leader", 60)
