"""Deliberate faults of the name service and of those who ask it: its fence, its expiry, whom it believes, what a client takes from it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.routes import encoding
from broker.routes.group_table import GroupRow, Order
from broker.routes.route_table import Change, RouteTable
from dledger_client.cluster import leader_calls, missing_parts
from dledger_wire._pb import routes_pb2
from dledger_wire.rpc.methods import UnaryMethod
from dledger_wire.rpc.transport import Channel


def older_terms_accepted(patch: pytest.MonkeyPatch) -> None:
    """Whoever registered last as the master is the leader, whatever its term."""
    register = RouteTable.register

    def credulous(self: RouteTable, told: routes_pb2.Registration, *times: int, **age: int) -> Change:
        group = self._groups.get(told.group)
        if group is not None and told.master:
            group.fence = min(group.fence, told.term - 1)
        return register(self, told, *times, **age)

    patch.setattr(RouteTable, "register", credulous)


def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouteTable, "expire", lambda _self, _now_ms: Change())


def followers_believed(patch: pytest.MonkeyPatch) -> None:
    """A follower of a newer term is taken for its leader."""
    register = RouteTable.register

    def credulous(self: RouteTable, told: routes_pb2.Registration, *times: int, **age: int) -> Change:
        believed = routes_pb2.Registration.FromString(told.SerializeToString())
        believed.master = told.master or told.role == "follower"
        return register(self, believed, *times, **age)

    patch.setattr(RouteTable, "register", credulous)


def older_registrations_of_a_node_taken(patch: pytest.MonkeyPatch) -> None:
    """Within a term the last one heard counts, not the newest."""
    take = GroupRow.take_row

    def careless(self: GroupRow, told: routes_pb2.Registration, order: Order, *times: int) -> bool:
        row = self.rows.get(told.node_id)
        if row is not None and order < row.order:
            del self.rows[told.node_id]
        return take(self, told, order, *times)

    patch.setattr(GroupRow, "take_row", careless)


def older_tables_of_topics_taken(patch: pytest.MonkeyPatch) -> None:
    take = GroupRow.take_topics

    def careless(self: GroupRow, told: routes_pb2.Registration, *others: Any) -> set[str]:
        if told.has_topics and told.topics_version < self.topics_version:
            self.topics_version = told.topics_version - 1
        return take(self, told, *others)

    patch.setattr(GroupRow, "take_topics", careless)


def every_answer_is_complete(patch: pytest.MonkeyPatch) -> None:
    """Also that of a name server that knows nothing yet."""
    patch.setattr(RouteTable, "is_complete", True)


def complete_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """A master's table of topics is the newest, as far as it says itself."""
    patch.setattr(GroupRow, "is_complete", property(lambda self: bool(self.master) and self.topics_known))


def expired_groups_forgotten(patch: pytest.MonkeyPatch) -> None:
    """With its fence: whoever registers next is the leader."""
    expire = RouteTable.expire

    def forgetful(self: RouteTable, now_ms: int) -> Change:
        change = expire(self, now_ms)
        for group in self._groups.values():
            if group.rows and all(row.expired for row in group.rows.values()):
                group.fence, group.master, group.rows = 0, "", {}
        return change

    patch.setattr(RouteTable, "expire", forgetful)


def leaders_of_the_past_named(patch: pytest.MonkeyPatch) -> None:
    """By a node that knows of a newer term, and not yet who leads in it."""
    leader_of = encoding.leader_of

    def nostalgic(group: GroupRow) -> tuple[int, str]:
        leader = group.leader
        return (group.fence, leader.id) if leader is not None and not group.hint[1] else leader_of(group)

    patch.setattr(encoding, "leader_of", nostalgic)


def leaders_are_not_asked_whether_they_lead(patch: pytest.MonkeyPatch) -> None:
    """A client takes the word of whoever it was told of."""
    patch.setattr(leader_calls, "_check_leads", lambda *_answer: None)


def parts_taken_for_the_whole(patch: pytest.MonkeyPatch) -> None:
    """A client does not ask for the replica groups that an answer lacks."""

    async def nothing(*_looked_up: object) -> tuple[list[str], list[str]]:
        return [], []

    patch.setattr(missing_parts, "_missing", nothing)


def incomplete_answers_believed(patch: pytest.MonkeyPatch) -> None:
    """A client takes the routes of a name server that has not heard of all groups."""
    call = UnaryMethod.call

    async def credulous(self: UnaryMethod[Any, Any], channel: Channel, request: Any, *, timeout_s: float) -> Any:
        reply = await call(self, channel, request, timeout_s=timeout_s)
        if isinstance(reply, routes_pb2.RoutesReply):
            reply.complete = True
        return reply

    patch.setattr(UnaryMethod, "call", credulous)
