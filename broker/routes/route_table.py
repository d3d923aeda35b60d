"""The routes of a cluster, merged from what nodes register.  Pure: no clock, no tasks; callers say what time it is.

Owns the replica groups, the spare nodes, which topic is in which groups, and the cached routes.  ``registered.py`` has the rules of
merging.  A row that is not repeated expires, and a master that expired leads no more; but the fence, the members and the table of topics
stay: a group that is down still has its queues.  A removed group leaves a tombstone, which only a registration of a higher group epoch
lifts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from broker.routes.encoding import (
    Route,
    absent_group,
    absent_topic,
    directory_mark,
    directory_version,
    group_route,
    leader_of,
    removed_group,
    topic_route,
)
from broker.routes.group_table import GroupRow, NodeRow, Order
from dledger_wire._pb import routes_pb2
from dledger_wire.status import DRAINING

EXPIRE_AFTER_MS = 20_000


@dataclass(slots=True)
class Change:
    """What one step did: the names whose routes are not what they were."""

    accepted: bool = True
    spread: bool = False  # it brought something that other name servers may not know
    wants_topics: bool = False
    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.groups or self.topics)


class RouteTable:
    """``groups``: names of the cluster file, which have to register before the table is complete."""

    def __init__(self, groups: Iterable[str] = (), *, expire_after_ms: int = EXPIRE_AFTER_MS) -> None:
        self.expire_after_ms = expire_after_ms
        self._expected = set(groups)
        self._groups: dict[str, GroupRow] = {}
        self._spares: dict[str, NodeRow] = {}
        self._places: dict[str, list[str]] = {}  # topic -> groups it is in, sorted
        self._topic_routes: dict[str, Route] = {}
        self._group_routes: dict[str, Route] = {}
        # None: to be made again.
        self._directory_version: int | None = 0
        self._group_marks: dict[str, int] = {}  # what of the directory's version each group makes
        self._complete: bool | None = False
        self.removals_changed: Callable[[], object] = lambda: None  # called when a group was removed, or its name is taken again

    # What is known

    @property
    def groups(self) -> Iterator[GroupRow]:
        """Removed ones included."""
        return iter(self._groups.values())

    @property
    def spares(self) -> list[NodeRow]:
        """Nodes that belong to no group, without those that registered for one since."""
        placed = {row.id: row.order.started_at_ms for group in self._groups.values() for row in group.rows.values()}
        return [row for row in self._spares.values() if not row.expired and placed.get(row.id, -1) < row.order.started_at_ms]

    @property
    def topics(self) -> Iterator[str]:
        return iter(self._places)

    @property
    def topic_count(self) -> int:
        return len(self._places)

    @property
    def known_groups(self) -> int:
        """Removed ones included."""
        return len(self._groups)

    def knows(self, name: str) -> bool:
        return name in self._groups

    def group(self, name: str) -> GroupRow | None:
        """None for one that is not known and for one that was removed."""
        group = self._groups.get(name)
        return None if group is None or group.removed else group

    def groups_of(self, topic: str) -> list[str]:
        """The groups that the topic is in, sorted."""
        return self._places.get(topic, [])

    @property
    def is_complete(self) -> bool:
        """Of every group that the cluster file or a registration names the newest table of topics is known for certain."""
        if self._complete is None:
            known = [group for group in self._groups.values() if not group.removed]
            self._complete = bool(known) and self._expected <= self._groups.keys() and all(group.is_complete for group in known)
        return self._complete

    @property
    def directory_version(self) -> int:
        if self._directory_version is None:
            for name, group in self._groups.items():
                if name not in self._group_marks:
                    self._group_marks[name] = directory_mark(group)
            self._directory_version = directory_version(self._group_marks, self.spares)
        return self._directory_version

    def topic_route(self, name: str) -> Route:
        route = self._topic_routes.get(name)
        if route is None:
            places = self._places.get(name)
            if not places:
                return absent_topic(name)  # not kept: clients may ask for any number of names
            groups = [self._groups[place] for place in places]
            route = self._topic_routes[name] = topic_route(name, [(group, group.topics[name]) for group in groups])
        return route

    def group_route(self, name: str) -> Route:
        route = self._group_routes.get(name)
        if route is None:
            group = self.group(name)
            if group is None:
                return removed_group(name) if self.knows(name) else absent_group(name)
            route = self._group_routes[name] = group_route(group)
        return route

    # What changes it

    def register(self, registration: routes_pb2.Registration, now_ms: int, *, age_ms: int = 0) -> Change:
        """Merge a registration that was heard ``age_ms`` ago, here or elsewhere."""
        order = Order(registration.term, registration.started_at_ms, registration.sequence)
        seen_ms = now_ms - age_ms
        if not registration.group:
            return self._register_spare(registration, order, seen_ms, now_ms - self.expire_after_ms)
        group = self._groups.get(registration.group)
        if group is None:
            group = self._groups[registration.group] = GroupRow(registration.group, registration.group_epoch)
            self._forget_derived(group)
        change = Change()
        if registration.group_epoch > group.epoch:
            if group.epoch or group.removed or group.contradicts(registration):
                self._start_over(group, registration.group_epoch, change)
            self._forget_derived(group)
            group.epoch = registration.group_epoch  # a group whose nodes did not know its epoch yet is the same one
        is_late = registration.group_epoch < group.epoch
        if group.removed or registration.term < group.fence or (is_late and (registration.group_epoch or registration.master)):
            change.accepted = False
        elif is_late:  # a follower that has not applied the epoch yet lives; nothing else that it sends counts
            change.spread = group.take_row(registration, order, seen_ms, now_ms - self.expire_after_ms)
            if change.spread:
                self._group_touched(group, change)
        else:
            self._merge(group, registration, order, (seen_ms, now_ms - self.expire_after_ms), change)
        return change

    def _merge(self, group: GroupRow, registration: routes_pb2.Registration, order: Order, times: tuple[int, int], change: Change) -> None:
        was_draining = group.state == DRAINING
        touched = registration.master and group.raise_fence(registration.term, registration.node_id)
        touched |= group.take_row(registration, order, *times)
        touched |= group.take_members(registration, order)
        touched |= group.take_state(registration, order)
        change.spread = touched
        if registration.has_topics or registration.topics_version > group.named_topics_version:
            self._complete = None
        if group.removed:
            self._remove(group, change)
            return
        changed = group.take_topics(registration)
        if changed:
            change.spread = True
            self._topics_changed(group, changed, change)
        if was_draining != (group.state == DRAINING):
            self._topics_changed(group, group.topics, change)
        if touched:
            self._group_touched(group, change)
        unknown = not group.topics_known or registration.topics_version > group.topics_version
        change.wants_topics = unknown and (registration.master or not leader_of(group)[1])

    def _register_spare(self, registration: routes_pb2.Registration, order: Order, seen_ms: int, oldest_ms: int) -> Change:
        known = self._spares.get(registration.node_id)
        if known is not None and known.expired:  # its clock may have shown a later time when it was started before
            del self._spares[registration.node_id]
        holder = GroupRow("", rows=self._spares)
        change = Change(spread=holder.take_row(registration, order, seen_ms, oldest_ms))
        if change.spread:
            self._directory_version = None
        return change

    def refresh(self, node: routes_pb2.RefreshedNode, now_ms: int, *, age_ms: int) -> Change:
        """Another name server heard that registration ``age_ms`` ago: if it is the newest here, too, it counts as repeated."""
        group = self._groups.get(node.group)
        rows = self._spares if not node.group else group.rows if group is not None else {}
        row = rows.get(node.node_id)
        change = Change()
        if row is None or row.order != (node.term, node.started_at_ms, node.sequence):
            return change
        if group is not None and group.epoch != node.group_epoch:
            return change
        row.seen_ms = max(row.seen_ms, now_ms - age_ms)
        if row.expired and now_ms - row.seen_ms < self.expire_after_ms:
            row.expired = False
            self._directory_version = None
            if group is not None:
                self._group_touched(group, change)
        return change

    def expire(self, now_ms: int) -> Change:
        """Rows that are not repeated do not count any more, nor does a group beside the cluster file that was never more than such rows."""
        change = Change()
        oldest_ms = now_ms - self.expire_after_ms
        for group in self._groups.values():
            late = [row for row in group.rows.values() if not row.expired and row.seen_ms <= oldest_ms]
            for row in late:
                row.expired = True
            if late:
                self._group_touched(group, change)
        for row in self._spares.values():
            if not row.expired and row.seen_ms <= oldest_ms:
                row.expired, self._directory_version = True, None
        for group in [group for group in self._groups.values() if group.was_never_led and group.name not in self._expected]:
            del self._groups[group.name]
            self._forget_content(group, change)
        return change

    def hint(self, name: str, term: int, leader: str) -> Change:
        """What this process knows of a group from its own replica: the leader of ``term``, "" when there is none.

        It is not more than a hint: it never raises the fence.
        """
        change = Change()
        group = self._groups.get(name)
        if group is not None and not group.removed and group.hint != (term, leader):
            group.hint = (term, leader)
            self._group_touched(group, change)
        return change

    # Keeping what is derived

    def _forget_derived(self, group: GroupRow) -> None:
        self._directory_version = self._complete = None
        self._group_marks.pop(group.name, None)

    def _group_touched(self, group: GroupRow, change: Change) -> None:
        self._forget_derived(group)
        old = self._group_routes.pop(group.name, None)
        if old is None or self.group_route(group.name).version != old.version:
            change.groups.add(group.name)

    def _topics_changed(self, group: GroupRow, names: Iterable[str], change: Change) -> None:
        for name in names:
            places = self._places.get(name, [])
            inside = name in group.topics
            if inside != (group.name in places):
                places = sorted({*places, group.name}) if inside else [place for place in places if place != group.name]
                if places:
                    self._places[name] = places
                else:
                    del self._places[name]
            self._topic_routes.pop(name, None)
            change.topics.add(name)

    def _remove(self, group: GroupRow, change: Change) -> None:
        """Only the tombstone is left."""
        self._forget_content(group, change)
        group.rows, group.members, group.hint = {}, (), (0, "")
        self.removals_changed()

    def _start_over(self, group: GroupRow, epoch: int, change: Change) -> None:
        self._forget_content(group, change)
        was_removed = group.removed
        group.start_over(epoch)
        if was_removed:
            self.removals_changed()

    def _forget_content(self, group: GroupRow, change: Change) -> None:
        self._forget_derived(group)
        names = list(group.topics)
        group.topics = {}
        self._topics_changed(group, names, change)
        self._group_routes.pop(group.name, None)
        change.groups.add(group.name)
