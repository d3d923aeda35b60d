"""The promises that a sabotaged build breaks, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

mutations = import_module("tests.sim.mutations.nodes")  # not by a statement: the simulator's modules are not typed as strictly as these

SABOTAGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    # The kernel writes entries when it likes: what is acknowledged is lost with the power of a majority.
    "acknowledge-before-sync": mutations.flush_without_sync,
    # They are kept in memory only.  The product sees it when the process starts again, and ends: its group is a member short.
    "forget-term-and-vote": mutations.term_and_vote_not_saved,
    # Whatever a producer sends again is new: stored twice where the answer was lost, as when a leader is killed under load.
    "forget-producers": mutations.producers_forgotten,
}
