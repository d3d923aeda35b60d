"""Deliberate faults that no simulation finds soon enough, each one held by a test of its own."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.clock.group_time import GroupTime
from dledger.core.effects import FetchSnapshot
from dledger.core.following import Following
from dledger.core.log_index import LogIndex
from dledger.core.messages import ReadIndexResponse, SnapshotOffer
from dledger.core.progress import Progress
from dledger.core.reads import Reads
from dledger.core.soundness import Soundness
from dledger.core.transfer import Transfers
from dledger.core.types import NodeId
from dledger.membership.boot_history import Boot, BootHistory
from dledger.replica.unsynced import UnsyncedMark
from dledger.snapshot import install
from dledger.snapshot.plan import SnapshotPlan


def fence_rises_with_a_later_cut(patch: pytest.MonkeyPatch) -> None:
    truncate = LogIndex.truncate

    def later(self: LogIndex, from_index: int, node_term: int) -> None:
        truncate(self, from_index, node_term)
        self._fence_index = from_index

    patch.setattr(LogIndex, "truncate", later)


def offer_answered_by_length(patch: pytest.MonkeyPatch) -> None:
    take = Following.on_snapshot_offer

    def long_enough(self: Following, source: NodeId, message: SnapshotOffer) -> None:
        take(self, source, message)
        if message.last.index <= self._core.log.last.index:
            self.snapshot_wanted = None
            self._core.effects[:] = [effect for effect in self._core.effects if not isinstance(effect, FetchSnapshot)]

    patch.setattr(Following, "on_snapshot_offer", long_enough)


def tokens_begin_at_zero(patch: pytest.MonkeyPatch) -> None:
    begin = Reads.__init__

    def zero(self: Reads, core: Any) -> None:
        begin(self, core)
        self._next_wire_token = 0

    patch.setattr(Reads, "__init__", zero)


def former_folder_binds_a_learner(patch: pytest.MonkeyPatch) -> None:
    begin = Progress.__init__

    def added_at_once(self: Progress, node: NodeId, next_index: int, now_ms: int) -> None:
        begin(self, node, next_index, now_ms)
        self.added_at = 0

    patch.setattr(Progress, "__init__", added_at_once)


def target_ordered_with_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    advanced = Transfers.advanced

    def early(self: Transfers, progress: Progress) -> None:
        index, terms = progress.match, self._core.log
        if index >= self._core.commit:
            progress.match = terms.last.index
        advanced(self, progress)
        progress.match = index

    patch.setattr(Transfers, "advanced", early)


def suspect_waits_for_the_commit_index(patch: pytest.MonkeyPatch) -> None:
    answered = Soundness.answered

    def sooner(self: Soundness, source: NodeId, message: ReadIndexResponse) -> bool:
        message.last = message.index
        return answered(self, source, message)

    patch.setattr(Soundness, "answered", sooner)


def half_of_the_clocks_is_enough(patch: pytest.MonkeyPatch) -> None:
    def half(self: GroupTime, own: NodeId, voters: Any, now_ms: int) -> int | None:
        offsets = sorted(self._offsets(own, voters, now_ms).values())
        middle = offsets[(len(offsets) - 1) // 2]
        return middle if 2 * sum(abs(offset - middle) <= self.max_skew_ms for offset in offsets) >= len(voters) else None

    patch.setattr(GroupTime, "_majority", half)


def oldest_start_not_compared(patch: pytest.MonkeyPatch) -> None:
    reason = BootHistory.rollback_reason

    def blind(self: BootHistory, known: Boot) -> str | None:
        return None if known.start == self.starts - len(self.drawn) + 1 else reason(self, known)

    patch.setattr(BootHistory, "rollback_reason", blind)


def mark_removed_though_not_synced(patch: pytest.MonkeyPatch) -> None:
    stopped = UnsyncedMark.stopped

    async def careless(self: UnsyncedMark, *, synced: bool) -> None:
        await stopped(self, synced=True)

    patch.setattr(UnsyncedMark, "stopped", careless)


def copy_of_a_newer_term_taken(patch: pytest.MonkeyPatch) -> None:
    refusal = SnapshotPlan.incompatibility

    def any_term(self: SnapshotPlan, log: Any, commit_index: int) -> str | None:
        text = refusal(self, log, commit_index)
        return None if text is not None and "ends in term" in text else text

    patch.setattr(SnapshotPlan, "incompatibility", any_term)


def old_segments_stay_beside_a_copy(patch: pytest.MonkeyPatch) -> None:
    async def keep(*_: Any) -> None: ...

    patch.setattr(install, "remove_segment", keep)
