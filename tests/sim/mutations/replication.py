"""Deliberate faults in the core's log, in replication and committing."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

import dledger.core.replication
from dledger.core.effects import FetchSnapshot
from dledger.core.events import Stored
from dledger.core.following import Following
from dledger.core.log_index import LogIndex
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, SnapshotOffer
from dledger.core.progress import Progress
from dledger.core.raft import Raft
from dledger.core.replication import Replication
from dledger.core.state import CoreState
from dledger.core.types import EntryId, EntryMeta, NodeId

# What is durable


def acknowledgements_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    send = CoreState.send

    def hasty(self: CoreState, to: NodeId, message: Any, *, after_sync: bool = False) -> None:
        send(self, to, message, after_sync=after_sync)
        if isinstance(message, AppendResponse) and message.success:
            self.effects[-1].after_sync = False  # type: ignore[union-attr]

    patch.setattr(CoreState, "send", hasty)


def leader_counts_itself_before_its_disk(patch: pytest.MonkeyPatch) -> None:
    append_own = Replication.append_own

    def hasty(self: Replication, meta: EntryMeta) -> None:
        append_own(self, meta)
        self.on_stored(Stored(self._core.log.last))

    patch.setattr(Replication, "append_own", hasty)


def watermark_kept_on_truncation(patch: pytest.MonkeyPatch) -> None:
    truncate = LogIndex.truncate

    def careless(self: LogIndex, from_index: int, node_term: int) -> None:
        durable = self.durable
        truncate(self, from_index, node_term)
        self.durable = min(durable, self.last.index + 1)

    patch.setattr(LogIndex, "truncate", careless)


def late_completion_of_an_entry_that_came_back(patch: pytest.MonkeyPatch) -> None:
    stored = LogIndex.stored

    def trusting(self: LogIndex, last: EntryId) -> bool:
        self._fence_term = 0
        return stored(self, last)

    patch.setattr(LogIndex, "stored", trusting)


def completion_of_another_term_counts(patch: pytest.MonkeyPatch) -> None:
    def by_index(self: LogIndex, last: EntryId) -> bool:
        index = min(last.index, self.last.index)
        risen, self.durable = index > self.durable, max(self.durable, index)
        return risen

    patch.setattr(LogIndex, "stored", by_index)


# Committing


def older_terms_committed_by_counting(patch: pytest.MonkeyPatch) -> None:
    commit = Replication._maybe_commit

    def reckless(self: Replication) -> None:
        start, self.term_start = self.term_start, 0
        try:
            commit(self)
        finally:
            self.term_start = start

    patch.setattr(Replication, "_maybe_commit", reckless)


def committed_without_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dledger.core.replication, "quorum_value", max)


def acknowledged_before_commit(patch: pytest.MonkeyPatch) -> None:
    append_own = Replication.append_own

    def hasty(self: Replication, meta: EntryMeta) -> None:
        append_own(self, meta)
        if self._core.confirmed:
            self._commit(self._core.log.last.index)

    patch.setattr(Replication, "append_own", hasty)


def follower_commits_what_it_did_not_verify(patch: pytest.MonkeyPatch) -> None:
    on_append = Following.on_append_request
    learn = Following._learn_commit

    def remember(self: Following, source: NodeId, message: AppendRequest) -> None:
        patched[0] = message.commit
        on_append(self, source, message)

    def eager(self: Following, index: int) -> None:
        learn(self, min(max(index, patched[0]), self._core.log.last.index))

    patched = [0]
    patch.setattr(Following, "on_append_request", remember)
    patch.setattr(Following, "_learn_commit", eager)


def heartbeat_commits_unverified_tail(patch: pytest.MonkeyPatch) -> None:
    send = CoreState.send

    def careless(self: CoreState, to: NodeId, message: Any, *, after_sync: bool = False) -> None:
        named = replace(message, commit=self.commit) if isinstance(message, Heartbeat) else message
        send(self, to, named, after_sync=after_sync)

    patch.setattr(CoreState, "send", careless)
    heartbeat_commits_another_log(patch)


def heartbeat_commits_another_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_is_of_this_log", lambda *_: True)


# Logs


def conflict_not_cut(patch: pytest.MonkeyPatch) -> None:
    take = Following._take

    def blind(self: Following, message: AppendRequest) -> bool:
        last = self._core.log.last
        held = max(last.index - message.prev.index, 0)
        if held >= len(message.entries):
            return True
        return take(self, replace(message, prev=last, entries=message.entries[held:]) if held else message)

    patch.setattr(Following, "_take", blind)


def every_append_cuts(patch: pytest.MonkeyPatch) -> None:
    take = Following._take

    def eager(self: Following, message: AppendRequest) -> bool:
        first = max(message.prev.index, self._core.commit) + 1
        if first <= self._core.log.last.index and first <= message.prev.index + len(message.entries):
            self._cut(first)
        return take(self, message)

    patch.setattr(Following, "_take", eager)


def entry_before_not_checked(patch: pytest.MonkeyPatch) -> None:
    holds = LogIndex.holds

    def by_index(self: LogIndex, entry: EntryId) -> bool:
        return self.term_at(entry.index) is not None if sys._getframe(1).f_code.co_name == "on_append_request" else holds(self, entry)

    patch.setattr(LogIndex, "holds", by_index)


def acknowledgement_without_terms(patch: pytest.MonkeyPatch) -> None:
    older = Raft._older_term
    holds = LogIndex.holds

    def accepting(self: Raft, source: NodeId, message: Any) -> None:
        if isinstance(message, AppendResponse) and self._core.replication.peers:
            self._core.replication.on_append_response(source, message)
        else:
            older(self, source, message)

    def by_index(self: LogIndex, entry: EntryId) -> bool:
        return self.term_at(entry.index) is not None if sys._getframe(1).f_code.co_name == "on_append_response" else holds(self, entry)

    patch.setattr(Raft, "_older_term", accepting)
    patch.setattr(LogIndex, "holds", by_index)


# Progress and windows


def match_may_go_down(patch: pytest.MonkeyPatch) -> None:
    acked = Progress.acked

    def naive(self: Progress, index: int) -> bool:
        news = acked(self, index)
        self.match = index
        return news

    patch.setattr(Progress, "acked", naive)


def late_acknowledgement_frees_the_window(patch: pytest.MonkeyPatch) -> None:
    acked = Progress.acked

    def careless(self: Progress, index: int) -> bool:
        before = len(self.inflight)
        news = acked(self, index)
        if self.inflight and len(self.inflight) == before:
            self.inflight_bytes -= self.inflight.popleft()[1]
        return news

    patch.setattr(Progress, "acked", careless)


def uncommitted_bytes_leak(patch: pytest.MonkeyPatch) -> None:
    size_between = LogIndex.size_between

    def short(self: LogIndex, first_index: int, last_index: int) -> int:
        size = size_between(self, first_index, last_index)
        return size - size % 7 if sys._getframe(1).f_code.co_name == "_commit" else size

    patch.setattr(LogIndex, "size_between", short)


# Copies


def copy_older_than_the_commit_index_taken(patch: pytest.MonkeyPatch) -> None:
    def always(self: Following, source: NodeId, message: SnapshotOffer) -> None:
        self._follow(source, message.last.index)
        self.snapshot_wanted = FetchSnapshot(source, message.first_available, message.last)
        self._core.emit(self.snapshot_wanted)

    patch.setattr(Following, "on_snapshot_offer", always)


def copy_drops_a_tail_that_matches(patch: pytest.MonkeyPatch) -> None:
    on_snapshot_offer = Following.on_snapshot_offer

    def blind(self: Following, source: NodeId, message: SnapshotOffer) -> None:
        holds = LogIndex.holds
        try:
            LogIndex.holds = lambda _self, _entry: False  # type: ignore[assignment, method-assign]
            on_snapshot_offer(self, source, message)
        finally:
            LogIndex.holds = holds  # type: ignore[method-assign]

    patch.setattr(Following, "on_snapshot_offer", blind)
