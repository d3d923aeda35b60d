"""ASYNC_FLUSH: what losses of power may take of what was acknowledged, and which replicas are suspect.

Owns the account.  With fewer than a majority suspect at a time nothing may be lost, and every rule holds as it does with SYNC_FLUSH.  Once
a majority is, what was committed within the flush interval before the first of these losses, or was on its way then, may be gone
(docs/reference/semantics/index.md); what is older may not.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from dledger.core.quorum import majority
from dledger.replica.unsynced import PATH
from tests.checkers.append_log import LogHistory, Outcome
from tests.sim.disk import SimDisk

SYNCING_S = 0.2  # a sync under way, the writes before it, and answers that are on their way meanwhile


@dataclass(frozen=True, slots=True)
class Window:
    """What was committed in this time may be lost."""

    since_s: float
    until_s: float


def mark_of(disk: SimDisk) -> dict[str, object]:
    """What a data folder says of losses of power; empty when it says nothing."""
    content = disk.names.get(PATH)
    found = json.loads(content.current.whole()) if content is not None else {}
    return dict(found)


class AsyncLoss:
    """The account of one group; ``interval_s`` is its flush interval."""

    def __init__(self, members: int, interval_s: float) -> None:
        self.windows: list[Window] = []
        self._needed = majority(members)
        self._interval_s = interval_s
        self._lost_s: dict[str, float] = {}

    def may_lose_power(self, node_id: str, suspects: Collection[str]) -> bool:
        """Whether nothing may be lost when this machine's power is, too."""
        return len({*suspects, node_id}) < self._needed

    def power_lost(self, node_id: str, now_s: float, suspects: Collection[str]) -> float | None:
        """``suspects``: before this loss.  Since when what was committed may be gone, if anything may be."""
        self._lost_s = {name: at_s for name, at_s in self._lost_s.items() if name in suspects}
        self._lost_s.setdefault(node_id, now_s)
        if len({*suspects, node_id}) < self._needed:
            return None
        since_s = min(self._lost_s.values()) - self._interval_s - SYNCING_S
        self.windows.append(Window(since_s, now_s + SYNCING_S))
        return since_s

    def forgive(self, history: LogHistory) -> int:
        """Acknowledgements that stand for nothing any more, where that may be, count as unknown outcomes; how many there were."""
        content = dict(max(history.drained.values(), key=len, default=[]))  # type: ignore[arg-type]
        lost = 0
        for number, append in enumerate(history.appends):
            if append.outcome is not Outcome.ACKED or content.get(append.offset) == append.id:
                continue
            if any(append.invoked < window.until_s and append.returned > window.since_s for window in self.windows):
                history.appends[number] = replace(append, outcome=Outcome.UNKNOWN, offset=-1)
                lost += 1
        return lost
