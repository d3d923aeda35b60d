"""The follower's side: appending a leader's entries, following its commit index, and requesting a snapshot when entries are gone.

Owns four rules.  *A follower truncates its log only at the first entry that really conflicts, never at or below its commit index.*  *What
it commits is bounded by what the current request verified* (a longer tail may come from another leader).  *It acknowledges the last entry
that the request verified, once that entry is on stable storage*; it never acknowledges its own last entry instead.
*A heartbeat commits nothing unless the entry that it names is in the log.*
"""

from __future__ import annotations

from dledger.core.causes import Cause
from dledger.core.contradictions import committed_clash
from dledger.core.effects import Append, CutTail, Diverged, FetchSnapshot
from dledger.core.events import LogTrimmed, SnapshotInstalled
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse, SnapshotOffer
from dledger.core.state import CoreState, Storage
from dledger.core.types import ZERO_ENTRY, EntryId, NodeId, Role
from dledger_wire.check import require


class Following:
    """Log and commit index under a leader."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        # The snapshot requested; None again when a leader's entries turn out to fit.
        self.snapshot_wanted: FetchSnapshot | None = None
        # The group's commit index as any leader last sent it, and when.  For status only; nothing is decided by it.
        self.seen_commit = 0
        self.seen_ms: int | None = None
        self._kept, self._kept_ms = (0, 0), 0

    def _follow(self, source: NodeId, newest_commit: int) -> None:
        """``source`` leads the current term, and has committed up to ``newest_commit``."""
        core = self._core
        self.seen_commit, self.seen_ms = max(self.seen_commit, newest_commit), core.now_ms
        require(core.role is not Role.LEADER, "two leaders in term %d: %s and %s", core.term, core.node_id, source)
        if core.leader == source and core.role in (Role.FOLLOWER, Role.LEARNER):
            core.elections.on_leader_contact()
        else:
            require(core.leader is None or core.leader == source, "two leaders in term %d: %s and %s", core.term, core.leader, source)
            core.elections.become_follower(core.term, source, Cause.HIGHER_TERM, source)
        if core.soundness.suspect:
            core.soundness.follow()

    # Entries

    def on_append_request(self, source: NodeId, message: AppendRequest) -> None:
        core, prev = self._core, message.prev
        self._follow(source, message.commit)
        clash = committed_clash(core, message) if core.config.loses_unsynced else None
        if clash is not None:
            if message.commit >= clash:
                core.emit(Diverged(source, clash))
            return
        # What is committed here is the same everywhere, whether or not it is still in the log.
        if prev.index > core.commit and not core.log.holds(prev):
            self._reject(source, prev)
            return
        if message.entries and not self._take(message):
            return
        self.snapshot_wanted = None
        verified = prev.index + len(message.entries)
        self._learn_commit(min(message.commit, verified))
        # What is committed here the leader has too, unless a majority lost it.
        self._acknowledge(source, verified if core.config.loses_unsynced else max(verified, core.commit))

    def _take(self, message: AppendRequest) -> bool:
        """Add what is new; False when the disk takes nothing (the leader will ask again)."""
        core, entries, first = self._core, message.entries, message.prev.index + 1
        log = core.log
        require(entries[-1].term <= message.term, "entries of term %d from a leader of term %d", entries[-1].term, message.term)
        at = 0
        if log.last.index >= first:
            at = max(core.commit + 1 - first, 0)
            while at < len(entries) and log.term_at(first + at) == entries[at].term:
                at += 1
            if at >= len(entries):
                return True
        if not core.takes_entries:
            return False
        new, new_index = entries[at:], first + at
        if new_index <= log.last.index:
            self._cut(new_index)
        if log.durable == log.last.index:
            core.syncs.log_waits()
        log.append(new)
        core.emit(Append(new_index, new))
        core.memberships.appended(new_index, new)
        return True

    def _cut(self, from_index: int) -> None:
        core = self._core
        require(from_index > core.commit, "conflict at %d with a leader, committed up to %d", from_index, core.commit)
        core.log.truncate(from_index, core.term)
        core.emit(CutTail(from_index))
        core.memberships.truncated(from_index)

    def _learn_commit(self, index: int) -> None:
        core = self._core
        if index > core.commit:
            core.commit_to(index)
            core.memberships.commit_advanced()

    def _acknowledge(self, to: NodeId, index: int) -> None:
        core = self._core
        match = EntryId(index, core.log.term_at(index) or 0)
        core.send(to, AppendResponse(term=core.term, success=True, match=match), after_sync=True)

    def _reject(self, to: NodeId, prev: EntryId) -> None:
        core = self._core
        hint = core.log.terms.last_at_or_below(prev.index, prev.term)
        if hint is None or hint.index < core.commit:
            hint = EntryId(core.commit, core.log.term_at(core.commit) or 0)
        core.send(to, AppendResponse(term=core.term, success=False, match=hint, rejected=prev.index), after_sync=True)

    def refuse_old_leader(self, to: NodeId, message: AppendRequest) -> None:
        """An append of an older term: the answer carries the newer one, so that its sender steps down."""
        core = self._core
        refusal = AppendResponse(term=core.term, success=False, match=ZERO_ENTRY, rejected=message.prev.index)
        core.send(to, refusal)

    # Heartbeats

    def on_heartbeat(self, source: NodeId, message: Heartbeat) -> None:
        core = self._core
        self._follow(source, message.newest_commit)
        core.silence.on_timeout(message.election_timeout_ms, message.wary_ms)
        core.syncs.announced(message.sync_ms)
        self._kept, self._kept_ms = (message.kept_from, message.kept_upto), core.now_ms
        if self._is_of_this_log(message):
            self._learn_commit(min(message.commit, core.log.last.index))
        answer = HeartbeatResponse(
            term=core.term,
            round=message.round,
            late_ms=core.silence.late_ms,
            wary_ms=core.silence.own_wary_ms,
            low_on_space=core.low_on_space or core.storage is Storage.FULL,
            seekers=core.elections.seekers(),
            yields=core.yields,
            keeps_from=0 if core.sheds else core.log.first_index,
            sync_ms=core.syncs.own_ms,
        )
        core.send(source, answer)

    @property
    def kept(self) -> tuple[int, int]:
        """What another replica keeps, by the leader's last heartbeat; (0, 0) when that is too long ago."""
        core = self._core
        return self._kept if core.now_ms - self._kept_ms < core.config.election_timeout_ms else (0, 0)

    def _is_of_this_log(self, message: Heartbeat) -> bool:
        """The leader names what it knows the log that answered it to hold.

        That may have been another one: the folder of before its member was replaced may be in its place now, or under ASYNC_FLUSH a crash
        may have taken its end.  A leader that does not know the term is believed.
        """
        return not message.commit_term or self._core.log.holds(EntryId(message.commit, message.commit_term))

    # Copies

    def on_snapshot_offer(self, source: NodeId, message: SnapshotOffer) -> None:
        core = self._core
        self._follow(source, message.last.index)
        if message.last.index <= core.commit:
            self._acknowledge(source, core.commit)
        elif core.log.holds(message.last):
            self._acknowledge(source, message.last.index)
        elif core.takes_entries:
            # Repeated while the download runs: it continues, or is retried if it failed.
            self.snapshot_wanted = FetchSnapshot(source, message.first_available, message.last)
            core.emit(self.snapshot_wanted)

    def on_snapshot_installed(self, event: SnapshotInstalled) -> None:
        """The log was replaced.  The driver steps this only while ``snapshot_wanted`` is set, and nothing between the swap and this."""
        core = self._core
        self.snapshot_wanted = None
        if event.last.index <= core.commit:
            return
        require(core.role is not Role.LEADER, "a leader's log was replaced")
        require(event.last.term <= core.term, "a snapshot up to %s in term %d", event.last, core.term)
        before, terms = event.before, event.terms
        if before is None:
            before, terms = event.last, ()
        core.log.replace(terms, before, event.last, core.term)
        core.commit_to(event.last.index)
        # The index of the snapshot's configuration is not known here; it is committed, so any index up to the end serves.
        core.memberships.replaced(event.membership, event.last.index)
        if core.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            core.elections.become_follower(core.term, None, core.loss.cause)
        if core.leader is not None:
            self._acknowledge(core.leader, event.last.index)

    def on_log_trimmed(self, event: LogTrimmed) -> None:
        core = self._core
        if event.before.index <= core.log.before.index:
            return
        require(event.first_index == event.before.index + 1, "log trimmed to %d behind %s", event.first_index, event.before)
        require(event.before.index <= core.commit, "log trimmed up to %s, committed %d", event.before, core.commit)
        core.log.trim(event.before)
