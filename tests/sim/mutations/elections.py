"""Deliberate faults in elections, terms, membership and reads of the core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dledger.core.quorum
import dledger.core.raft
import dledger.core.reads
import dledger.core.replication
from dledger.core.causes import Cause
from dledger.core.effects import ReadReady, RefusedReason, SaveHardState
from dledger.core.election import Elections
from dledger.core.events import ChangeRequested
from dledger.core.membership import Memberships
from dledger.core.messages import Heartbeat, HeartbeatResponse, ReadIndexResponse, TimeoutNow, VoteRequest, VoteResponse
from dledger.core.quorum import VoteTally
from dledger.core.raft import Raft
from dledger.core.reads import Reads
from dledger.core.replication import Replication
from dledger.core.state import CoreState
from dledger.core.types import EntryId, Membership, NodeId, Role
from tests.sim.core.node import CoreNode

# Votes and terms


def folders_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A member is whoever comes under its name."""
    patch.setattr(Memberships, "is_registered", lambda _self, _member, _store: True)
    patch.setattr(Replication, "accepts_answer", lambda *_: True)


def votes_of_other_folders_count(patch: pytest.MonkeyPatch) -> None:
    kinds = tuple(kind for kind in dledger.core.raft._PROMISES if kind is not VoteResponse)
    patch.setattr(dledger.core.raft, "_PROMISES", kinds)


def votes_counted_not_voters(patch: pytest.MonkeyPatch) -> None:
    def every(self: VoteTally, voter: NodeId, granted: bool) -> bool:
        if voter not in self._voters:
            return False
        self._answers[voter] = granted
        self._granted += granted
        return True

    patch.setattr(VoteTally, "record", every)


def removed_peers_vote_counts(patch: pytest.MonkeyPatch) -> None:
    def anybody(self: VoteTally, voter: NodeId, granted: bool) -> bool:
        if voter in self._answers:
            return False
        self._answers[voter] = granted
        self._granted += granted
        return True

    patch.setattr(VoteTally, "record", anybody)


def votes_of_suspects_count_in_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoteTally, "won", property(lambda self: self._granted >= dledger.core.quorum.majority(len(self._voters))))


def configuration_not_synced(patch: pytest.MonkeyPatch) -> None:
    """As data: a replica that loses power forgets it."""
    patch.setattr(CoreNode, "counts_only_synced", staticmethod(lambda _effect: False))


def half_of_an_even_group_is_enough(patch: pytest.MonkeyPatch) -> None:
    def half(values: Any) -> int:
        return sorted(values, reverse=True)[(len(values) - 1) // 2]

    patch.setattr(dledger.core.quorum, "majority", lambda count: (count + 1) // 2)
    patch.setattr(dledger.core.replication, "quorum_value", half)
    patch.setattr(dledger.core.reads, "quorum_value", half)


def vote_cleared_on_step_down(patch: pytest.MonkeyPatch) -> None:
    become_follower = Elections.become_follower

    def forgetful(self: Elections, term: int, leader: NodeId | None, cause: Cause, source: NodeId | None = None) -> None:
        core = self._core
        if term == core.term and core.role in (Role.CANDIDATE, Role.LEADER):
            core.vote, core.hard_state_dirty, core.hard_state_durable = None, True, False
        become_follower(self, term, leader, cause, source)

    patch.setattr(Elections, "become_follower", forgetful)


def votes_leave_before_their_sync(patch: pytest.MonkeyPatch) -> None:
    send = CoreState.send

    def hasty(self: CoreState, to: NodeId, message: Any, *, after_sync: bool = False) -> None:
        send(self, to, message, after_sync=after_sync)
        if isinstance(message, VoteRequest | VoteResponse):
            self.effects[-1].after_promise = False  # type: ignore[union-attr]

    patch.setattr(CoreState, "send", hasty)


def vote_and_term_saved_one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    promise, save = CoreState.promise, CoreState.save_hard_state

    def remembering(self: CoreState, term: int, vote: NodeId | None) -> None:
        if not self.hard_state_dirty:
            self.config_term_before = self.term  # type: ignore[attr-defined]
        promise(self, term, vote)

    def twice(self: CoreState) -> None:
        if self.hard_state_dirty and self.vote is not None:
            self.effects.append(SaveHardState(getattr(self, "config_term_before", self.term), self.vote))
        save(self)

    patch.setattr(CoreState, "promise", remembering)
    patch.setattr(CoreState, "save_hard_state", twice)


def vote_without_looking_at_the_log(patch: pytest.MonkeyPatch) -> None:
    may_grant = Elections._may_grant

    def blind(self: Elections, source: NodeId, message: VoteRequest) -> bool:
        return may_grant(self, source, replace(message, last=EntryId(1 << 40, 1 << 40)))

    patch.setattr(Elections, "_may_grant", blind)


def vote_twice(patch: pytest.MonkeyPatch) -> None:
    def generous(self: Elections, source: NodeId, message: VoteRequest) -> bool:
        last = self._core.log.last
        return (message.last.term, message.last.index) >= (last.term, last.index) and message.term >= self._core.term

    def forget(self: CoreState, term: int, vote: NodeId | None) -> None:
        self.term, self.vote, self.hard_state_dirty, self.hard_state_durable = term, vote, True, False

    patch.setattr(Elections, "_may_grant", generous)
    patch.setattr(CoreState, "promise", forget)


def no_pre_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "start_pre_vote", lambda self, _cause: self.become_candidate(by_transfer=False))


def no_check_quorum(patch: pytest.MonkeyPatch) -> None:
    def never(self: Replication) -> None:
        self.quorum_deadline_ms = 1 << 60

    patch.setattr(Replication, "_set_quorum_deadline", never)


def lower_terms_are_not_answered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Raft, "_older_term", lambda _self, _source, _message: None)


