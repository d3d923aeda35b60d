"""Deliberate faults of unsafe recovery: nothing keeps the lineages of a group apart."""

from __future__ import annotations

import pytest

from dledger.core.state import DrawSource
from dledger.core.types import EntryId
from dledger.replica.admission import PeerAdmission
from dledger_offline.recovery import new_members, only_voter
from tests.sim import recovery


class _FirstDrawn:
    """Draws ``number`` first."""

    def __init__(self, number: int, others: DrawSource) -> None:
        self._numbers, self._others = [number], others

    def getrandbits(self, k: int) -> int:
        return self._numbers.pop() if self._numbers else self._others.getrandbits(k)

    def randrange(self, start: int, stop: int) -> int:
        return self._others.randrange(start, stop)


def lineages_mixed(patch: pytest.MonkeyPatch) -> None:
    """Replicas of two lineages connect, and the survivor goes on in the next term, on the folder that the old members know."""
    make_only_voter = only_voter.make_only_voter

    async def on_the_same_folder(survivor: only_voter.Survivor, draws: DrawSource, now_ms: int) -> EntryId:
        return await make_only_voter(survivor, _FirstDrawn(int(survivor.identity.store_id, 16), draws), now_ms)

    patch.setattr(PeerAdmission, "_check_lineage", lambda *_told: None)
    patch.setattr(new_members, "terms_ahead", lambda _lineage: 1)
    patch.setattr(recovery, "make_only_voter", on_the_same_folder)
