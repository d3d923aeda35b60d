"""The world of ``messaging.py`` over many seeds: every message accounted for, owners of ordered queues one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.delivery.delay_levels import DelayLevelService
from dledger_client.consumer.rebalancer import Rebalancer
from store.queues.timer_window import TimerWindow
from tests.sim import messaging
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

SEEDS_A_TEST = 5


@pytest.mark.parametrize("first", range(0, 20, SEEDS_A_TEST))
def test_nothing_is_lost_doubled_early_or_out_of_order_whoever_dies_or_stands_still(first: int) -> None:
    """docs/reference/semantics, row D1."""
    for seed in range(first, first + SEEDS_A_TEST):
        world = messaging.run(seed)
        assert all(len(bodies) > messaging.MESSAGES // 2 for bodies in world.acknowledged.values())


# What the account is worth


def refused_ones_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def forget(_engine: Rebalancer, *_arguments: object) -> bool:
        return True

    patch.setattr(Rebalancer, "send_back", forget)


def levels_early(patch: pytest.MonkeyPatch) -> None:
    following = DelayLevelService._next
    patch.setattr(DelayLevelService, "_next", lambda self, level, delay_ms, stored: following(self, level, delay_ms - 100, stored))


def timers_early(patch: pytest.MonkeyPatch) -> None:
    due = TimerWindow.due
    patch.setattr(TimerWindow, "due", lambda self, now_ms, *limits: due(self, now_ms + 100, *limits))


def a_violation_told_to_nobody(patch: pytest.MonkeyPatch) -> None:
    settle = messaging.World._settle

    async def violate(self: messaging.World) -> None:
        await settle(self)
        self.rig.cluster.invariants.violations.append("somebody led beside another")

    patch.setattr(messaging.World, "_settle", violate)


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        (refused_ones_forgotten, 0),
        (levels_early, 0),
        (timers_early, 0),
        (a_violation_told_to_nobody, 0),
    ],
)
def test_a_fault_put_in_on_purpose_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        messaging.run(seed)
