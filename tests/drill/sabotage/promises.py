"""The promises that a sabotaged build breaks, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

from dledger.runtime import real_disk

mutations = import_module("tests.sim.mutations.nodes")  # not by a statement: the simulator's modules are not typed as strictly as these


def acknowledge_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Written through the page cache, from where the kernel writes it when it likes.

    A loop disk has no cache of its own that a sync would empty, so direct writes, as the product makes them, would be there without one.
    """
    mutations.flush_without_sync(patch)
    patch.setattr(real_disk, "open_direct", lambda _path: None)


def forget_term_and_vote(patch: pytest.MonkeyPatch) -> None:
    """They are kept in memory only: the product sees it when the process starts again, and ends."""
    mutations.term_and_vote_not_saved(patch)


def forget_producers(patch: pytest.MonkeyPatch) -> None:
    """Whatever a producer sends again is new."""
    mutations.producers_forgotten(patch)


SABOTAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "acknowledge-before-sync": acknowledge_before_sync,
    "forget-term-and-vote": forget_term_and_vote,
    "forget-producers": forget_producers,
}
