"""The connections of a node: whose they are, which of them are held up, and by what.

Owns the words for it.  A producer that waits for its messages to be taken waits for the slowest part of the way to a majority, which is
named: the disk, a follower, the application of what is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.api.produce import late_parts
from broker.context import ServiceContext
from broker.support.limits import in_slices
from dledger_wire._pb import diagnostics_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.event_loop import loop_s
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext, Server
from dledger_wire.status import SendStatus
from dledger_wire.tcp.connection_state import TAKER, ConnectionState, state_of
from dledger_wire.tcp.server import Accepted

STATES = RUNNING, FLOW, BLOCKED = "running", "flow", "blocked"
KINDS = {methods.PRODUCE.path: "produce", methods.FETCH.path: "fetch", methods.RAFT_LINK.path: "link"}
DEFAULT_LISTED, MAX_LISTED = 100, 1_000


class ConnectionsService:
    """Lists them; ``connections`` gives those of the process."""

    def __init__(self, context: ServiceContext, connections: Callable[[], Sequence[Accepted]]) -> None:
        self._context, self._connections = context, connections

    def register(self, server: Server) -> None:
        methods.CONNECTIONS.serve(server, self.list)

    async def list(self, request: diagnostics_pb2.ConnectionsRequest, _caller: CallContext) -> diagnostics_pb2.ConnectionsReply:
        settings, listed = self._context.settings, min(request.max_connections or DEFAULT_LISTED, MAX_LISTED)
        counts = Counter[str]()
        held_up: list[diagnostics_pb2.OpenConnection] = []
        running: list[diagnostics_pb2.OpenConnection] = []
        async for found, held in _looked_at(self._context, self._connections()):
            counts[held.state] += 1
            rows = running if held.state == RUNNING else held_up
            if len(rows) < MAX_LISTED:
                rows.append(_row(found, held))
        reply = diagnostics_pb2.ConnectionsReply(group=settings.group.name, node=settings.node.id, states=counts)
        for rows in (held_up, running):
            rows.sort(key=lambda row: (not row.waits_for, -row.received_bytes - row.unsent_bytes, row.peer))
        reply.connections.extend([*held_up, *running][:listed])
        return reply


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """How many connections of a node are in each state, and what most of those that wait do so for; empty: none waits."""

    states: Mapping[str, int]
    bottleneck: str


async def counts_of(context: ServiceContext, connections: Sequence[Accepted]) -> ConnectionCounts:
    """Of all of them."""
    states, waiting = Counter[str](), Counter[str]()
    async for _, held in _looked_at(context, connections):
        states[held.state] += 1
        waiting[held.waits_for] += bool(held.waits_for)
    ((bottleneck, count),) = waiting.most_common(1) or [("", 0)]
    return ConnectionCounts({state: states[state] for state in STATES}, bottleneck if count else "")


def _alarm(context: ServiceContext) -> str:
    """Which one keeps new messages out; empty: none."""
    try:
        context.require_room()
    except DledgerError as error:
        return error.details["alarm"]
    return ""


def bottleneck_of(context: ServiceContext) -> str:
    """What the next message of a producer waits for, if it has to."""
    status = context.raft.status()
    if status.commit_index < status.last.index:
        kind, late = late_parts(context, status)
        if kind is SendStatus.FLUSH_DISK_TIMEOUT:
            return "disk"
        return f"follower {', '.join(peer.node_id for peer in late)}" if late else "log"
    return "apply" if status.applied_index < status.commit_index else "log"


@dataclass(frozen=True, slots=True)
class _Held:
    kind: str
    state: str
    waits_for: str


async def _looked_at(context: ServiceContext, connections: Sequence[Accepted]) -> AsyncIterator[tuple[ConnectionState, _Held]]:
    bottleneck, alarm = bottleneck_of(context), _alarm(context)
    async for each in in_slices(connections):
        found = state_of(each, loop_s())
        kind = KINDS.get(found.purpose, found.purpose.removeprefix(methods.PACKAGE))
        state, waits_for = FLOW if found.is_held_up else RUNNING, found.waits_for
        if waits_for == TAKER:
            waits_for = bottleneck if kind == "produce" else "handler"
        if alarm and kind == "produce":
            state, waits_for = BLOCKED, alarm
        yield found, _Held(kind, state, waits_for)


def _row(found: ConnectionState, held: _Held) -> diagnostics_pb2.OpenConnection:
    return diagnostics_pb2.OpenConnection(
        peer=found.peer,
        user=found.user,
        kind=held.kind,
        state=held.state,
        waits_for=held.waits_for,
        received_bytes=found.received_bytes,
        unsent_bytes=found.unsent_bytes,
        open_ms=int(found.since_s * 1000),
    )
