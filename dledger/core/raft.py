"""The Raft core: one event in, a list of effects out.

Owns the dispatch and the rule that is applied before every message: *what its term says about the sender and about this node*.  Everything
else belongs to the parts (election, replication, following, membership, reads, transfer), which share ``CoreState``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dledger.core.causes import Cause
from dledger.core.config import CoreConfig
from dledger.core.contradictions import contradiction, contradicts_committed
from dledger.core.effects import Effect, FetchSnapshot, MessageRefused, ReadFailed, Refused, RefusedReason
from dledger.core.election import Elections
from dledger.core.events import (
    Applied,
    Campaign,
    ChangeRequested,
    Deprioritize,
    Event,
    HardStateStored,
    LeftBehind,
    LogTrimmed,
    LowOnSpace,
    PeerLost,
    Propose,
    ReadRequested,
    Received,
    SnapshotInstalled,
    StorageFailed,
    StorageRecovered,
    Stored,
    Tick,
    TransferRequested,
)
from dledger.core.following import Following
from dledger.core.invariants import check_invariants
from dledger.core.membership import Memberships
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotOffer,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.reads import NO_ROUND, Reads
from dledger.core.replication import Replication
from dledger.core.saved import LogView, Saved
from dledger.core.silence import Silence
from dledger.core.soundness import Soundness
from dledger.core.state import CoreState, DrawSource, Storage
from dledger.core.status import CoreStatus, PeerProgress
from dledger.core.sync_times import SyncTimes
from dledger.core.transfer import Transfers
from dledger.core.types import EntryId, Membership, NodeId, Role
from dledger_wire.check import InvariantBrokenError

_FROM_LEADER = (AppendRequest, Heartbeat, SnapshotOffer, TimeoutNow)
_TO_LEADER = (AppendResponse, HeartbeatResponse, ReadIndexRequest)
_PROMISES = (VoteResponse, AppendResponse, HeartbeatResponse)


class Raft:
    """One replica's protocol state.  ``step`` is the only way to change it."""

    def __init__(
        self,
        config: CoreConfig,
        node_id: NodeId,
        membership: Membership,
        saved: Saved,
        random: DrawSource,
        log_view: LogView,
        *,
        store: str = "",
        now_ms: int = 0,
    ) -> None:
        core = self._core = CoreState(config, node_id, store, saved, log_view, random, now_ms)
        core.memberships, core.soundness, core.syncs = Memberships(core, membership, saved), Soundness(core, saved), SyncTimes(core)
        core.following, core.transfers, core.reads, core.silence = Following(core), Transfers(core), Reads(core), Silence(core)
        core.replication, core.elections = Replication(core), Elections(core)
        core.memberships.role_may_change()
        core.effects = []
        self._handlers: Mapping[type[Event], Callable[[Any], None]] = {
            Tick: self._on_tick,
            Received: self._on_received,
            Propose: core.replication.on_propose,
            Stored: core.replication.on_stored,
            HardStateStored: self._on_hard_state_stored,
            Applied: self._on_applied,
            ReadRequested: self._on_read_requested,
            TransferRequested: core.transfers.on_requested,
            ChangeRequested: core.memberships.on_change_requested,
            PeerLost: self._on_peer_lost,
            SnapshotInstalled: core.following.on_snapshot_installed,
            LogTrimmed: core.following.on_log_trimmed,
            StorageFailed: self._on_storage_failed,
            StorageRecovered: self._on_storage_recovered,
            Campaign: self._on_campaign,
            Deprioritize: self._on_deprioritize,
            LowOnSpace: self._on_low_on_space,
            LeftBehind: self._on_left_behind,
        }
        self._receivers: Mapping[type[Message], Callable[[NodeId, Any], None]] = {
            VoteRequest: core.elections.on_vote_request,
            VoteResponse: core.elections.on_vote_response,
            AppendRequest: core.following.on_append_request,
            AppendResponse: core.replication.on_append_response,
            Heartbeat: core.following.on_heartbeat,
            HeartbeatResponse: core.replication.on_heartbeat_response,
            TimeoutNow: core.elections.on_timeout_now,
            ReadIndexRequest: core.reads.on_request,
            ReadIndexResponse: self._on_read_response,
            SnapshotOffer: core.following.on_snapshot_offer,
        }

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Let ``event`` happen at ``now_ms`` (time that went back counts as standing still); returns what to do, in order."""
        core = self._core
        core.now_ms = max(core.now_ms, now_ms)
        effects: list[Effect] = []
        core.effects = effects
        if core.storage is Storage.FAILED:
            self._refuse(event)
            return effects
        self._handlers[type(event)](event)
        if core.hard_state_dirty:
            core.save_hard_state()
        return effects

    def next_wakeup_ms(self) -> int | None:
        """When the next timer is due; step a ``Tick`` then.  None: never."""
        core = self._core
        if core.storage is Storage.FAILED:
            return None
        if core.role is Role.LEADER:
            due_ms = min(core.replication.next_heartbeat_ms, core.replication.quorum_deadline_ms)
            if core.replication.notice_due_ms is not None:
                due_ms = min(due_ms, core.replication.notice_due_ms)
        else:
            due_ms = core.elections.timer.deadline_ms
        for other_ms in (core.transfers.deadline_ms, core.reads.deadline_ms if core.reads.forwarded else None):
            if other_ms is not None and other_ms < due_ms:
                due_ms = other_ms
        return due_ms

    # Events

    def _on_tick(self, _event: Tick) -> None:
        core = self._core
        core.transfers.on_tick()
        core.reads.on_tick()
        if core.role is Role.LEADER:
            core.replication.on_tick()
        else:
            core.elections.on_tick()

    def _on_hard_state_stored(self, event: HardStateStored) -> None:
        self._core.elections.on_hard_state_stored(event.term, event.vote)

    def _on_applied(self, event: Applied) -> None:
        core = self._core
        if event.index > core.commit:
            raise InvariantBrokenError(f"applied {event.index}, committed {core.commit}")
        core.applied = max(core.applied, event.index)

    def _on_read_requested(self, event: ReadRequested) -> None:
        self._core.reads.on_requested(event.token)

    def _on_peer_lost(self, event: PeerLost) -> None:
        core = self._core
        if core.role is Role.LEADER:
            core.replication.on_peer_lost(event.peer)
        else:
            core.elections.on_leader_lost(event.peer)

    def _on_campaign(self, _event: Campaign) -> None:
        self._core.elections.on_campaign()

    def _on_deprioritize(self, event: Deprioritize) -> None:
        self._core.yields = event.why
        self._core.elections.deprioritize(on=bool(event.why))

    def _on_low_on_space(self, event: LowOnSpace) -> None:
        self._core.low_on_space, self._core.sheds = event.on, event.sheds

    def _on_left_behind(self, _event: LeftBehind) -> None:
        core = self._core
        core.left_behind = True
        if core.role not in (Role.FOLLOWER, Role.LEARNER):
            core.elections.become_follower(core.term, None, Cause.LEFT_BEHIND)

    def _on_storage_failed(self, event: StorageFailed) -> None:
        core = self._core
        if event.fatal:
            self._fail()
            return
        core.storage = Storage.FULL
        if core.role is Role.LEADER:
            core.transfers.hand_over(Cause.DISK_FULL)
        elif core.role in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            core.elections.become_follower(core.term, None, core.loss.cause)

    def _fail(self) -> None:
        """Writes are lost and it is unknown which: a leader lets the best voter take over, and this node falls silent."""
        core = self._core
        if core.role is Role.LEADER:
            core.transfers.resign(Cause.STORAGE_FAILED)
        elif core.role not in (Role.FOLLOWER, Role.LEARNER) or core.leader is not None:
            core.elections.become_follower(core.term, None, Cause.STORAGE_FAILED)
        core.storage = Storage.FAILED

    def _on_storage_recovered(self, _event: StorageRecovered) -> None:
        self._core.storage = Storage.OK

    def _refuse(self, event: Event) -> None:
        """After a failed sync only local callers are answered."""
        if isinstance(event, Propose | ChangeRequested | TransferRequested):
            self._core.emit(Refused(RefusedReason.STORAGE))
        elif isinstance(event, ReadRequested):
            self._core.emit(ReadFailed(event.token))

    # Messages

    def _on_received(self, event: Received) -> None:
        core, source, message = self._core, event.source, event.message
        if isinstance(message, _PROMISES) and not core.memberships.is_registered(source, event.store):
            return  # another folder under a member's name: what it says does not bind the member
        fault = contradiction(core, source, message)
        if fault is not None:
            core.emit(MessageRefused(source, f"{type(message).__name__}: {fault}", contradicts_committed(core, message)))
            return
        if message.term > core.term:
            if not self._newer_term(source, message):
                return
        elif message.term < core.term:
            self._older_term(source, message)
            return
        leads = core.role is Role.LEADER
        if leads or not isinstance(message, _TO_LEADER):
            if leads and isinstance(message, _PROMISES) and not core.replication.accepts_answer(source, event.store, message):
                return
            self._receivers[type(message)](source, message)
        elif isinstance(message, ReadIndexRequest):
            core.reads.refuse(source, message.token)

    def _newer_term(self, source: NodeId, message: Message) -> bool:
        """Adopt the term unless the message asks about an election; whether to process the message."""
        core = self._core
        if isinstance(message, VoteRequest):
            return True  # a pre-vote changes nothing, and a live leader must not be deposed: decided there
        if isinstance(message, VoteResponse) and message.pre_vote and message.granted:
            return True  # names the term that was asked about
        if isinstance(message, _FROM_LEADER):
            core.elections.become_follower(message.term, source, Cause.HIGHER_TERM, source)
            return True
        if core.role is Role.LEADER and source not in core.memberships.current:
            return False  # a removed node cannot depose a leader
        core.elections.become_follower(message.term, None, Cause.HIGHER_TERM, source)
        return False

    def _older_term(self, source: NodeId, message: Message) -> None:
        """Answer questions of an older term with ours, or their sender would never learn it; drop late answers."""
        core = self._core
        if isinstance(message, AppendRequest | Heartbeat):
            core.silence.on_late_message(source, message.term)
        if isinstance(message, AppendRequest):
            core.following.refuse_old_leader(source, message)
        elif isinstance(message, Heartbeat | SnapshotOffer):
            core.send(source, HeartbeatResponse(term=core.term, round=NO_ROUND))
        elif isinstance(message, VoteRequest):
            core.send(source, VoteResponse(term=core.term, granted=False, pre_vote=message.pre_vote))
        elif isinstance(message, VoteResponse) and message.pre_vote and not message.granted:
            core.elections.on_vote_response(source, message)  # a voter behind in terms refused
        elif isinstance(message, ReadIndexRequest):
            core.reads.refuse(source, message.token)

    def _on_read_response(self, source: NodeId, message: ReadIndexResponse) -> None:
        if not self._core.soundness.answered(source, message):
            self._core.reads.on_response(message)

    # Looking at it

    @property
    def node_id(self) -> NodeId:
        return self._core.node_id

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def vote(self) -> NodeId | None:
        return self._core.vote

    @property
    def leader(self) -> NodeId | None:
        return self._core.leader

    @property
    def is_confirmed_leader(self) -> bool:
        """Leads, and has committed an entry of its own term."""
        return self._core.confirmed

    @property
    def suspect(self) -> bool:
        return self._core.soundness.suspect

    @property
    def left_behind(self) -> bool:
        return self._core.left_behind

    @property
    def commit(self) -> int:
        return self._core.commit

    def behind(self, applied: int, now_ms: int) -> tuple[int, int | None]:
        """Committed entries behind ``applied``, by the newest commit index received; and how many milliseconds ago a leader was last heard
        (0: it is this node; None: never since the start)."""
        following = self._core.following
        entries = max(0, self._core.commit - applied, following.seen_commit - applied)
        if self._core.role is Role.LEADER:
            return entries, 0
        return entries, None if following.seen_ms is None else max(0, now_ms - following.seen_ms)

    @property
    def last(self) -> EntryId:
        return self._core.log.last

    @property
    def durable(self) -> int:
        return self._core.log.durable

    @property
    def membership(self) -> Membership:
        return self._core.memberships.current

    @property
    def snapshot_wanted(self) -> FetchSnapshot | None:
        return self._core.following.snapshot_wanted

    def term_at(self, index: int) -> int | None:
        """The term of an entry in the log (or just below it)."""
        return self._core.log.term_at(index)

    @property
    def membership_index(self) -> int:
        """The entry of the configuration in force; 0: none is in the log."""
        return self._core.memberships.index

    def with_known_stores(self, membership: Membership) -> Membership:
        """``membership`` with the data folders that the configuration in force names or, of others, this leader has been answered from."""
        return self._core.memberships.with_known_stores(membership)

    def acknowledged(self, node: NodeId) -> EntryId | None:
        """What ``node`` has promised this leader for certain: the last committed entry it acknowledged, and the term; None: nothing."""
        core = self._core
        peer = core.replication.peers.get(node)
        return EntryId(min(peer.match, core.commit), core.term) if peer is not None and peer.match else None

    def answers_from(self, node: NodeId) -> str:
        """The data folder from which ``node`` answers this leader; empty when it has not answered."""
        peer = self._core.replication.peers.get(node)
        return peer.store if peer is not None else ""

    def status(self) -> CoreStatus:
        core = self._core
        replication = core.replication
        return CoreStatus(
            node=core.node_id,
            role=core.role,
            term=core.term,
            vote=core.vote,
            leader=core.leader,
            confirmed=core.confirmed,
            first_index=core.log.first_index,
            last=core.log.last,
            durable=core.log.durable,
            commit=core.commit,
            applied=core.applied,
            membership=core.memberships.current,
            membership_index=core.memberships.index,
            peers=tuple(
                PeerProgress(
                    node=peer.node,
                    state=peer.state.value,
                    match=peer.match,
                    next=peer.next,
                    inflight_messages=len(peer.inflight),
                    inflight_bytes=peer.inflight_bytes,
                    silent_ms=core.now_ms - peer.contact_ms,
                    has_answered=peer.has_answered,
                    low_on_space=peer.low_on_space,
                    yields=peer.yields,
                    copied_bytes=peer.copied_bytes,
                    sync_ms=peer.sync_ms,
                )
                for peer in replication.peers.values()
            ),
            uncommitted_bytes=replication.uncommitted_bytes if core.role is Role.LEADER else 0,
            transfer_target=core.transfers.target,
            storage=core.storage.value,
            protocol_errors=replication.protocol_errors,
            suspect=core.soundness.suspect,
            election_timeout_ms=core.silence.timeout_ms,
            ack_regressions=replication.ack_regressions,
            kept=replication.kept_without(None) if core.role is Role.LEADER else core.following.kept,
        )

    def check_invariants(self) -> None:
        """Raise InvariantBrokenError when the core is in a state its own rules exclude."""
        check_invariants(self._core)
