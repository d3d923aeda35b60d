"""Hundreds of groups, a thousand every night, lose their leader under load: nothing acknowledged is lost, doubled, changed or reordered."""

from __future__ import annotations

import pytest

from tests.sim.fresh import CHUNK, base_seed, part_of
from tests.sim.test_runs import assert_clean, quiet

__all__ = ["quiet"]

SEEDS = 1000


@pytest.mark.parametrize("first", range(0, part_of(SEEDS), CHUNK))
def test_killing_the_leader_loses_nothing(first: int) -> None:
    base = base_seed() + first
    for seed in range(base, base + CHUNK):
        assert_clean("kill-the-leader", seed)
