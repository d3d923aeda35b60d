"""Sessions of consumer groups' members, on the master: who is there, told to all at once, and for whom queues are locked.

Owns the life of sessions.  A member is gone when its stream ends, or when nothing was heard of it for ``SESSION_MS``.  Locks wait for that
time in both cases, since a member without a stream may still be at work: it counts on its locks for ``LEASE_MS`` after it sent a heartbeat
that was acknowledged, and heartbeats of orderly members are acknowledged only after a majority confirmed that this node still leads.  So
no later master can have begun to count, and the lease is over wherever and whenever the lock is freed (docs/reference/semantics.md).

    stream lost --SESSION_MS without a rejoin--> locks freed          clean leave --> locks freed at once
    new master: owners of locks have SESSION_MS from its start to come back; then their locks are freed
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from broker.api.limits import at_most, in_slices
from broker.context import ServiceContext
from broker.groups.lock_manager import LockManager
from broker.groups.session_table import Link, Members, Session, SessionTable
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError, NotLeaderError, NotReadyError
from dledger_wire.names import check_group
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream, CallContext, Server
from dledger_wire.tasks import BackgroundTasks

HEARTBEAT_MS = 250
LEASE_MS = 1000
SESSION_MS = 1300
SWEEP_MS = 50
LATE_MS = 200  # a sweep as late as that means that this process stood still, and heard nobody meanwhile
GATHER_S = 0.005  # news of one group within this time are told together, heartbeats confirmed together
MAX_ID_CHARS = 255
MAX_MEMBERS = MAX_SUBSCRIPTIONS = 10_000
MAX_CONSUMED = 200_000  # queues that one member consumes
GROUPS_AT_ONCE = 20  # of many members each
CONFIRM_TIMEOUT_S = 1.0
LEAVE_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class SessionService:
    """Serves the streams; implements ``broker.leadership.role_manager.MasterService``."""

    name = "sessions"

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._current: TermSessions | None = None

    def register(self, server: Server) -> None:
        methods.JOIN_GROUP.serve(server, self.attend)
        methods.DESCRIBE_MEMBERS.serve(server, self.describe)

    async def start(self, term: int, tasks: BackgroundTasks) -> None:
        self._current = TermSessions(self._context, term, tasks)

    async def stop(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.end_links()

    def was_reset(self, group: str) -> None:
        """Positions of the group were reset: its running consumers have to follow."""
        if self._current is not None:
            self._current.tell_reset(group)

    def _sessions(self) -> TermSessions:
        term = self._context.require_master()
        if self._current is None or self._context.roles.services_term != term:
            raise NotReadyError(f"{self._context.settings.node.id}: sessions of term {term} are not on yet")
        return self._current

    async def attend(self, stream: ByteStream, caller: CallContext) -> None:
        message = await stream.read()
        if message is None:
            return
        first = methods.decode(sessions_pb2.MemberMessage, message)
        if first.WhichOneof("body") != "join":
            raise InvalidArgumentError("a session begins with a join")
        await self._sessions().attend(first.join, stream, caller.peer)

    async def describe(self, request: sessions_pb2.DescribeMembersRequest, _caller: CallContext) -> sessions_pb2.DescribeMembersResponse:
        table = self._sessions().table
        reply = sessions_pb2.DescribeMembersResponse()
        asked = request.groups
        at_most(len(asked), "consumer groups")
        async for group in in_slices(dict.fromkeys(asked) or table.groups(), GROUPS_AT_ONCE):
            members = sorted((session.told for session in table.of(group).attending()), key=lambda told: told.client_id)
            reply.groups.add(group=group, members=members)
        return reply


class TermSessions:
    """Everything about sessions in one term of this master."""

    def __init__(self, context: ServiceContext, term: int, tasks: BackgroundTasks) -> None:
        self.term = term
        self.table = SessionTable()
        self._context = context
        self._clock = context.env.clock
        self._started_ms = self._clock.monotonic_ms()
        self._locks = LockManager(context, self._tell_granted)
        self._dirty: dict[str, None] = {}
        self._news = asyncio.Event()
        self._unconfirmed: list[tuple[Session, Link, int]] = []
        self._heartbeats = asyncio.Event()
        self._watch_owners()
        tasks.spawn(self._sweep(), "sweep")
        tasks.spawn(self._tell_members(), "members")
        tasks.spawn(self._confirm(), "heartbeats")
        tasks.spawn(self._locks.run(), "locks")

    def end_links(self) -> None:
        for session in self.table:
            if session.link is not None:
                session.link.end(NotLeaderError(f"{self._context.settings.node.id} is not the master any more", leader_address=""))

    # One member's stream

    async def attend(self, join: sessions_pb2.SessionJoin, stream: ByteStream, address: str) -> None:
        link = Link(stream)
        session = self._join(join, link, address)
        loop = asyncio.get_running_loop()
        telling = loop.create_task(link.write(), name="tell a member")
        hearing = loop.create_task(self._listen(session, link, stream), name="hear a member")
        tasks: list[asyncio.Future[Any]] = [telling, hearing]
        try:
            await asyncio.wait([*tasks, link.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            self._link_lost(session, link)
        problems = [link.ended.result() if link.ended.done() else None, *outcomes]
        for problem in problems:
            if isinstance(problem, Exception):
                raise problem

    def _join(self, join: sessions_pb2.SessionJoin, link: Link, address: str) -> Session:
        check_group(join.group)
        at_most(len(join.subscriptions), "subscriptions of a member", MAX_SUBSCRIPTIONS)
        at_most(len(join.known_members), "members known to a member", MAX_MEMBERS)
        at_most(len(join.queues), "queues consumed by a member", MAX_CONSUMED)
        if not join.client_id or not join.session_id:
            raise InvalidArgumentError("a session needs a client id and a session id")
        if max(len(join.client_id), len(join.session_id)) > MAX_ID_CHARS:
            raise InvalidArgumentError(f"a client id and a session id have at most {MAX_ID_CHARS} characters")
        if not (join.client_id + join.session_id).isprintable():
            raise InvalidArgumentError(f"client id {join.client_id!r}, session id {join.session_id!r}: expected printable characters")
        members = self.table.of(join.group)
        other = members.by_client(join.client_id)
        if other is not None and other.session_id != join.session_id:
            where = f" by the member at {other.told.address}" if other.told.address else ""
            raise BusyError(f"group {join.group}: client id {join.client_id} is in use{where}; every member needs its own")
        session = members.sessions.get(join.session_id)
        if session is None:
            session = Session(join.group, join.client_id, join.session_id, self._clock.monotonic_ms())
            self.table.add(session)
        elif session.link is not None:
            session.link.end(None)
            self._locks.forget_wishes(session)  # it says again what it wants
        session.heard_ms = self._clock.monotonic_ms()
        session.link = link
        session.told = sessions_pb2.GroupMember(
            client_id=join.client_id,
            subscriptions=join.subscriptions,
            queues=join.queues,
            orderly=join.orderly,
            broadcast=join.broadcast,
            address=address,
            strategy=join.strategy,
            joined_ms=self._clock.wall_ms(),
        )
        self._expect(self.table.of(join.group), join)
        welcome = sessions_pb2.SessionWelcome(
            term=self.term, heartbeat_ms=HEARTBEAT_MS, lease_ms=LEASE_MS, reset_version=self._reset_version(join.group)
        )
        welcome.locks.extend(self._locks.held(session))
        link.send(methods.encode(sessions_pb2.MasterMessage(welcome=welcome)))
        self._changed(join.group)
        return session

    def _expect(self, members: Members, join: sessions_pb2.SessionJoin) -> None:
        """Just after a change of masters members come back one by one: they are told of each other when all are there again."""
        if self._is_settling:
            there = {session.client_id: None for session in members.attending()}
            members.expected.update(dict.fromkeys(join.known_members))
            members.expected = {client_id: None for client_id in members.expected if client_id not in there}

    @property
    def _is_settling(self) -> bool:
        return self._clock.monotonic_ms() - self._started_ms < SESSION_MS

    async def _listen(self, session: Session, link: Link, stream: ByteStream) -> None:
        while (message := await stream.read()) is not None:
            if session.link is not link:  # it has joined on another stream, or its time is over: what comes late here counts no more
                return
            heard = methods.decode(sessions_pb2.MemberMessage, message)
            session.heard_ms = self._clock.monotonic_ms()
            kind = heard.WhichOneof("body")
            if kind == "heartbeat":
                self._heartbeat(session, heard.heartbeat.number)
            elif kind == "queues":
                at_most(len(heard.queues.queues), "queues consumed by a member", MAX_CONSUMED)
                del session.told.queues[:]
                session.told.queues.extend(heard.queues.queues)
                self._changed(session.group)
            elif kind == "wish" and session.told.orderly:
                at_most(len(heard.wish.queues), "queues to lock")
                self._locks.wish(session, [(place.topic, place.queue_id) for place in heard.wish.queues])
            elif kind == "release" and session.told.orderly:
                at_most(len(heard.release.queues), "queues to release")
                self._locks.release(session, [(place.topic, place.queue_id, place.epoch) for place in heard.release.queues])
            elif kind == "leave":
                await self._leave(session)
                return
            else:
                raise InvalidArgumentError(f"a member said {kind or 'nothing'} in a session")

    async def _leave(self, session: Session) -> None:
        """The others are told at once; the stream ends when the locks are free."""
        self.table.remove(session)
        self._changed(session.group)
        freed = self._locks.free(session)
        await asyncio.wait([freed], timeout=LEAVE_TIMEOUT_S)

    def _link_lost(self, session: Session, link: Link) -> None:
        if session.link is not link:
            return
        session.link = None
        self._locks.forget_wishes(session)
        if not self._context.store.queue_locks.held_by(session.group, session.session_id):
            self.table.remove(session)
        self._changed(session.group)

    # Heartbeats

    def _heartbeat(self, session: Session, number: int) -> None:
        link = session.link
        if link is None:
            return
        if session.needs_lease:
            self._unconfirmed.append((session, link, number))
            self._heartbeats.set()
        else:
            self._acknowledge(session, link, number)

    def _acknowledge(self, session: Session, link: Link, number: int) -> None:
        ack = sessions_pb2.SessionAck(number=number, reset_version=self._reset_version(session.group))
        link.send(methods.encode(sessions_pb2.MasterMessage(ack=ack)))

    async def _confirm(self) -> None:
        """Acknowledge the heartbeats that leases hang on: those heard before a majority confirmed this leader."""
        while True:
            await self._heartbeats.wait()
            await asyncio.sleep(GATHER_S)
            self._heartbeats.clear()
            heard, self._unconfirmed = self._unconfirmed, []
            try:
                await self._context.raft.read_barrier(CONFIRM_TIMEOUT_S)
            except DledgerError as error:
                _logger.info("heartbeats of %d members are not acknowledged: %s", len(heard), error.message)
                continue
            if self._context.roles.services_term == self.term:
                for session, link, number in heard:
                    self._acknowledge(session, link, number)

    def _reset_version(self, group: str) -> int:
        return self._context.store.consumer_offsets.reset_version(group)

    def tell_reset(self, group: str) -> None:
        for session in self.table.of(group).attending():
            if session.link is not None:
                self._acknowledge(session, session.link, 0)

    # The end of silent members

    async def _sweep(self) -> None:
        last_ms = self._clock.monotonic_ms()
        settling, seen = True, -1
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            now_ms = self._clock.monotonic_ms()
            late_ms = now_ms - last_ms - SWEEP_MS
            last_ms = now_ms
            for session in self.table:
                if late_ms > LATE_MS:
                    session.heard_ms += late_ms
                if now_ms - session.heard_ms > SESSION_MS:
                    self._expire(session)
            if seen != self._context.store.queue_locks.version:
                seen = self._context.store.queue_locks.version
                self._watch_owners()
            if settling and not self._is_settling:
                settling = False
                self._news.set()

    def _watch_owners(self) -> None:
        """Whoever holds a lock has a session here, so that no lock is forgotten: also one granted while its owner's stream broke."""
        for group, session_id, client_id in self._context.store.queue_locks.owners():
            if session_id not in self.table.of(group).sessions:
                self.table.add(Session(group, client_id, session_id, self._clock.monotonic_ms()))

    def _expire(self, session: Session) -> None:
        _logger.info("group %s: nothing heard of %s for %d ms", session.group, session.client_id, SESSION_MS)
        self.table.remove(session)
        self._locks.free(session)
        link, session.link = session.link, None
        if link is not None:
            link.end(NotReadyError(f"nothing was heard of {session.client_id} for {SESSION_MS} ms; join again"))
        self._changed(session.group)

    # Telling

    def _changed(self, group: str) -> None:
        self._dirty[group] = None
        self._news.set()

    async def _tell_members(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER_S)
            self._news.clear()
            dirty, self._dirty = self._dirty, {}
            for group in dirty:
                members = self.table.of(group)
                if members.expected and self._is_settling:
                    self._dirty[group] = None
                    continue
                members.expected.clear()
                told = members.told()
                for session in members.attending():
                    if session.link is not None:
                        session.link.send(told)

    def _tell_granted(self, session: Session, locks: list[sessions_pb2.HeldLock]) -> None:
        current = self.table.of(session.group).sessions.get(session.session_id)  # it may have come back meanwhile
        if current is not None and current.link is not None:
            granted = sessions_pb2.LocksGranted(locks=locks)
            current.link.send(methods.encode(sessions_pb2.MasterMessage(granted=granted)))
