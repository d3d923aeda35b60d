"""Group membership: configurations in the log, and changing them one at a time.

Owns the rules of single-step change (dissertation 4.1, with the correction of 2015): *a configuration takes effect when it is appended
and loses effect when it is truncated; the next change waits until the previous one is committed and the leader has committed an entry
of its own term; voters change by one*.  Majorities of two neighbouring configurations share a voter, so nothing more is needed.

*A member is its data folder, not its name.*  A configuration lists the folders that are known.  A vote, an acknowledgement or a heartbeat
response from another folder does not count, and a node on another folder does not regard itself as that member.  A member's folder never
changes: the member is removed and added again, which are two changes.  The initial members have no registered folders: the first folder
that responds to a leader is registered, and every later configuration lists the folders that the leader knows by then.

A new voter was a learner before and must have caught up.  Voters change only to a group of which the leader has just heard a majority:
otherwise the change could neither be committed nor undone (etcd's strict reconfiguration check).  A node removed by a configuration that is
not yet committed may still campaign (4.2.2): it may be the only one that has this configuration.  A leader that removed itself
leads, without counting itself, until that is committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.effects import MembershipChanged, Refused, RefusedReason
from dledger.core.events import ChangeRequested
from dledger.core.saved import Saved
from dledger.core.state import CoreState
from dledger.core.types import EntryKind, EntryMeta, Membership, NodeId, Role
from dledger_wire.check import require


class Memberships:
    """The configurations a core knows, oldest first: (index of the entry, membership)."""

    def __init__(self, core: CoreState, first: Membership, saved: Saved) -> None:
        self._core = core
        self._settled = saved.settled
        self._configs: list[tuple[int, Membership]] = [(0, first), *saved.configs]
        self.current = self._configs[-1][1]
        self.other_voters: tuple[NodeId, ...] = ()
        self._stores: dict[NodeId, str] = {}
        self._refresh()
        self._forget_old()

    @property
    def index(self) -> int:
        """The entry of the configuration in force; 0 when none is in the log."""
        return self._configs[-1][0]

    def _refresh(self) -> None:
        self.current = self._configs[-1][1]
        self._stores = dict(self.current.stores)
        self.other_voters = tuple(voter for voter in self.current.voters if voter != self._core.node_id)

    @property
    def is_voter(self) -> bool:
        return self._votes_in(self.current)

    def _votes_in(self, membership: Membership) -> bool:
        core = self._core
        return core.node_id in membership.voters and membership.store_of(core.node_id) in ("", core.store)

    def is_registered(self, member: NodeId, store: str) -> bool:
        """Whether ``member`` may be on the folder ``store``: that one is named, or none is."""
        named = self._stores.get(member)
        if named is None and (former := self.former) is not None:
            named = former.store_of(member)
        return named in (None, "", store)

    def with_known_stores(self, membership: Membership) -> Membership:
        """``membership`` with the folders of those named now and of those this leader has met."""
        return membership.with_stores({**self._core.replication.known_stores(), **self._stores})

    @property
    def casts_own_vote(self) -> bool:
        """Whether a candidacy of this node has its vote.  Not where the voter of its name is on another folder."""
        return self.is_voter or self._core.node_id not in self.current.voters

    @property
    def former(self) -> Membership | None:
        """The configuration before the one in force, while that one may still be undone."""
        return self._configs[-2][1] if len(self._configs) > 1 and self.index > max(self._core.commit, self._settled) else None

    @property
    def is_electable(self) -> bool:
        """A voter of the configuration in force, or of the one before while that one may still be undone."""
        if self.is_voter:
            return True
        former = self.former
        return former is not None and bool(self.current.voters) and self._votes_in(former)

    @property
    def follower_role(self) -> Role:
        return Role.FOLLOWER if self.is_electable else Role.LEARNER

    @property
    def change_in_flight(self) -> bool:
        return self.index > self._core.commit

    # What the log does

    def appended(self, first_index: int, entries: Sequence[EntryMeta]) -> None:
        """Entries were added; configurations among them count from now on."""
        changed = False
        for at, meta in enumerate(entries):
            if meta.kind is EntryKind.CONFIG:
                require(meta.config is not None, "entry %d: a configuration without content", first_index + at)
                if meta.config is not None:
                    self._configs.append((first_index + at, meta.config))
                    changed = True
        if changed:
            self._changed()

    def truncated(self, from_index: int) -> None:
        """The log was cut; configurations in the lost part count no longer."""
        if self.index < from_index:
            return
        while self.index >= from_index:
            self._configs.pop()
        self._changed()

    def replaced(self, membership: Membership, index: int) -> None:
        """A snapshot replaced the log; ``membership`` is the one at its end."""
        before = self.current
        self._configs = [(index, membership)]
        self._refresh()
        if membership != before:
            self._core.emit(MembershipChanged(membership))
        self.role_may_change()

    def _changed(self) -> None:
        core = self._core
        self._refresh()
        core.emit(MembershipChanged(self.current))
        if core.role is Role.LEADER:
            core.replication.members_changed()
        self.role_may_change()

    def role_may_change(self) -> None:
        """Between follower and learner."""
        core = self._core
        if core.role in (Role.FOLLOWER, Role.LEARNER) and core.role is not self.follower_role:
            core.role = self.follower_role
            core.publish_role()

    def commit_advanced(self) -> None:
        """Drop old configurations; removed members are out for good."""
        if len(self._configs) > 1:
            self._forget_old()
            self.role_may_change()

    def _forget_old(self) -> None:
        while len(self._configs) > 1 and self._configs[1][0] <= self._core.commit:
            del self._configs[0]

    # Changing

    def on_change_requested(self, event: ChangeRequested) -> None:
        core = self._core
        reason = self._why_not(event.membership, moves=event.moves)
        if reason is not None:
            core.emit(Refused(reason, core.leader))
            return
        core.replication.append_own(EntryMeta(core.term, event.size_bytes, EntryKind.CONFIG, event.membership))

    def _why_not(self, wanted: Membership, *, moves: bool) -> RefusedReason | None:
        core = self._core
        if core.role is not Role.LEADER:
            return RefusedReason.NOT_LEADER
        if not core.takes_entries:
            return RefusedReason.STORAGE
        if core.transfers.pending:
            return RefusedReason.TRANSFERRING
        if not core.confirmed:
            return RefusedReason.NOT_READY
        if self.change_in_flight:
            return RefusedReason.CHANGE_IN_PROGRESS
        if not _is_single_step(self.current, wanted, moves=moves):
            return RefusedReason.INVALID_CHANGE
        if wanted != self.with_known_stores(wanted):
            return RefusedReason.INVALID_CHANGE
        added = [voter for voter in wanted.voters if voter not in self.current.voters]
        if added and not core.replication.has_caught_up(added[0]):
            return RefusedReason.NOT_CAUGHT_UP
        if sorted(wanted.voters) != sorted(self.current.voters) and not core.replication.has_live_majority(wanted.voters):
            return RefusedReason.NO_LIVE_MAJORITY
        return None


def _is_single_step(current: Membership, wanted: Membership, *, moves: bool) -> bool:
    """At most one voter more or less, at least one left, no duplicates, and some change, if only of registered folders or of an address."""
    members = wanted.members
    if not wanted.voters or len(set(members)) != len(members):
        return False
    same = sorted(wanted.voters) == sorted(current.voters) and sorted(wanted.learners) == sorted(current.learners)
    if same and wanted.stores == current.stores and not moves:
        return False
    changed = [voter for voter in wanted.voters if voter not in current.voters]
    changed += [voter for voter in current.voters if voter not in wanted.voters]
    return len(changed) <= 1
