"""What a replica starts from, and the one look the core takes at its log afterwards.

Owns two shapes.  Everything in ``Saved`` is on stable storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dledger.core.types import NO_HARD_STATE, ZERO_ENTRY, EntryId, EntryMeta, HardState, Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A replica as its disk has it.

    ``terms`` are the runs (term, first index) of the log, oldest first; the first may start before ``before``.  ``before`` is the
    entry just below the log's first one and stays known when that was deleted.  ``commit`` is a floor: what is known to be
    committed, at least ``before.index`` (an applied index never lies beyond ``last``: the state machine's snapshots wait for the log).
    ``configs`` are the configuration entries in the log, oldest first; the membership given to ``Raft`` is the one before them.
    ``settled``: the newest of these that is known to be committed, which ``commit`` may lie below.
    ``suspect``: acknowledged entries may be missing at the log's end; ``discarded``: the whole log was given up (``soundness.py``).
    """

    hard_state: HardState = NO_HARD_STATE
    terms: Sequence[tuple[int, int]] = ()
    before: EntryId = ZERO_ENTRY
    last: EntryId = ZERO_ENTRY
    commit: int = 0
    configs: Sequence[tuple[int, Membership]] = ()
    settled: int = 0
    suspect: bool = False
    discarded: bool = False


class LogView(Protocol):
    """Read-only and without waiting: what an old entry is.  Newer ones (added since the start) the core knows by itself."""

    def metas(self, first_index: int, last_index: int) -> Sequence[EntryMeta]:
        """The entries from ``first_index`` up to at most ``last_index``; fewer is fine.

        None means that they are not available here; a follower that needs them is then offered a snapshot.
        """
        ...
