"""What happened in a run that it is worth to be simulated for: counted, so that a suite in which something never happens any more fails.

Owns the names, and how each is recognized from a node's steps; what shows elsewhere (disks, operators) is counted where it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dledger.core.effects import CutTail, Effect, TransferEnded
from dledger.core.events import Event, SnapshotInstalled, StorageFailed, StorageRecovered, Tick
from dledger.core.raft import Raft
from dledger.core.types import Role

TORN = "torn tail cut"
CONFLICT = "conflict cut"
TRANSFERRED = "transfer done"
NOT_TRANSFERRED = "transfer aborted"
REVERTED = "configuration reverted by a cut"
COPIED = "copy installed"
REPAIRED = "entry repaired"
READDED = "member wiped and re-added"
FULL = "disk full"
NOT_FULL = "disk full no more"
DEPOSED = "leader stepped down for lack of a majority"
BEGUN_ANEW = "a replica began anew"
FORGOTTEN = "acknowledged entries lost with a majority's power"
CUT_SHORT = "power lost while a conflict is cut"
ALL = (
    TORN,
    CONFLICT,
    TRANSFERRED,
    NOT_TRANSFERRED,
    REVERTED,
    COPIED,
    REPAIRED,
    READDED,
    FULL,
    NOT_FULL,
    DEPOSED,
    CUT_SHORT,
    BEGUN_ANEW,
    FORGOTTEN,
)


class Coverage:
    """The counters of one run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._membership_index: dict[Raft, int] = {}

    def count(self, name: str) -> None:
        self.counts[name] += 1

    def after_step(self, core: Raft, was_leader: bool, event: Event, effects: Sequence[Effect]) -> None:
        """``was_leader``: of the term it is in now."""
        if isinstance(event, SnapshotInstalled):
            self.count(COPIED)
        elif isinstance(event, StorageFailed) and not event.fatal:
            self.count(FULL)
        elif isinstance(event, StorageRecovered):
            self.count(NOT_FULL)
        if not effects:
            return
        if was_leader and core.role is not Role.LEADER and isinstance(event, Tick):
            self.count(DEPOSED)
        for effect in effects:
            if isinstance(effect, CutTail):
                self.count(CONFLICT)
                if self._membership_index.get(core, 0) >= effect.from_index:
                    self.count(REVERTED)
            elif isinstance(effect, TransferEnded):
                self.count(TRANSFERRED if effect.done else NOT_TRANSFERRED)
        self._membership_index[core] = core.membership_index
