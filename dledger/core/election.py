"""Elections: pre-vote, votes, and every change of role.

Owns the role; ``election_timer`` owns the deadline.  Rules beyond the paper, always on:

*Pre-vote* (dissertation 9.6): a node asks whether it could win before it raises its term.  A node that was partitioned returns quietly.
*Stickiness* (4.2.3): a node with a live leader rejects votes and pre-votes and does not adopt the term, unless that leader ordered the
campaign.
*Prompt pre-vote*: a broken stream from the leader ends the wait.  Each voter has its own time slot by rank, so collisions are rare.  A live
leader is not disturbed: the other voters still hear from it and reject.  Rounds follow each other quickly for a while (``election_timer``).
*Yielding*: of two simultaneous pre-votes, the one with the weaker claim (older log, then larger id) is abandoned.
*Priority* biases the timeout only (positive: lower half and the earliest slot; negative: upper half); a more complete log always wins.  A
deprioritized node waits an election timeout longer than every other node, and ignores broken streams.  Returning leadership to a
preferred node is requested from outside (``TransferRequested``), where the priorities of other nodes are known.

A vote request is sent only after the candidate's own vote is on stable storage.  Otherwise a crash could erase the candidacy, and
responses to it could elect the same node, in the same term, with a shorter log.  No vote waits for the log's writes (``driver.py``).
"""

from __future__ import annotations

from dledger.core.causes import Cause, LeaderLoss
from dledger.core.election_timer import LONGEST_DRAW, ElectionTimer
from dledger.core.messages import TimeoutNow, VoteRequest, VoteResponse
from dledger.core.quorum import VoteTally
from dledger.core.state import CoreState
from dledger.core.types import MAX_TERM, NodeId, Role
from dledger_wire.check import require


