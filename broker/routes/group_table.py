"""What is known of one replica group: the newest registration of each node, and what these agree on.

Owns the rules by which registrations are merged.  Each part of a group is the maximum of what was registered by an order of its own, so the
outcome does not depend on the order, the number or the lateness of registrations:

- the fence: the highest term in which a node registered as the master, and that node;
- a node's row: by (term, start of its process, sequence);
- the members: by the index of their configuration; the state: by its version; the table of topics: by its version.

A registration with a term below the fence does not count at all.  The group's epoch goes before everything: a higher one means another
group of the same name, of which nothing is known yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dledger_wire._pb import routes_pb2
from dledger_wire.status import REMOVED


class Order(NamedTuple):
    """Which registration of a node is newer."""

    term: int
    started_at_ms: int
    sequence: int


class MemberRow(NamedTuple):
    """A member of the newest committed configuration."""

    id: str
    address: str
    voter: bool
    host: str
    rack: str


class TopicRow(NamedTuple):
    """The queues of a topic in a replica group."""

    read_queues: int
    write_queues: int
    perm: int
    epoch: str
    groups: tuple[str, ...] = ()  # that may have queues of it, as this one knows
    priorities: bool = False


@dataclass(slots=True, eq=False)
class NodeRow:
    """The newest registration of a node."""

    id: str
    order: Order
    address: str
    host: str
    rack: str
    master: bool
    role: str
    version: str
    seen_ms: int
    expired: bool = False
    # Of the last one heard, newer or the same: figures, which are no part of any route.
    node_state: str = ""
    disk_used_percent: float = 0.0
    messages_in_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    applied_index: int = 0
    committed_index: int = 0
    in_sync: tuple[str, ...] = ()
    replacing: tuple[int, str, str] = (0, "", "")  # of a master: its group's turn, the spare node and the absent member

    def place(self) -> tuple[str, str, str, bool, Order | None]:
        """What routes and the directory show of it."""
        return self.address, self.host, self.rack, self.master and not self.expired, self.order if self.master else None


# Of a part that any node may report: the version of its content, then its last sender.
Rank = tuple[int, Order, str]
NO_RANK: Rank = (-1, Order(-1, -1, -1), "")


@dataclass(slots=True, eq=False)
class GroupRow:
    """One replica group."""

    name: str
    epoch: int = 0
    fence: int = 0
    master: str = ""  # the node that raised the fence
    rows: dict[str, NodeRow] = field(default_factory=dict)
    last_master: NodeRow | None = None  # the newest registration of a master; it stays when that node leads no more
    members: tuple[MemberRow, ...] = ()
    members_rank: Rank = NO_RANK
    state: str = ""
    wanted: tuple[int, int] = (0, 0)  # voters and learners
    state_rank: Rank = NO_RANK
    topics: dict[str, TopicRow] = field(default_factory=dict)
    topics_version: int = 0
    topics_known: bool = False
    named_topics_version: int = 0  # the highest that was named
    hint: tuple[int, str] = (0, "")  # term and leader as this process itself knows from its replica; not from registrations

    @property
    def removed(self) -> bool:
        return self.state == REMOVED

    @property
    def leader(self) -> NodeRow | None:
        """The row of the master: it raised the fence, and its newest registration still says so."""
        row = self.rows.get(self.master)
        if row is None or row.expired or not row.master or row.order.term != self.fence:
            return None
        return row

    @property
    def was_never_led(self) -> bool:
        """No node ever registered as its leader, and its nodes expired: one that was not added in the end, or had a wrong name.

        A table of topics that has a version was committed by a leader, also if only a follower reported it.
        """
        known = self.fence or self.removed or self.topics_known or self.named_topics_version or self.hint[1]
        return not known and all(row.expired for row in self.rows.values())

    def turn(self, oldest_ms: int) -> tuple[int, str, str]:
        """The group's turn to take a spare node in, with the spare node and the absent member, as its master says.

        Between two masters the word of the last one counts, unless it was not heard since ``oldest_ms``: its successor goes on with what is
        in the group's log.
        """
        row = self.leader or self.last_master
        return (0, "", "") if row is None or row.seen_ms <= oldest_ms else row.replacing

    @property
    def is_complete(self) -> bool:
        """The table of topics is the newest there is: its master reported it, and a majority of the voters say that no term is newer.

        A later master would have needed their votes, and so have raised their terms.
        """
        if not self.master or not self.topics_known or self.topics_version < self.named_topics_version:
            return False
        voters = [member.id for member in self.members if member.voter]
        agreeing = [
            row for voter in voters if (row := self.rows.get(voter)) is not None and not row.expired and row.order.term == self.fence
        ]
        return 2 * len(agreeing) > len(voters)

    def contradicts(self, registration: routes_pb2.Registration) -> bool:
        """Whether a sender with the group's epoch cannot belong to the group that is known here without one.

        The epoch is set in the group's log.  A node that has applied it has all that was registered before, so no older term or table.
        """
        return registration.term < self.fence or registration.topics_version < self.topics_version

    def start_over(self, epoch: int) -> None:
        """It is another group of the same name."""
        fresh = GroupRow(self.name, epoch)
        for each in self.__slots__:
            setattr(self, each, getattr(fresh, each))

    # Merging one registration; each says whether what it owns changed

    def raise_fence(self, term: int, node_id: str) -> bool:
        """A master of ``term`` registered."""
        if term <= self.fence:
            return False
        self.fence, self.master = term, node_id
        for row in [row for row in self.rows.values() if row.order.term < term]:
            del self.rows[row.id]
        return True

    def take_row(self, registration: routes_pb2.Registration, order: Order, seen_ms: int, oldest_ms: int) -> bool:
        """Keep it if it is the newest of its node, expired if it did not register since ``oldest_ms``; whether its content is new."""
        old = self.rows.get(registration.node_id)
        if old is not None and order < old.order:
            return False
        before = None if old is None else (old.place(), old.role, old.order, old.expired)
        row = NodeRow(
            registration.node_id,
            order,
            registration.address,
            registration.host,
            registration.rack,
            registration.master and not registration.resigned,
            registration.role,
            registration.version,
            seen_ms,
        )
        if old is not None and order == old.order:
            row.seen_ms = max(old.seen_ms, seen_ms)
        row.expired = row.seen_ms <= oldest_ms
        row.node_state, row.disk_used_percent = registration.node_state, registration.disk_used_percent
        row.messages_in_per_s, row.bytes_in_per_s = registration.messages_in_per_s, registration.bytes_in_per_s
        row.applied_index, row.committed_index, row.in_sync = (
            registration.applied_index,
            registration.committed_index,
            tuple(registration.in_sync),
        )
        row.replacing = registration.replacing, registration.spare, registration.absent
        self.rows[registration.node_id] = row
        if row.master and (self.last_master is None or order >= self.last_master.order):
            self.last_master = row
        return before != (row.place(), row.role, row.order, row.expired)

    def take_members(self, registration: routes_pb2.Registration, order: Order) -> bool:
        if not registration.members or (rank := (registration.configuration_index, order, registration.node_id)) <= self.members_rank:
            return False
        members = tuple(sorted(MemberRow(each.id, each.address, each.voter, each.host, each.rack) for each in registration.members))
        changed, self.members, self.members_rank = members != self.members, members, rank
        return changed

    def take_state(self, registration: routes_pb2.Registration, order: Order) -> bool:
        if (rank := (registration.state_version, order, registration.node_id)) <= self.state_rank:
            return False
        state, wanted = registration.state, (registration.wanted_voters, registration.wanted_learners)
        changed = (state, wanted) != (self.state, self.wanted)
        self.state, self.wanted, self.state_rank = state, wanted, rank
        return changed

    def take_topics(self, registration: routes_pb2.Registration) -> set[str]:
        """The names of the topics that changed."""
        self.named_topics_version = max(self.named_topics_version, registration.topics_version)
        if not registration.has_topics or (self.topics_known and registration.topics_version <= self.topics_version):
            return set()
        old, known = self.topics, {}
        if registration.topics_base:
            if not self.topics_known or registration.topics_base > self.topics_version:
                return set()  # it builds on what is not known here
            known = {**old}
            for name in registration.removed_topics:
                known.pop(name, None)
        for each in registration.topics:
            row = TopicRow(each.read_queues, each.write_queues, each.perm, each.topic_epoch, tuple(each.groups), each.priorities)
            kept = old.get(each.topic)
            known[each.topic] = kept if kept is not None and kept == row else row
        self.topics, self.topics_version, self.topics_known = known, registration.topics_version, True
        return {name for name in old.keys() | known.keys() if old.get(name) is not known.get(name)}
