"""Leadership transfer: on request, because the leader left the group, or because its disk fails.

Owns the transfer in progress.  Meanwhile proposals are refused.  The target is brought up to date, then ordered to campaign at once.  A
transfer is aborted after an election timeout, and the time of its writes where disks are slow.  The old leader learns that it succeeded
from the new leader's first message.
"""

from __future__ import annotations

from dledger.core.causes import Cause
from dledger.core.effects import Refused, RefusedReason, TransferEnded
from dledger.core.events import TransferRequested
from dledger.core.messages import TimeoutNow
from dledger.core.progress import Progress, ProgressState
from dledger.core.state import CoreState
from dledger.core.types import NodeId, Role

WRITES = 3  # of a transfer: the target's last entry, its vote, and another one's


class Transfers:
    """At most one transfer at a time."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self.target: NodeId | None = None
        self._cause = Cause.TRANSFER
        self._ordered = False
        # After stepping down: the expected new leader.
        self._awaited: NodeId | None = None
        self.deadline_ms: int | None = None  # while one is under way, or its success is not known yet
        self._next_hand_over_ms = 0

    @property
    def cause(self) -> Cause | None:
        """Why leadership is being handed over; None when it is not."""
        return self._cause if self.target is not None else None

    @property
    def pending(self) -> bool:
        return self.target is not None

    def on_requested(self, event: TransferRequested) -> None:
        core = self._core
        if core.role is not Role.LEADER:
            core.emit(Refused(RefusedReason.NOT_LEADER, core.leader))
            return
        target = event.target
        if target is None:
            best = core.replication.best_voter(in_time=True)
            target = best.node if best is not None else None
        if target == core.node_id and self.target is not None:
            self._end(done=False)  # back to ourselves: called off
        elif target is None or target == core.node_id or target not in core.memberships.current.voters:
            core.emit(Refused(RefusedReason.UNKNOWN_TARGET, core.leader))
        elif target != self.target:  # asked again for the same one, it is not given more time
            self._begin(target, event.cause)

    def _begin(self, target: NodeId, cause: Cause) -> None:
        core = self._core
        if self.target is not None:
            self._end(done=False)
        self.target, self._cause, self._ordered = target, cause, False
        self.deadline_ms = core.now_ms + core.config.election_timeout_ms + WRITES * core.syncs.others_slow_ms
        progress = core.replication.peers[target]
        if progress.state is ProgressState.PROBE:
            progress.paused = False
        core.replication.replicate(progress)
        self.advanced(progress)

    def hand_over(self, cause: Cause) -> None:
        """Transfer leadership because this node's disk is full or slow; retried later if no voter takes it.

        A leader that is only low on space serves better than another such one: it goes on while no voter has room.  One whose disk is full
        can neither acknowledge nor vote afterwards: it goes on, for reads, while the others are no majority without it.  A slow one goes on
        where others are no faster.
        """
        core = self._core
        if self.target is not None or core.now_ms < self._next_hand_over_ms:
            return
        slow_ms = core.syncs.log_waiting_ms if cause is Cause.DISK_SLOW else None
        best = core.replication.best_voter(in_time=True, faster_than_ms=slow_ms)
        if best is None or best.state is not ProgressState.REPLICATE:
            return
        if cause is Cause.DISK_LOW and not best.is_able_to_lead:
            return
        if cause is Cause.DISK_FULL and not core.replication.others_can_go_on(best):
            return
        self._next_hand_over_ms = core.now_ms + 4 * core.config.election_timeout_ms
        self._begin(best.node, cause)

    def advanced(self, progress: Progress) -> None:
        """The target may have everything now: order it to take over."""
        core = self._core
        if progress.node == self.target and not self._ordered and progress.match == core.log.last.index:
            self._ordered = True
            core.send(progress.node, TimeoutNow(term=core.term, cause=self._cause))

    def on_heartbeat(self) -> None:
        """The order may have been lost."""
        if self.target is not None and self._ordered:
            self._core.send(self.target, TimeoutNow(term=self._core.term, cause=self._cause))

    def resign(self, cause: Cause) -> None:
        """This leader is no longer a member, or cannot write: order the best voter to take over, then step down."""
        core = self._core
        best = core.replication.best_voter()
        if best is not None:
            core.send(best.node, TimeoutNow(term=core.term, cause=cause))
        core.elections.become_follower(core.term, None, cause)

    # Ends

    def _end(self, *, done: bool) -> None:
        target, self.target, self._awaited, self.deadline_ms = self.target or self._awaited, None, None, None
        if target is not None:
            self._core.emit(TransferEnded(target, done))

    def target_gone(self) -> None:
        if self.target is not None:
            self._end(done=False)

    def leadership_lost(self) -> None:
        """The target may have taken over; its first message confirms that."""
        if self.target is not None:
            self._awaited, self.target = self.target, None
            self.deadline_ms = self._core.now_ms + self._core.config.election_timeout_ms

    def leader_known(self, leader: NodeId) -> None:
        if self._awaited is not None:
            self._end(done=leader == self._awaited)

    def on_tick(self) -> None:
        if self.deadline_ms is not None and self.deadline_ms <= self._core.now_ms:
            self._end(done=False)
