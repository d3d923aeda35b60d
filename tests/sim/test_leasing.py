"""The world of ``leasing.py``: what was acknowledged does not come again, everything else does, and defects are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from store.commands.command import OffsetRun
from store.state.pop import GroupQueue, Heads, Offsets, Pop
from store.state.pop_block import BLOCK, DONE, Block
from tests.sim import leasing
from tests.sim.test_runs import quiet

__all__ = ["quiet"]

FAULT_SEEDS = 6


@pytest.mark.parametrize("seed", range(3))
def test_what_is_acknowledged_is_done_and_everything_else_comes_again(seed: int) -> None:
    """docs/reference/semantics, row B5."""
    world = leasing.run(seed)
    for group in world.pops:
        assert len(group.given) >= len(world.sent) > 0
        assert any(len(leases) > 1 for leases in group.given.values()), "nothing was delivered again"


# What the rules are worth


def run_seeds(count: int) -> None:
    for seed in range(count):
        leasing.run(seed)


def leases_overlap(patch: pytest.MonkeyPatch) -> None:
    """What is leased counts as free."""

    def of_all(self: Pop, queue: GroupQueue, runs: Sequence[OffsetRun], now_ms: int) -> Iterator[tuple[int, Block, Offsets]]:
        for first, end in runs:
            for offset in range(first, end):
                number = offset // BLOCK
                if self._blocks.get((queue, number)) is not None:
                    yield number * BLOCK, self._blocks.change((queue, number), Block), np.array([offset % BLOCK])

    def free(self: Pop, queue: GroupQueue, now_ms: int, most: int) -> object:
        return found(self, queue, DONE - 1, most)

    found = Pop.free
    patch.setattr(Pop, "_free_of", of_all)
    patch.setattr(Pop, "free", free)
    patch.setattr(Pop, "earliest_ms", lambda self, queue: 0 if self.left(queue) else None)


def messages_overtake(patch: pytest.MonkeyPatch) -> None:
    """Messages of a group that is under way are given out."""
    found = Pop.heads

    def heads(self: Pop, queue: GroupQueue, now_ms: int) -> Heads:
        known = found(self, queue, now_ms)
        return Heads(known.free, set(), known.next_ms)

    patch.setattr(Pop, "heads", heads)


def acknowledgements_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """They are answered, and messages come again when their time is over."""
    patch.setattr(Pop, "_finish", lambda _self, _queue, _number, _places: None)


@pytest.mark.parametrize("defect", [leases_overlap, messages_overtake, acknowledgements_are_forgotten])
def test_a_defect_is_found(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    with pytest.raises(Exception, match=r"at a time|came again|two leases|overtook|came after|delivered again"):
        run_seeds(FAULT_SEEDS)