class Elections:
    """Role changes of one core."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self._tally: VoteTally | None = None
        self._request: VoteRequest | None = None  # what this round asks
        self.contact_ms = 0
        self._leader_lost = False
        self._sought_ms: dict[NodeId, int] = {}  # when a voter that hears no leader asked this node, which hears one
        self.timer = ElectionTimer(core)

    # Time

    def deprioritize(self, *, on: bool) -> None:
        """Let others stand first from now on, or no more."""
        self.timer.deprioritize(on=on)

    def on_leader_contact(self) -> None:
        """A message of the current leader arrived."""
        if self._core.leader is not None:
            self._core.silence.leader_seen(self._core.leader)
        self.contact_ms = self._core.now_ms
        self._leader_lost = False
        self.timer.leader_known()
        self.timer.reset()

    @property
    def has_live_leader(self) -> bool:
        core = self._core
        if core.role is Role.LEADER:
            return True
        return core.leader is not None and not self._leader_lost and core.now_ms - self.contact_ms < core.silence.timeout_ms

    def on_tick(self) -> None:
        core = self._core
        if core.role is Role.LEADER or not self.timer.is_due:
            return
        if not core.hard_state_durable:
            self.timer.wait_for_disk()  # another term would need another write, and no answer can have come to this one's
            return
        if self.may_campaign:
            self.start_pre_vote(self._silence)
            return
        if core.role not in (Role.FOLLOWER, Role.LEARNER) or core.leader is not None:
            self.become_follower(core.term, None, self._silence)
        self.timer.reset()

    @property
    def _silence(self) -> Cause:
        """Why the leader counts as lost when time is up."""
        return Cause.LINK_LOST if self._leader_lost else Cause.SILENT

    @property
    def may_campaign(self) -> bool:
        core = self._core
        if core.left_behind or not core.takes_entries or core.term >= MAX_TERM or not core.soundness.may_stand:
            return False
        return core.memberships.is_electable and core.following.snapshot_wanted is None

    def on_campaign(self) -> None:
        if self._core.role is not Role.LEADER and self.may_campaign:
            self.start_pre_vote(Cause.REQUESTED)

    # A broken stream

    def on_leader_lost(self, peer: NodeId) -> None:
        """The stream from ``peer`` broke.  A candidate that got this node's vote and sent nothing since may have led."""
        core = self._core
        if peer != (core.leader or core.vote) or core.role is not Role.FOLLOWER or not self.may_campaign:
            return
        self._leader_lost = core.leader is not None
        if not self.timer.deprioritized:
            self.timer.begin_quick_rounds()
            self.timer.wait_for_slot(sorted(voter for voter in core.memberships.current.voters if voter != peer))

    # Roles

    def become_follower(self, term: int, leader: NodeId | None, cause: Cause, source: NodeId | None = None) -> None:
        """Follow ``leader`` in ``term``; keeps a vote given in the same term.  ``cause``, ``source``: why the leader before is none."""
        core = self._core
        old_role, old_leader, newer = core.role, core.leader, term > core.term
        if newer or leader != old_leader:
            # A leader that hands over hears of it by the newer term of its target.
            handed_over = cause is Cause.HIGHER_TERM and source is not None and source == core.transfers.target
            core.leader_lost(core.transfers.cause or cause if handed_over else cause, source)
        if newer:
            core.promise(term, None)
        core.role = core.memberships.follower_role
        core.leader = leader
        core.confirmed = False
        self._tally = None
        if leader is not None:
            self.on_leader_contact()
        elif old_role is not core.role:
            self.timer.next_round()
        if leader is None:
            self._leader_lost = False
        core.publish_role()
        if old_role is Role.LEADER:
            core.silence.delayed(core.replication.next_heartbeat_ms)
            core.replication.stop()
            core.reads.leadership_lost()
            core.transfers.leadership_lost()
        elif newer or leader != old_leader:
            core.reads.leader_changed()
        if leader is not None:
            core.transfers.leader_known(leader)

    def start_pre_vote(self, cause: Cause) -> None:
        """Ask whether an election could be won.  ``cause``: why there is no leader any more."""
        core = self._core
        require(core.role is not Role.LEADER, "a leader asks for votes")
        if core.leader is not None:
            self.timer.begin_quick_rounds()
        core.leader_lost(cause)
        self._begin_round(Role.PRE_CANDIDATE)
        self.timer.next_round()
        tally = self._ask(VoteRequest(term=core.term + 1, last=core.log.last, pre_vote=True))
        if core.memberships.casts_own_vote:
            tally.record(core.node_id, True)
        self._close_round_if_decided()

    def become_candidate(self, *, by_transfer: bool) -> None:
        """Stand for election in the next term.  The own vote counts once it is on stable storage."""
        core = self._core
        require(core.role is not Role.LEADER, "a leader stands for election")
        core.promise(core.term + 1, core.node_id)
        self._begin_round(Role.CANDIDATE)
        self.timer.stand()
        self._ask(VoteRequest(term=core.term, last=core.log.last, transfer=by_transfer))

    def _ask(self, request: VoteRequest) -> VoteTally:
        core = self._core
        former = core.memberships.former
        tally = self._tally = VoteTally(core.memberships.current.voters, former.voters if former is not None else ())
        self._request = request
        for voter in core.memberships.other_voters:
            core.send(voter, request)
        if core.soundness.suspect:
            self._suspected(tally, core.node_id)
        return tally

    def _suspected(self, tally: VoteTally, voter: NodeId) -> None:
        """A vote of ``voter`` proves nothing; with the first one, those are asked that only the configuration before names."""
        core = self._core
        if not tally.suspects and self._request is not None:
            for other in tally.only_former:
                if other != core.node_id:
                    core.send(other, self._request)
        tally.suspects.add(voter)

    def _begin_round(self, role: Role) -> None:
        core = self._core
        had_leader = core.leader is not None
        core.role, core.leader, core.confirmed = role, None, False
        self._leader_lost = False
        core.publish_role()
        if had_leader:
            core.reads.leader_changed()

    def become_leader(self) -> None:
        core = self._core
        require(core.role is Role.CANDIDATE and core.hard_state_durable, "%s becomes leader", core.role)
        core.role, core.leader = Role.LEADER, core.node_id
        self._tally = None
        self.timer.leader_known()
        core.publish_role()
        core.transfers.leader_known(core.node_id)
        core.replication.start()

    # Votes asked for

    def on_vote_request(self, source: NodeId, message: VoteRequest) -> None:
        core = self._core
        if self.has_live_leader and not message.transfer:
            self._sought_ms[source] = core.now_ms
            self._answer(source, message, granted=False)
            return
        if message.term > core.term and not message.pre_vote:
            self.become_follower(message.term, None, Cause.HIGHER_TERM, source)
        if not self._may_grant(source, message):
            self._answer(source, message, granted=False)
            return
        if message.pre_vote:
            self._make_way(source, message)
        else:
            if core.role is Role.PRE_CANDIDATE:
                self.become_follower(core.term, None, core.loss.cause)
            core.promise(core.term, source)
            self.timer.voted()
        self._answer(source, message, granted=True)

    def seekers(self) -> tuple[NodeId, ...]:
        """The other voters that asked for votes so lately that they do so still, if nothing changed."""
        if not self._sought_ms:
            return ()
        since_ms, voters = self._core.now_ms - LONGEST_DRAW * self._core.config.election_timeout_ms, self._core.memberships.current.voters
        self._sought_ms = {node: at_ms for node, at_ms in self._sought_ms.items() if at_ms > since_ms}
        return tuple(node for node in self._sought_ms if node in voters)

    def _may_grant(self, source: NodeId, message: VoteRequest) -> bool:
        core = self._core
        last = core.log.last
        if (message.last.term, message.last.index) < (last.term, last.index):
            return False
        if message.pre_vote and message.term > core.term:
            return True
        if message.term != core.term:
            return False
        return core.vote == source or (core.vote is None and core.leader is None)

    def _make_way(self, source: NodeId, message: VoteRequest) -> None:
        """Yield to the node that asked first."""
        core = self._core
        last = core.log.last
        asks = core.role is Role.PRE_CANDIDATE
        if asks and (message.last.term, message.last.index) == (last.term, last.index) and source > core.node_id:
            return
        if not self.timer.may_yield(source):
            return
        if asks:
            self.become_follower(core.term, None, core.loss.cause)
        if core.role in (Role.FOLLOWER, Role.LEARNER):
            self.timer.let_pass()

    def _answer(self, to: NodeId, message: VoteRequest, *, granted: bool) -> None:
        term = message.term if granted else self._core.term
        suspect = self._core.soundness.suspect
        sync_ms = self._core.syncs.own_ms
        answer = VoteResponse(term=term, granted=granted, pre_vote=message.pre_vote, suspect=suspect, sync_ms=sync_ms)
        self._core.send(to, answer)

    # Answers

    def on_vote_response(self, source: NodeId, message: VoteResponse) -> None:
        core, tally = self._core, self._tally
        if tally is None:
            return
        if message.pre_vote:
            counts = core.role is Role.PRE_CANDIDATE and (not message.granted or message.term == core.term + 1)
        else:
            counts = core.role is Role.CANDIDATE and message.term == core.term
        core.syncs.reported(message.sync_ms)
        if counts and message.suspect:
            self._suspected(tally, source)
        if counts and tally.record(source, message.granted):
            self._close_round_if_decided()

    def on_hard_state_stored(self, term: int, vote: NodeId | None) -> None:
        core = self._core
        if (term, vote) != (core.term, core.vote):
            return
        core.hard_state_durable = True
        core.syncs.promise_kept()
        tally = self._tally
        if core.role is Role.CANDIDATE and tally is not None:
            if core.memberships.casts_own_vote:
                tally.record(core.node_id, True)
            self.timer.own_vote_stored()
            self._close_round_if_decided()
        elif core.role is not Role.LEADER and core.leader is None and vote is not None and core.syncs.slow_ms:
            self.timer.voted()  # it leaves only now

    def _close_round_if_decided(self) -> None:
        core, tally = self._core, self._tally
        if tally is None:
            return
        if tally.won and core.role is Role.PRE_CANDIDATE:
            self.become_candidate(by_transfer=False)
        elif tally.won and core.hard_state_durable:
            self.become_leader()
        elif tally.lost:
            self.become_follower(core.term, None, core.loss.cause)

    # Leadership handed over

    def on_timeout_now(self, source: NodeId, message: TimeoutNow) -> None:
        """The leader orders this node to take over."""
        core = self._core
        if message.term != core.term or core.role is not Role.FOLLOWER or core.leader not in (None, source):
            return
        if self.may_campaign:
            if core.leader is None:  # that ``source`` leads is known by its order only
                core.loss = LeaderLoss(message.cause, source, source, core.now_ms)
            core.leader_lost(message.cause, source)
            self.become_candidate(by_transfer=True)
