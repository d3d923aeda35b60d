"""Gossip between name servers: registrations that changed something and, every few seconds, which nodes registered with each.

Owns the messages and what is made of them.  What was heard too long ago counts for the fence and for nothing that expires, so late
messages do no harm.  The age of a message is taken from the two machines' clocks; where these differ by more than expireAfter, each
name server lives by what nodes report to it.
"""

from __future__ import annotations

import asyncio

from broker.nameserver.quorum import Quorum
from broker.routes.anti_entropy import registrations_of
from broker.routes.name_service import NameService
from dledger_wire._pb import routes_pb2
from dledger_wire.clock import Clock
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc.methods import decode, encode

MAX_REFRESHED = 2_000  # of one message


class Gossip:
    """Of one name server."""

    def __init__(self, server_id: str, service: NameService, quorum: Quorum, clock: Clock, every_ms: int) -> None:
        self._id = server_id
        self._service = service
        self._quorum = quorum
        self._clock = clock
        self._every_ms = every_ms
        self._waiting: list[routes_pb2.Registration] = []
        self._scheduled = False
        self._reached: frozenset[str] = frozenset()
        service.spread = self.changed

    # To the others

    def changed(self, registration: routes_pb2.Registration) -> None:
        """A registration brought something new: the others get it with what else comes in this moment."""
        self._waiting.append(registration)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_changed)

    def _send_changed(self) -> None:
        waiting, self._waiting, self._scheduled = self._waiting, [], False
        self._send(registrations=waiting)

    async def run(self) -> None:
        """Report every few seconds which nodes registered here, and everything to servers that were away; until cancelled."""
        while True:
            await asyncio.sleep(self._every_ms / 1000)
            self._update_returned()
            refreshed = self._refreshed()
            for start in range(0, len(refreshed), MAX_REFRESHED):
                self._send(refreshed=refreshed[start : start + MAX_REFRESHED])

    def _update_returned(self) -> None:
        """A name server that comes back may not be reached by every node.  One of the others is enough to inform it."""
        state = self._quorum.state()
        back, self._reached = state.reachable - self._reached, state.reachable
        if not back or state.role != "leader":
            return
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        for seen_ms, registration in registrations_of(self._service.table, self._service.place.cluster):
            message = routes_pb2.Spread(name_server=self._id, sent_at_ms=max(0, wall_ms - (now_ms - seen_ms)), registrations=[registration])
            self._quorum.spread(encode(message))

    def _refreshed(self) -> list[routes_pb2.RefreshedNode]:
        """The nodes that this server knows to live, by whomever they were heard: age adds up on the way."""
        now_ms, table = self._clock.monotonic_ms(), self._service.table
        rows = [(group.name, group.epoch, row) for group in table.groups for row in group.rows.values()]
        rows += [("", 0, row) for row in table.spares]
        return [
            routes_pb2.RefreshedNode(
                group=group,
                node_id=row.id,
                term=row.order.term,
                started_at_ms=row.order.started_at_ms,
                sequence=row.order.sequence,
                age_ms=max(0, now_ms - row.seen_ms),
                group_epoch=epoch,
            )
            for group, epoch, row in rows
            if not row.expired
        ]

    def _send(
        self, *, registrations: list[routes_pb2.Registration] | None = None, refreshed: list[routes_pb2.RefreshedNode] | None = None
    ) -> None:
        message = routes_pb2.Spread(
            name_server=self._id, sent_at_ms=self._clock.wall_ms(), registrations=registrations, refreshed=refreshed
        )
        self._quorum.spread(encode(message))

    # From the others

    def deliver(self, data: bytes) -> None:
        """Merge what a name server spread.  Bytes that are no such message are left out."""
        try:
            message = decode(routes_pb2.Spread, data)
        except InvalidArgumentError:
            return
        if message.name_server == self._id:
            return
        table, service, now_ms = self._service.table, self._service, self._clock.monotonic_ms()
        age_ms = max(0, self._clock.wall_ms() - message.sent_at_ms)
        for registration in message.registrations:
            service.changed(table.register(registration, now_ms, age_ms=age_ms))
        for node in message.refreshed:
            service.changed(table.refresh(node, now_ms, age_ms=age_ms + node.age_ms))
