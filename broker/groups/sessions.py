"""The Sessions service: members of consumer groups join here, and operators list them.  Served by the master.

Owns the calls; the sessions themselves live and end with a term (``term_sessions.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.context import ServiceContext
from broker.groups.term_sessions import TermSessions
from broker.security.guarded_stream import GuardedStream
from broker.support.limits import at_most, in_slices
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import InvalidArgumentError, NotLeaderError, NotReadyError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server
from dledger_wire.security.principal import Principal
from dledger_wire.tasks import BackgroundTasks
from store.commands.security import Action, Resource

GROUPS_AT_ONCE = 20  # of many members each


class SessionService:
    """Serves the calls; implements ``broker.context.MasterService``."""

    name = "sessions"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._current: TermSessions | None = None

    def register(self, server: Server) -> None:
        methods.JOIN_GROUP.serve(server, self.join)
        methods.DESCRIBE_MEMBERS.serve(server, self.describe)

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        self._current = TermSessions(self._context, term, tasks)

    async def stop(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.end_streams(NotLeaderError(f"{self._context.settings.node.id} is no longer the master", leader_address=""))

    def offsets_reset(self, group: str) -> None:
        """Notify the members of ``group`` that its offsets were reset."""
        if self._current is not None:
            self._current.announce_reset(group)

    def _sessions(self) -> TermSessions:
        term = self._context.require_master()
        if self._current is None or self._context.roles.services_term != term:
            raise NotReadyError(f"{self._context.settings.node.id}: sessions of term {term} have not started yet")
        return self._current

    async def join(self, stream: ByteStream, caller: CallContext) -> None:
        message = await stream.read()
        if message is None:
            return
        first = methods.decode(sessions_pb2.MemberMessage, message)
        if first.WhichOneof("body") != "join":
            raise InvalidArgumentError("a session begins with a join")
        guarded = GuardedStream(stream, self._context.access, partial(self._check_member, caller.principal, first.join))
        try:
            await self._sessions().join(first.join, guarded, caller.peer)
        finally:
            guarded.release()

    def _check_member(self, caller: Principal, join: sessions_pb2.SessionJoin) -> None:
        access = self._context.access
        access.require(caller, Action.READ, Resource.GROUP, join.group)
        for subscription in join.subscriptions:
            access.require_topic(caller, Action.READ, subscription.topic)

    async def describe(self, request: sessions_pb2.DescribeMembersRequest, caller: CallContext) -> sessions_pb2.DescribeMembersResponse:
        table = self._sessions().table
        reply = sessions_pb2.DescribeMembersResponse()
        at_most(len(request.groups), "consumer groups")
        access = self._context.access
        sees = partial(access.may_topic, caller.principal, Action.DESCRIBE)
        shown = dict.fromkeys(request.groups) or access.seen_groups(caller.principal, table.groups())
        async for group in in_slices(shown, GROUPS_AT_ONCE):
            reply.groups.add(group=group, members=[_seen(member, sees) for member in table.of(group).member_infos()])
        return reply


def _seen(member: sessions_pb2.GroupMember, sees: Callable[[str], bool]) -> sessions_pb2.GroupMember:
    """A member without the topics that the caller may not know of."""
    if all(sees(each.topic) for each in (*member.subscriptions, *member.queues)):
        return member
    shown = sessions_pb2.GroupMember()
    shown.CopyFrom(member)
    del shown.subscriptions[:], shown.queues[:]
    shown.subscriptions.extend(each for each in member.subscriptions if sees(each.topic))
    shown.queues.extend(each for each in member.queues if sees(each.topic))
    return shown
