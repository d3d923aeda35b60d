"""The leader's side: sending entries, counting acknowledgements, committing, heartbeats and check-quorum.

Owns the progress of every peer and the term's first own entry.  *Only an entry of the leader's own term is committed by counting, and
only replicas that have it on stable storage count*, the leader included: it sends before its own write is done and may commit without
itself.
*An acknowledgement names (index, term) and counts only if that entry is in the leader's log.*  A leader that has not heard from a majority
for an election timeout steps down.

Load is bounded by construction: two windows a peer, one probe at a time, one open heartbeat beyond the regular ones, and a limit on the
leader's uncommitted bytes.  A lost request is detected by the next heartbeat response: a peer whose acknowledgements do not advance while
requests are in flight gets one empty request, which it rejects when entries are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.causes import Cause
from dledger.core.effects import Append, ContradictionKind, PeerContradicts, Refused, RefusedReason, UnregisteredMember
from dledger.core.events import Propose, Stored
from dledger.core.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse, Message, SnapshotOffer
from dledger.core.own_disk import OwnDisk
from dledger.core.progress import Progress, ProgressState
from dledger.core.quorum import majority, quorum_value
from dledger.core.reads import NO_ROUND
from dledger.core.state import CoreState
from dledger.core.sync_times import FASTER
from dledger.core.types import EntryId, EntryKind, EntryMeta, NodeId, Role
from dledger_wire.check import require

# A no-op is a header without a body (docs/reference/formats.md).
NO_OP_SIZE_BYTES = 48


class Replication:
    """What a core does while it leads."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self.peers: dict[NodeId, Progress] = {}
        self._voters: tuple[Progress, ...] = ()
        self._counts_itself = False
        self.term_start = 0
        self.uncommitted_bytes = 0
        self.notice_due_ms: int | None = None
        self.protocol_errors = 0
        self.ack_regressions = 0
        self.losses_reported = 0  # of peers that said themselves what they had lost
        self.next_heartbeat_ms = 0
        self.quorum_deadline_ms = 0
        self._own_disk = OwnDisk(core)

    # Beginning and end

    def start(self) -> None:
        """Elected: an entry of the own term at once, so that what came before can be committed."""
        core = self._core
        self.peers = {}
        self._set_peers(core.log.last.index + 1)
        self.term_start = core.log.last.index + 1
        self.uncommitted_bytes = 0
        self.notice_due_ms = None
        self._own_disk.lead()
        core.silence.lead()
        self.next_heartbeat_ms = core.now_ms + core.silence.heartbeat_interval_ms
        self._set_quorum_deadline()
        self.append_own(EntryMeta(core.term, NO_OP_SIZE_BYTES, EntryKind.NO_OP))

    def stop(self) -> None:
        self.peers = {}
        self._voters = ()

    def members_changed(self) -> None:
        """The configuration in force changed while leading."""
        core = self._core
        voters = self._voters
        self._set_peers(core.log.last.index + 1)
        for peer in self._voters:
            if peer not in voters:
                peer.contact_ms = core.now_ms  # its election timeout starts now, like every peer's
        self._set_quorum_deadline()
        if core.transfers.target is not None and core.transfers.target not in core.memberships.current.voters:
            core.transfers.target_gone()
        self._maybe_commit()
        if core.role is Role.LEADER:
            core.reads.confirm()

    def _set_peers(self, next_index: int) -> None:
        core = self._core
        membership = core.memberships.current
        old, self.peers = self.peers, {}
        for node in (*membership.voters, *membership.learners):
            if node != core.node_id:
                self.peers[node] = old.get(node) or Progress(node, next_index, core.now_ms)
        self._voters = tuple(self.peers[voter] for voter in core.memberships.other_voters)
        self._counts_itself = core.memberships.is_voter

    # Entries

    def on_propose(self, event: Propose) -> None:
        core = self._core
        reason = self._why_not(event.size_bytes)
        if reason is not None:
            core.emit(Refused(reason, core.leader))
            return
        self.append_own(EntryMeta(core.term, event.size_bytes, event.kind))

    def _why_not(self, size_bytes: int) -> RefusedReason | None:
        core = self._core
        if core.role is not Role.LEADER:
            return RefusedReason.NOT_LEADER
        if not core.takes_entries:
            return RefusedReason.STORAGE
        if core.transfers.pending or not self._counts_itself:
            return RefusedReason.TRANSFERRING  # one that leaves the group goes as soon as that is committed
        if self.uncommitted_bytes and self.uncommitted_bytes + size_bytes > core.config.max_uncommitted_bytes:
            return RefusedReason.BUSY
        return None

    def append_own(self, meta: EntryMeta) -> None:
        """Append an entry of this leader and send it to all peers."""
        core = self._core
        if core.log.durable == core.log.last.index:
            core.syncs.log_waits()
        core.log.append((meta,))
        self.uncommitted_bytes += meta.size_bytes
        index = core.log.last.index
        core.emit(Append(index, (meta,)))
        peers = list(self.peers.values())
        if meta.kind is EntryKind.CONFIG:
            # Removed members get it too, so that they stop campaigning.
            self._send_all(peers)
            core.memberships.appended(index, (meta,))
            peers = list(self.peers.values())
        self._send_all(peers)

    def _send_all(self, peers: list[Progress]) -> None:
        for peer in peers:
            self.replicate(peer)

    def replicate(self, peer: Progress) -> None:
        """Send what the peer lacks, as far as its state and window allow."""
        if peer.state is ProgressState.REPLICATE:
            config, last = self._core.config, self._core.log.last.index
            while peer.next <= last:
                room = peer.room(config.max_inflight_messages, config.max_inflight_bytes)
                if room <= 0 or not self._send_batch(peer, min(room, config.max_append_bytes)):
                    return
        elif peer.state is ProgressState.PROBE and not peer.paused:
            peer.paused = True
            self._send_batch(peer, self._core.config.max_append_bytes)

    def _send_batch(self, peer: Progress, max_bytes: int) -> bool:
        """Send one request from ``peer.next`` on; False when nothing more can go now."""
        core = self._core
        log, first = core.log, peer.next
        prev_term = log.term_at(first - 1)
        entries = log.metas(first, max_bytes) if prev_term is not None and first <= log.last.index else ()
        if prev_term is None or (not entries and first <= log.last.index):
            self._offer_snapshot(peer)
            return False
        size = sum([entry.size_bytes for entry in entries])
        if size > max_bytes and peer.inflight:
            return False  # a large entry waits until the window is empty, then goes alone
        request = AppendRequest(term=core.term, prev=EntryId(first - 1, prev_term), entries=entries, commit=core.commit)
        core.send(peer.node, request)
        verified = first - 1 + len(entries)
        peer.commit_sent = max(peer.commit_sent, min(core.commit, verified))
        if peer.state is ProgressState.REPLICATE and entries:
            peer.sent(verified, size)
        return True

    def _send_empty(self, peer: Progress) -> None:
        """Ask whether the peer has everything that was sent: a request without entries behind the last one."""
        core = self._core
        prev_term = core.log.term_at(peer.next - 1)
        if prev_term is None:
            self._offer_snapshot(peer)  # trimmed here meanwhile
            return
        core.send(peer.node, AppendRequest(term=core.term, prev=EntryId(peer.next - 1, prev_term), entries=(), commit=core.commit))

    def _offer_snapshot(self, peer: Progress) -> None:
        core = self._core
        peer.become_snapshot()
        last = EntryId(core.commit, core.log.term_at(core.commit) or 0)
        core.send(peer.node, SnapshotOffer(term=core.term, first_available=core.log.first_index, last=last))

    # Acknowledgements

    def on_append_response(self, source: NodeId, message: AppendResponse) -> None:
        core, peer = self._core, self.peers.get(source)
        if peer is None:
            return
        peer.answered(core.now_ms)
        if not message.success:
            self._on_rejection(peer, message)
            return
        match = message.match
        if match.index > core.log.last.index:
            self.protocol_errors += 1
            text = f"acknowledges entry {match.index}, and the log ends at entry {core.log.last.index}"
            core.emit(PeerContradicts(source, ContradictionKind.BEYOND_LOG, text))
        elif core.log.holds(match):
            if peer.acked(match.index):
                self._maybe_commit()
                if core.role is not Role.LEADER:
                    return
                core.transfers.advanced(peer)
            self.replicate(peer)
            self.notify_commit(peer)

    def _on_rejection(self, peer: Progress, message: AppendResponse) -> None:
        hint = message.match
        found = self._core.log.terms.last_at_or_below(hint.index, hint.term)
        hint_index = found.index if found is not None else min(hint.index, self._core.log.before.index - 1)
        match = peer.match
        if not peer.rejected(message.rejected, hint_index, loses_unsynced=self._core.config.loses_unsynced):
            return
        if peer.match < match:
            self.ack_regressions += 1
            text = f"acknowledged entry {match}, and has no more than entry {peer.match}"
            self._core.emit(PeerContradicts(peer.node, ContradictionKind.DENIED, text))
        self.replicate(peer)

    def on_stored(self, event: Stored) -> None:
        """This node's own entries reached stable storage."""
        core = self._core
        if core.log.stored(event.last):
            core.syncs.log_stored()
            if core.role is Role.LEADER:
                self._maybe_commit()

    def _maybe_commit(self) -> None:
        core = self._core
        values = [peer.match for peer in self._voters]
        if self._counts_itself:
            values.append(core.log.durable)
        if not values:
            return
        index = quorum_value(values)
        if index < core.memberships.index:
            return  # the voters of a configuration count nothing below it: until it is committed, others may elect without them
        if index > core.commit and index >= self.term_start:
            self._commit(index)

    def _commit(self, index: int) -> None:
        core = self._core
        self.uncommitted_bytes -= core.log.size_between(max(core.commit + 1, self.term_start), index)
        require(self.uncommitted_bytes >= 0, "uncommitted bytes miscounted: %d", self.uncommitted_bytes)
        core.commit_to(index)
        if not core.confirmed:
            core.confirmed = True
            core.publish_role()
            core.soundness.confirmed()
            core.reads.start_round()
        core.memberships.commit_advanced()
        if not core.memberships.is_voter and not core.memberships.change_in_flight:
            core.transfers.resign(Cause.REMOVED)
            return
        self.notice_due_ms = None  # later entries carried the commit index
        for peer in self.peers.values():
            self.notify_commit(peer)

    def notify_commit(self, peer: Progress) -> None:
        """Let an idle peer know of a new commit index soon; one that gets entries meanwhile learns it from those."""
        core = self._core
        if not self._owes_notice(peer):
            return
        if not core.config.commit_notice_delay_ms:
            self._send_heartbeat(peer)
        elif self.notice_due_ms is None:
            self.notice_due_ms = core.now_ms + core.config.commit_notice_delay_ms

    def _owes_notice(self, peer: Progress) -> bool:
        return not peer.notice_open and peer.commit_sent < min(self._core.commit, peer.match) and peer.idle

    def _send_due_notices(self) -> None:
        self.notice_due_ms = None
        for peer in self.peers.values():
            if self._owes_notice(peer):
                self._send_heartbeat(peer)

    # Heartbeats

    def _send_heartbeat(self, peer: Progress) -> None:
        core = self._core
        commit = min(core.commit, peer.match)
        peer.commit_sent = max(peer.commit_sent, commit)
        commit_term = core.log.term_at(commit)
        if commit_term is None:  # no longer in this log: the peer will learn it with the copy that it needs
            commit = commit_term = 0
        peer.notice_open = True
        message = Heartbeat(
            term=core.term,
            commit=commit,
            round=core.reads.round,
            newest_commit=core.commit,
            commit_term=commit_term,
            election_timeout_ms=core.silence.agreed_ms,
            wary_ms=core.silence.wary_ms,
            sync_ms=core.syncs.group_ms,
        )
        message.kept_from, message.kept_upto = self.kept_without(peer)
        core.send(peer.node, message)

    def ask_voters(self) -> None:
        """Open a read round."""
        for peer in self._voters:
            self._send_heartbeat(peer)

    def voter_rounds(self, own: int) -> list[int]:
        """The newest round each voter has answered; ``own`` stands for this node's."""
        rounds = [peer.round for peer in self._voters]
        if self._counts_itself:
            rounds.append(own)
        return rounds

    def on_heartbeat_response(self, source: NodeId, message: HeartbeatResponse) -> None:
        core, peer = self._core, self.peers.get(source)
        if peer is None or message.round == NO_ROUND:
            return
        peer.answered(core.now_ms)
        peer.notice_open = False
        peer.low_on_space, peer.seekers, peer.copied_bytes = message.low_on_space, message.seekers, message.copied_bytes
        peer.yields, peer.keeps_from, peer.sync_ms = message.yields, message.keeps_from, message.sync_ms
        if peer in self._voters:
            core.silence.reported(source, message.late_ms, message.wary_ms)
            core.syncs.reported(message.sync_ms)
        if peer.round < message.round <= core.reads.round:
            peer.round = message.round
            core.reads.confirm()
        if peer.probe_due:
            peer.probe_due = False
            if peer.state is ProgressState.PROBE:
                peer.paused = False
                self.replicate(peer)
            elif peer.state is ProgressState.SNAPSHOT:
                self._offer_snapshot(peer)
            else:
                self._send_empty(peer)
        self.notify_commit(peer)

    def on_tick(self) -> None:
        """Heartbeats and the check for a majority."""
        core = self._core
        if self.notice_due_ms is not None and core.now_ms >= self.notice_due_ms:
            self._send_due_notices()
        if core.now_ms >= self.quorum_deadline_ms:
            self._set_quorum_deadline()
            if core.now_ms >= self.quorum_deadline_ms:
                core.elections.become_follower(core.term, None, Cause.NOT_CONFIRMED)
                return
        if core.now_ms < self.next_heartbeat_ms:
            return
        late_ms = core.now_ms - self.next_heartbeat_ms
        core.silence.beats(self.next_heartbeat_ms)
        self.next_heartbeat_ms = core.now_ms + core.silence.heartbeat_interval_ms
        for peer in self.peers.values():
            stalled = peer.match == peer.heartbeat_match and bool(peer.inflight)
            peer.probe_due = stalled or peer.state is not ProgressState.REPLICATE
            peer.heartbeat_match = peer.match
            self._send_heartbeat(peer)
        core.transfers.on_heartbeat()
        self._set_quorum_deadline()
        self._own_disk.watch(late_ms, counts=self._counts_itself)

    def _set_quorum_deadline(self) -> None:
        """An election timeout after a majority was last heard from."""
        contacts = [peer.contact_ms for peer in self._voters]
        if self._counts_itself:
            contacts.append(self._core.now_ms)
        seen_ms = quorum_value(contacts) if contacts else self._core.now_ms
        self.quorum_deadline_ms = seen_ms + self._core.config.election_timeout_ms

    # Peers

    def accepts_answer(self, node: NodeId, store: str, message: Message) -> bool:
        """``node`` answered on the folder ``store``; whether it is the folder that answers under that name.

        A learner's folder is the one that answers a request to this learner.  What comes late from the folder that the node had before it
        was removed and added again names entries of before.
        """
        peer = self.peers.get(node)
        if peer is None or peer.store == store:
            return True
        if peer.store:
            return False
        if node not in self._core.memberships.current.voters:
            if not isinstance(message, AppendResponse):
                return True
            if (message.match.index if message.success else message.rejected) < peer.added_at:
                return False
        peer.store = store
        if not self._core.memberships.current.store_of(node):
            self._core.emit(UnregisteredMember(node))
        return True

    def known_stores(self) -> dict[NodeId, str]:
        """The folders that this leader has been answered from, and its own."""
        return {self._core.node_id: self._core.store} | {peer.node: peer.store for peer in self.peers.values()}

    def on_peer_lost(self, node: NodeId) -> None:
        """What was under way to the peer is lost."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.answers = False
        if peer is not None and peer.state is not ProgressState.SNAPSHOT:
            peer.become_probe()
            peer.paused = True
            peer.notice_open = False

    def on_peer_suspect(self, node: NodeId) -> None:
        """The peer lost power: what it acknowledged counts no more until it is acknowledged again."""
        peer = self.peers.get(node)
        if peer is not None:
            self.losses_reported += peer.match > 0
            peer.forget(self._core.log.last.index + 1)
            self.replicate(peer)

    def best_voter(self, *, in_time: bool = False, faster_than_ms: int | None = None) -> Progress | None:
        """The voter that has most of the log among those heard from lately.

        ``in_time``: it is brought up to date before it takes over, so one that is able to lead comes first.
        ``faster_than_ms``: only where a majority of the voters, this node left out, has disks clearly faster than that, and of those.
        """
        core = self._core
        since_ms = core.now_ms - core.config.election_timeout_ms
        live = [peer for peer in self._voters if peer.contact_ms > since_ms]
        if faster_than_ms is not None:
            live = [peer for peer in live if peer.sync_ms * FASTER <= faster_than_ms]
            if len(live) < majority(len(core.memberships.current.voters)):
                return None
        return max(live, key=lambda peer: (in_time and peer.is_able_to_lead, peer.match, peer.is_able_to_lead), default=None)

    def kept_without(self, receiver: Progress | None) -> tuple[int, int]:
        """The longest part of the log, first and last entry, that another replica than ``receiver`` keeps; (0, 0): none is known.

        None: another one than this leader.
        """
        core = self._core
        since_ms = core.now_ms - core.config.election_timeout_ms
        found = [(peer.keeps_from, peer.match) for peer in self.peers.values() if peer is not receiver and peer.contact_ms > since_ms]
        if receiver is not None and not core.sheds:
            found.append((core.log.first_index, core.log.durable))
        return max((each for each in found if 0 < each[0] <= each[1]), key=lambda each: each[1] - each[0], default=(0, 0))

    def others_can_go_on(self, successor: Progress) -> bool:
        """Whether ``successor`` has this leader's whole log, and a majority of the voters goes on with it without this node.

        Those do that were heard from lately and have the whole log, too; and those that hear no leader and ask ``successor`` for votes:
        a node that cannot write asks for no votes.
        """
        core = self._core
        since_ms, last_index = core.now_ms - core.config.election_timeout_ms, core.log.last.index
        whole = {peer.node for peer in self._voters if peer.match == last_index and peer.contact_ms > since_ms}
        helpers = whole.union(successor.seekers).intersection(core.memberships.other_voters)
        return successor.node in whole and len(helpers) >= majority(len(core.memberships.current.voters))

    def has_live_majority(self, voters: Sequence[NodeId]) -> bool:
        """Whether a majority of ``voters`` has answered this leader within an election timeout; itself counted where it is one."""
        core = self._core
        since_ms = core.now_ms - core.config.election_timeout_ms
        live = [peer.node for peer in self.peers.values() if peer.answers and peer.contact_ms > since_ms]
        return sum(voter == core.node_id or voter in live for voter in voters) >= majority(len(voters))

    def has_caught_up(self, node: NodeId) -> bool:
        """Whether a learner follows closely enough to become a voter without holding up commits: what it lacks fits one window."""
        core, peer = self._core, self.peers.get(node)
        if peer is None or peer.state is not ProgressState.REPLICATE:
            return False
        config, behind = core.config, core.commit - peer.match
        if core.now_ms - peer.contact_ms >= config.election_timeout_ms or behind > config.max_inflight_messages:
            return False
        return behind <= 0 or len(core.log.metas(peer.match + 1, config.max_inflight_bytes)) >= behind

    def check(self) -> None:
        """Raise unless the leader's invariants hold."""
        core = self._core
        require(core.leader == core.node_id, "a leader that follows %s", core.leader)
        require(core.log.last.index >= self.term_start, "a leader without an entry of its own")
        for peer in self.peers.values():
            peer.check(core.log.last.index, core.config.max_inflight_messages)
            require(peer.inflight_bytes <= core.config.max_inflight_bytes or len(peer.inflight) == 1, "%s: window overrun", peer.node)
