"""The worlds of messages, transactions and consumers over seeds that nobody has run yet, in every run of the suite.

A failure prints the seed and the command that replays it with its trace.
"""

from __future__ import annotations

import pytest

from tests.sim.elsewhere import assert_the_same_elsewhere
from tests.sim.fresh import base_seed, part_of
from tests.sim.test_runs import assert_clean, quiet
from tests.sim.worlds import WORLDS

__all__ = ["quiet"]

# Chosen by what a seed costs: 0.6 s (transacting) to 4 s (remaking).
SEEDS = {
    "messaging": 20,
    "remaking": 4,
    "transacting": 16,
    "transacting-clocks": 8,
    "pressure": 12,
    "leasing": 4,
    "owners": 4,
    "sharers": 4,
    "groups": 4,
    "groups-embedded": 2,
    "groups-added": 4,
    "groups-drained": 4,
    "groups-secured": 6,
    "spares": 6,
}
RUNS = [(scenario, number) for scenario, count in SEEDS.items() for number in range(part_of(count))]


@pytest.mark.parametrize(("scenario", "number"), RUNS)
def test_every_message_is_accounted_for(scenario: str, number: int) -> None:
    assert_clean(scenario, base_seed() + number)


def test_the_same_seed_gives_the_same_world_in_another_process() -> None:
    assert_the_same_elsewhere(WORLDS, 3)