def order_to_campaign_of_an_older_term(patch: pytest.MonkeyPatch) -> None:
    older = Raft._older_term

    def obedient(self: Raft, source: NodeId, message: Any) -> None:
        core = self._core
        if isinstance(message, TimeoutNow) and core.role is Role.FOLLOWER and core.elections.may_campaign:
            core.elections.become_candidate(by_transfer=True)
            return
        older(self, source, message)

    patch.setattr(Raft, "_older_term", obedient)


# Membership


def _allowing(patch: pytest.MonkeyPatch, reason: RefusedReason) -> None:
    why_not = Memberships._why_not

    def lax(self: Memberships, wanted: Membership, *, moves: bool) -> RefusedReason | None:
        found = why_not(self, wanted, moves=moves)
        if found is reason and sorted(wanted.voters) != sorted(self.current.voters):
            return None
        return found

    patch.setattr(Memberships, "_why_not", lax)


def two_changes_in_flight(patch: pytest.MonkeyPatch) -> None:
    _allowing(patch, RefusedReason.CHANGE_IN_PROGRESS)


def change_before_the_no_op(patch: pytest.MonkeyPatch) -> None:
    _allowing(patch, RefusedReason.NOT_READY)


def two_voters_changed_at_once(patch: pytest.MonkeyPatch) -> None:
    def swap(self: Memberships, event: ChangeRequested) -> None:
        """The first learner for the first voter, in one step."""
        now = self.current
        if now.learners and len(now.voters) > 1 and event.membership.voters != now.voters:
            event.membership = Membership((*now.voters[1:], now.learners[0]), now.learners[1:])
        original(self, event)

    original = Memberships.on_change_requested
    patch.setattr(Memberships, "on_change_requested", swap)
    _allowing(patch, RefusedReason.INVALID_CHANGE)


def configuration_kept_on_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Memberships, "truncated", lambda _self, _from_index: None)


def learner_counted_in_quorum(patch: pytest.MonkeyPatch) -> None:
    set_peers = Replication._set_peers

    def generous(self: Replication, next_index: int) -> None:
        set_peers(self, next_index)
        self._voters = tuple(self.peers.values())

    patch.setattr(Replication, "_set_peers", generous)


def learner_refuses_its_vote(patch: pytest.MonkeyPatch) -> None:
    may_grant = Elections._may_grant

    def shy(self: Elections, source: NodeId, message: VoteRequest) -> bool:
        return self._core.memberships.is_voter and may_grant(self, source, message)

    patch.setattr(Elections, "_may_grant", shy)


# Reads


def read_without_asking_the_others(patch: pytest.MonkeyPatch) -> None:
    def alone(self: Reads) -> None:
        core = self._core
        waiting, self._waiting = self._waiting, []
        for read in waiting:
            if read.source is None:
                core.emit(ReadReady(read.token, core.commit))
            else:
                message = ReadIndexResponse(term=core.term, token=read.token, index=core.commit, ok=True)
                core.send(read.source, message)

    patch.setattr(Reads, "start_round", alone)


def any_answer_confirms_a_read(patch: pytest.MonkeyPatch) -> None:
    on_response = Replication.on_heartbeat_response

    def gullible(self: Replication, source: NodeId, message: HeartbeatResponse) -> None:
        on_response(self, source, replace(message, round=self._core.reads.round))

    patch.setattr(Replication, "on_heartbeat_response", gullible)


def answer_to_an_older_term_keeps_its_round(patch: pytest.MonkeyPatch) -> None:
    older_term = Raft._older_term

    def copied(self: Raft, source: NodeId, message: Any) -> None:
        if isinstance(message, Heartbeat):
            self._core.send(source, HeartbeatResponse(term=self._core.term, round=message.round))
        else:
            older_term(self, source, message)

    patch.setattr(Raft, "_older_term", copied)


def read_before_the_no_op(patch: pytest.MonkeyPatch) -> None:
    start_round = Reads.start_round

    def early(self: Reads) -> None:
        core = self._core
        confirmed, core.confirmed = core.confirmed, True
        try:
            start_round(self)
        finally:
            core.confirmed = confirmed

    patch.setattr(Reads, "start_round", early)
