"""Deliberate faults of the name service: its fence, its expiry, whom it believes."""

from __future__ import annotations

from typing import Any

import pytest

from broker.nameserver.registered import GroupRow, Order
from broker.nameserver.table import Change, RouteTable
from dledger_wire._pb import routes_pb2


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
