"""What the core starts from, and its view of entries written before the start.  Owns nothing."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.saved import Saved
from dledger.core.types import EntryMeta
from dledger.log.log import Log
from dledger.membership.configuration import Configuration


class CoreLogView:
    """Implements ``dledger.core.saved.LogView``.  ``log`` is replaced when a snapshot replaces the log."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def metas(self, first_index: int, last_index: int) -> list[EntryMeta]:
        metas = []
        for index in range(first_index, last_index + 1):
            place = self.log.locate(index)
            if place is None:
                break
            metas.append(EntryMeta(place.term, place.size, place.kind))
        return metas


def saved_of(log: Log, applied: int, configurations: Sequence[tuple[int, Configuration]]) -> Saved:
    """What the core starts from: an open log, how far it is applied, and the configurations in it."""
    return Saved(
        hard_state=log.saved,
        terms=log.terms(),
        before=log.before,
        last=log.last,
        commit=max(applied, log.before.index),
        configs=[(index, configuration.membership) for index, configuration in configurations],
    )
