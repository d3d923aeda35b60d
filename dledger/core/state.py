"""State shared by the parts of the core: hard state, role, log, commit index, and the effects of the current step.

Owns the two rules every part relies on: *the hard state is saved before anything that depends on it* (one record a step, before the
first write or message that follows) and *no message is sent before the term it carries is on stable storage*.  Also the commit index,
which only rises.  The parts (elections, replication ...) reach each other through this object.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from dledger.core.causes import Cause, LeaderLoss
from dledger.core.config import CoreConfig
from dledger.core.effects import CommitTo, Effect, RoleChanged, SaveHardState, Send
from dledger.core.log_index import LogIndex
from dledger.core.messages import Message
from dledger.core.saved import LogView, Saved
from dledger.core.types import NodeId, Role
from dledger_wire.check import InvariantBrokenError, require

if TYPE_CHECKING:
    from dledger.core.election import Elections
    from dledger.core.following import Following
    from dledger.core.membership import Memberships
    from dledger.core.reads import Reads
    from dledger.core.replication import Replication
    from dledger.core.silence import Silence
    from dledger.core.soundness import Soundness
    from dledger.core.sync_times import SyncTimes
    from dledger.core.transfer import Transfers


class DrawSource(Protocol):
    """The randomness the core needs (``random.Random`` satisfies it)."""

    def randrange(self, start: int, stop: int) -> int: ...
    def getrandbits(self, k: int) -> int: ...


class Storage(Enum):
    """FULL: keeps what it has and takes nothing new.  FAILED: nothing written may be trusted, the node is finished."""

    OK = "ok"
    FULL = "full"
    FAILED = "failed"


class CoreState:
    """Shared by the parts of one core; see the module."""

    elections: Elections
    replication: Replication
    following: Following
    memberships: Memberships
    reads: Reads
    transfers: Transfers
    silence: Silence
    soundness: Soundness
    syncs: SyncTimes

    def __init__(
        self, config: CoreConfig, node_id: NodeId, store: str, saved: Saved, view: LogView, random: DrawSource, now_ms: int
    ) -> None:
        self.config = config
        self.node_id = node_id
        self.store = store
        self.random = random
        self.now_ms = now_ms
        self.term = saved.hard_state.term
        self.vote = saved.hard_state.vote
        self.hard_state_durable = True
        self.hard_state_dirty = False
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.confirmed = False
        self.log = LogIndex(saved, view)
        self.commit = max(saved.commit, saved.before.index)
        self.applied = self.commit
        self.storage = Storage.OK
        self.low_on_space = False
        self.sheds = False  # entries of any age may be deleted here for want of space
        self.left_behind = False  # the group goes on without this replica
        self.yields = ""  # why this node leads only as a last resort
        self.effects: list[Effect] = []
        self.loss = LeaderLoss(Cause.START, None, None, now_ms)
        self._reported: tuple[Role, int, NodeId | None, bool] = (self.role, self.term, None, False)
        require(self.log.terms.last_term <= self.term, "hard state of term %d is older than the log (%s)", self.term, self.log.last)
        require(self.commit <= self.log.last.index, "committed up to %d, log ends at %s", self.commit, self.log.last)

    # Effects

    def emit(self, effect: Effect) -> None:
        """Add an effect that rests on the hard state (a write) or asks for no I/O."""
        if self.hard_state_dirty:
            self.save_hard_state()
        self.effects.append(effect)

    def send(self, to: NodeId, message: Message, *, after_sync: bool = False) -> None:
        if self.hard_state_dirty:
            self.save_hard_state()
        self.effects.append(Send(to, message, after_sync, not self.hard_state_durable))

    def promise(self, term: int, vote: NodeId | None) -> None:
        """A new hard state; terms never go back and a vote is never taken back within its term."""
        require(
            term > self.term or (term == self.term and self.vote in (None, vote)), "%s, %s after %s", term, vote, (self.term, self.vote)
        )
        if term > self.term:
            self.confirmed = False
        if (term, vote) != (self.term, self.vote):
            self.term, self.vote = term, vote
            self.hard_state_dirty = True
            if self.hard_state_durable:
                self.hard_state_durable = False
                self.syncs.promised()

    def save_hard_state(self) -> None:
        """Put the changed hard state into the write stream."""
        self.hard_state_dirty = False
        self.effects.append(SaveHardState(self.term, self.vote))

    def publish_role(self) -> None:
        """Report a change of role, term, leader or confirmation to the driver."""
        now = (self.role, self.term, self.leader, self.confirmed)
        if now != self._reported:
            self._reported = now
            self.effects.append(RoleChanged(*now, self.loss, self.now_ms - self.loss.since_ms))

    def leader_lost(self, cause: Cause, source: NodeId | None = None) -> None:
        """Call before the leader that is known is replaced; the first cause stays until another leader was known."""
        if self.leader is not None:
            since_ms = self.now_ms if self.role is Role.LEADER else self.elections.contact_ms
            self.loss = LeaderLoss(cause, self.leader, source, since_ms)

    # Commit index

    def commit_to(self, index: int) -> None:
        """Everything up to ``index`` is committed (never lowers)."""
        if index <= self.commit:
            return
        if index > self.log.last.index:
            raise InvariantBrokenError(f"commit {index} beyond the log's end {self.log.last}")
        self.commit = index
        self.effects.append(CommitTo(index))
        self.log.committed(index)
        if self.soundness.suspect:
            self.soundness.committed()

    @property
    def takes_entries(self) -> bool:
        return self.storage is Storage.OK
