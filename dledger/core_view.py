"""What the core may ask of entries from before the start: their places in memory, without waiting.  Owns nothing."""

from __future__ import annotations

from collections.abc import Callable

from dledger.core.types import EntryMeta
from dledger.log.log import Log


class CoreLogView:
    """Implements ``dledger.core.saved.LogView``; ``log`` gives the log as it is now (a copy may have replaced it)."""

    def __init__(self, log: Callable[[], Log]) -> None:
        self._log = log

    def metas(self, first_index: int, last_index: int) -> list[EntryMeta]:
        metas = []
        for index in range(first_index, last_index + 1):
            place = self._log().locate(index)
            if place is None:
                break
            metas.append(EntryMeta(place.term, place.size, place.kind))
        return metas
