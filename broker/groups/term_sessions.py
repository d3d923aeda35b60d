"""Sessions of consumer group members in one term of this master: joins, heartbeats, expiry, and the member lists that members get.

Owns the life of sessions.  A member is gone when its stream ends, or when it sent nothing for ``SESSION_MS``.  Its locks are kept for that
time in both cases, since a member without a stream may still be at work: it relies on its locks for ``LEASE_MS`` after it sent a heartbeat
that was acknowledged, and heartbeats of orderly members are acknowledged only after a majority confirmed that this node still leads.  So
no later master can have started its timer, and the lease is over wherever and whenever the lock is freed
(docs/reference/semantics, row M1).

    stream lost --SESSION_MS without a rejoin--> locks freed          clean leave --> locks freed at once
    new master: owners of locks have SESSION_MS from its start to rejoin; then their locks are freed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from broker.context import ServiceContext
from broker.groups.lock_manager import LockManager
from broker.groups.session_table import GroupSessions, Session, SessionTable
from broker.support.limits import at_most
from broker.support.member_stream import MemberStream
from broker.support.messages import message_of
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import BusyError, DledgerError, InvalidArgumentError, NotReadyError
from dledger_wire.names import MAX_ID_CHARS, check_group
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream
from dledger_wire.tasks import BackgroundTasks

HEARTBEAT_MS = 250
LEASE_MS = 1000
SESSION_MS = 1300
SWEEP_MS = 50
LATE_MS = 200  # a sweep later than this means that the process was paused and received nothing meanwhile
GATHER_S = 0.005  # changes of one group within this time are sent together, heartbeats are confirmed together
# Of the lists of one group's members: three changes for each of a thousand that start would else be three thousand lists to a thousand.
LIST_BYTES_PER_S = 50_000_000
MAX_MEMBERS = 10_000
MAX_SUBSCRIPTIONS = 1_000  # the rights to all of them are looked at in one turn of the loop, and again when rights change
MAX_CONSUMED = 200_000  # queues that one member consumes
CONFIRM_TIMEOUT_S = 1.0
LEAVE_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)

_Message = sessions_pb2.MemberMessage


class TermSessions:
    """Everything about sessions in one term of this master."""

    def __init__(self, context: ServiceContext, term: int, tasks: BackgroundTasks) -> None:
        self.term = term
        self.table = SessionTable()
        self._context = context
        self._clock = context.env.clock
        self._started_ms = self._clock.monotonic_ms()
        self._locks = LockManager(context, self._send_granted)
        self._changed_groups: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._unconfirmed: list[tuple[Session, MemberStream, int]] = []
        self._heartbeats = asyncio.Event()
        self._on_message: dict[str, Callable[[Session, _Message], None]] = {
            "heartbeat": self._on_heartbeat,
            "queues": self._on_queues,
            "wish": self._on_lock_request,
            "release": self._on_lock_release,
        }
        self._add_lock_owners()
        tasks.spawn(self._sweep(), "sweep")
        tasks.spawn(self._send_members(), "members")
        tasks.spawn(self._confirm(), "heartbeats")
        tasks.spawn(self._locks.run(), "locks")

    def end_streams(self, error: DledgerError) -> None:
        for session in self.table:
            if session.stream is not None:
                session.stream.end(error)

    # One member's stream

    async def join(self, join: sessions_pb2.SessionJoin, stream: ByteStream, address: str) -> None:
        """Serve one member's stream until it ends."""
        member_stream = MemberStream(stream)
        session = self._join(join, member_stream, address)
        try:
            await member_stream.serve(self._receive(session, member_stream))
        finally:
            self._stream_lost(session, member_stream)

    def _join(self, join: sessions_pb2.SessionJoin, stream: MemberStream, address: str) -> Session:
        _check_join(join)
        group = self.table.of(join.group)
        other = group.by_client(join.client_id)
        if other is not None and other.session_id != join.session_id:
            where = f" by the member at {other.info.address}" if other.info.address else ""
            text = f"group {join.group}: client id {join.client_id} is in use{where}; every member needs its own"
            raise BusyError(text, client_id=join.client_id)
        session = group.sessions.get(join.session_id)
        if session is None:
            session = Session(join.group, join.client_id, join.session_id, self._clock.monotonic_ms())
            self.table.add(session)
        elif session.stream is not None:
            session.stream.end(None)
            self._locks.withdraw_requests(session)  # it repeats them on the new stream
        session.last_seen_ms = self._clock.monotonic_ms()
        session.stream = stream
        session.info = message_of(sessions_pb2.GroupMember, join, address=address, joined_ms=self._clock.wall_ms())
        self._expect_known_members(self.table.of(join.group), join)
        stream.send(methods.encode(sessions_pb2.MasterMessage(welcome=self._welcome(session))))
        self._mark_changed(join.group)
        return session

    def _welcome(self, session: Session) -> sessions_pb2.SessionWelcome:
        return sessions_pb2.SessionWelcome(
            term=self.term,
            heartbeat_ms=HEARTBEAT_MS,
            lease_ms=LEASE_MS,
            reset_version=self._reset_version(session.group),
            locks=self._locks.held(session),
        )

    def _expect_known_members(self, group: GroupSessions, join: sessions_pb2.SessionJoin) -> None:
        """Just after a failover members rejoin one by one: the member list is sent when all of them are back."""
        if self._is_settling:
            present = {session.client_id: None for session in group.members()}
            group.expected.update(dict.fromkeys(join.known_members))
            group.expected = {client_id: None for client_id in group.expected if client_id not in present}

    @property
    def _is_settling(self) -> bool:
        return self._clock.monotonic_ms() - self._started_ms < SESSION_MS

    async def _receive(self, session: Session, stream: MemberStream) -> None:
        while (data := await stream.read()) is not None:
            if session.stream is not stream:  # it has rejoined on another stream, or expired: what arrives here late is ignored
                return
            message = methods.decode(_Message, data)
            session.last_seen_ms = self._clock.monotonic_ms()
            kind = message.WhichOneof("body") or ""
            if kind == "leave":
                await self._leave(session)
                return
            handle = self._on_message.get(kind)
            if handle is None:
                raise InvalidArgumentError(f"unexpected {kind or 'empty'} message in a session")
            handle(session, message)

    def _on_queues(self, session: Session, message: _Message) -> None:
        at_most(len(message.queues.queues), "queues consumed by a member", MAX_CONSUMED)
        del session.info.queues[:]
        session.info.queues.extend(message.queues.queues)
        self._mark_changed(session.group)

    def _on_lock_request(self, session: Session, message: _Message) -> None:
        _require_orderly(session)
        at_most(len(message.wish.queues), "queues to lock")
        self._locks.request(session, [(place.topic, place.queue_id) for place in message.wish.queues])

    def _on_lock_release(self, session: Session, message: _Message) -> None:
        _require_orderly(session)
        at_most(len(message.release.queues), "queues to release")
        self._locks.release(session, [(place.topic, place.queue_id, place.epoch) for place in message.release.queues])

    async def _leave(self, session: Session) -> None:
        """The other members learn it at once; the stream ends when the locks are free."""
        self.table.remove(session)
        self._mark_changed(session.group)
        freed = self._locks.free(session)
        await asyncio.wait([freed], timeout=LEAVE_TIMEOUT_S)

    def _stream_lost(self, session: Session, stream: MemberStream) -> None:
        if session.stream is not stream:
            return
        session.stream = None
        self._locks.withdraw_requests(session)
        if not self._context.store.queue_locks.held_by(session.group, session.session_id):
            self.table.remove(session)
        self._mark_changed(session.group)

    # Heartbeats

    def _on_heartbeat(self, session: Session, message: _Message) -> None:
        number, stream = message.heartbeat.number, session.stream
        if stream is None:
            return
        session.info.oldest_call_ms = message.heartbeat.oldest_call_ms
        if session.needs_lease:
            self._unconfirmed.append((session, stream, number))
            self._heartbeats.set()
        else:
            self._acknowledge(session, stream, number)

    def _acknowledge(self, session: Session, stream: MemberStream, number: int) -> None:
        ack = sessions_pb2.SessionAck(number=number, reset_version=self._reset_version(session.group))
        stream.send(methods.encode(sessions_pb2.MasterMessage(ack=ack)))

    async def _confirm(self) -> None:
        """Acknowledge the heartbeats that extend leases: those received before a majority confirmed this leader."""
        while True:
            await self._heartbeats.wait()
            await asyncio.sleep(GATHER_S)
            self._heartbeats.clear()
            received, self._unconfirmed = self._unconfirmed, []
            try:
                await self._context.raft.read_barrier(CONFIRM_TIMEOUT_S)
            except DledgerError as error:
                _logger.info("heartbeats of %d members are not acknowledged: %s", len(received), error.message)
                continue
            if self._context.roles.services_term == self.term:
                for session, stream, number in received:
                    self._acknowledge(session, stream, number)

    def _reset_version(self, group: str) -> int:
        return self._context.store.consumer_offsets.reset_version(group)

    def announce_reset(self, group: str) -> None:
        """Send the group's new reset version to its members."""
        for session in self.table.of(group).members():
            if session.stream is not None:
                self._acknowledge(session, session.stream, 0)

    # Expiry

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
                    session.last_seen_ms += late_ms
                if now_ms - session.last_seen_ms > SESSION_MS:
                    self._expire(session)
            if seen != self._context.store.queue_locks.version:
                seen = self._context.store.queue_locks.version
                self._add_lock_owners()
            if settling and not self._is_settling:
                settling = False
                self._changed.set()

    def _add_lock_owners(self) -> None:
        """Give every owner of a lock a session, so that its locks expire: also one whose stream broke while a lock was granted."""
        for group, session_id, client_id in self._context.store.queue_locks.owners():
            if session_id not in self.table.of(group).sessions:
                self.table.add(Session(group, client_id, session_id, self._clock.monotonic_ms()))

    def _expire(self, session: Session) -> None:
        _logger.info("group %s: session of %s expired, no heartbeat for %d ms", session.group, session.client_id, SESSION_MS)
        self.table.remove(session)
        self._locks.free(session)
        stream, session.stream = session.stream, None
        if stream is not None:
            stream.end(NotReadyError(f"no heartbeat from {session.client_id} for {SESSION_MS} ms; join again"))
        self._mark_changed(session.group)

    # Sending

    def _mark_changed(self, group: str) -> None:
        self._changed_groups[group] = None
        self._changed.set()

    async def _send_members(self) -> None:
        pause_s: float | None = None  # until the list of a group that has changed may be sent again
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_S)
            self._changed.clear()
            changed, self._changed_groups, now_ms = self._changed_groups, {}, self._clock.monotonic_ms()
            waiting = [self._send_list(name, now_ms) for name in changed]
            pause_s = min((wait_ms / 1000 for wait_ms in waiting if wait_ms), default=None)

    def _send_list(self, name: str, now_ms: int) -> int:
        """Send a group's member list to its members, or leave that for later; in how many ms, when that is known."""
        group = self.table.of(name)
        if group.next_list_ms > now_ms or (group.expected and self._is_settling):
            self._changed_groups[name] = None
            return max(0, group.next_list_ms - now_ms)
        group.expected.clear()
        message, members = group.members_message(), group.members()
        for session in members:
            if session.stream is not None:
                session.stream.send(message)
        group.next_list_ms = now_ms + len(members) * len(message) * 1000 // LIST_BYTES_PER_S
        return 0

    def _send_granted(self, session: Session, locks: list[sessions_pb2.HeldLock]) -> None:
        current = self.table.of(session.group).sessions.get(session.session_id)  # it may have rejoined meanwhile
        if current is not None and current.stream is not None:
            granted = sessions_pb2.LocksGranted(locks=locks)
            current.stream.send(methods.encode(sessions_pb2.MasterMessage(granted=granted)))


def _check_join(join: sessions_pb2.SessionJoin) -> None:
    """Refuse a join that could not be served or shown: InvalidArgumentError, InvalidNameError."""
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


def _require_orderly(session: Session) -> None:
    if not session.info.orderly:
        raise InvalidArgumentError("only an orderly member locks queues")
