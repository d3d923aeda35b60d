"""A consumer's session with the leader of one replica group: membership, the list of members, queue locks and their lease.

Owns the stream and reopens it at the leader for as long as the consumer lives.  The session id stays the same, so locks survive a
reconnect; lock requests and consumed queues are kept here and sent again after every join.  The lease: a lock may be used until
``lease_ms`` after the last acknowledged heartbeat was **sent**, and no leader gives the lock away before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dledger_client.cluster.leader_stream import SESSION_SILENCE, LeaderStream
from dledger_client.cluster.router import Router
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import BusyError, DledgerError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.tasks import wait_up_to

WELCOME_TIMEOUT_S = 1.0
FIRST_HEARTBEAT_MS = 250
QUIET_MS = 60_000  # between two warnings of a stand-still

_logger = logging.getLogger(__name__)

LockKey: TypeAlias = tuple[str, int]  # topic, queue id


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What a consumer sends about itself when it joins."""

    group: str
    client_id: str
    session_id: str
    subscriptions: dict[str, str]  # topic -> expression
    broadcast: bool
    orderly: bool
    strategy: str


@dataclass(frozen=True, slots=True)
class LockGrant:
    """A queue lock, and the offset that the group had committed when it was granted (None: no offset yet)."""

    epoch: int
    offset: int | None
    generation: int


class SessionListener(Protocol):
    """Receives the events of a session.  Called on the event loop; must not block."""

    def leader_changed(self, replica_group: str) -> None: ...
    def members_changed(self) -> None: ...
    def locks_changed(self, replica_group: str) -> None: ...
    def lease_renewed(self, replica_group: str) -> None: ...
    def offsets_reset(self, replica_group: str) -> None: ...
    def oldest_call_ms(self) -> int: ...


class GroupSession:
    """One consumer's session with one replica group.  ``members`` is None until the leader sends the list."""

    def __init__(self, router: Router, replica_group: str, member: MemberInfo, listener: SessionListener) -> None:
        self.replica_group = replica_group
        self.members: list[sessions_pb2.GroupMember] | None = None
        self.grants: dict[LockKey, LockGrant] = {}
        self.lease_until_ms = -1
        self.refusal: BusyError | None = None  # why the leader refused the last join, as a rule: the client id is in use
        self._member, self._listener = member, listener
        self._joined_as = member  # as the leader knows it
        self._clock = router.clock
        self._stream = LeaderStream(router, replica_group, methods.JOIN_GROUP, SESSION_SILENCE, f"consumer group {member.group}")
        self._leader = ""  # whose welcome came last
        self._joined = False
        self._left: asyncio.Future[None] | None = None
        self._requested: dict[LockKey, None] = {}  # locks not granted yet
        self._consumed: list[tuple[str, int, int]] = []
        self._outgoing: list[sessions_pb2.MemberMessage] = []
        self._outgoing_changed = asyncio.Event()
        self._lease_ms, self._heartbeat_ms = 0, FIRST_HEARTBEAT_MS
        self._heartbeat = 0  # number of the last one
        self._sent_ms: dict[int, int] = {}  # by heartbeat not acknowledged yet
        self._reset_version: int | None = None
        self._quiet_until_ms = 0  # nothing is said of standing still before

    @property
    def has_lease(self) -> bool:
        """Whether the locks may be used now.  Safe from any thread."""
        return self._clock.monotonic_ms() < self.lease_until_ms

    @property
    def is_joined(self) -> bool:
        """Whether a leader counts this consumer as a member, as far as is known here."""
        return self._joined

    @property
    def is_replaced(self) -> bool:
        """Whether the leader knows another consumer by this one's client id."""
        return self.refusal is not None and "client_id" in self.refusal.details

    def update(self, member: MemberInfo) -> None:
        """Join again, as a member with other subscriptions; the session and its locks stay."""
        self._member = member
        self._outgoing_changed.set()

    # Locks and consumed queues

    def request_lock(self, key: LockKey) -> None:
        """Request a lock; it appears in ``grants`` once it is granted."""
        if key not in self._requested and key not in self.grants:
            self._requested[key] = None
            self._send_later(sessions_pb2.MemberMessage(wish=sessions_pb2.LockWish(queues=[_queue(*key)])))

    def release(self, key: LockKey) -> None:
        """Release a lock, or withdraw the request for it.  The queue must not be in use any more."""
        self._requested.pop(key, None)
        grant = self.grants.pop(key, None)
        self._release(key, grant.epoch if grant is not None else 0)

    def _release(self, key: LockKey, epoch: int) -> None:
        self._send_later(sessions_pb2.MemberMessage(release=sessions_pb2.LockRelease(queues=[_queue(*key, epoch)])))

    def report(self, queues: Iterable[tuple[str, int, int]]) -> None:
        """Publish to the other members which queues are consumed here: (topic, queue id, epoch)."""
        queues = sorted(queues)
        if queues != self._consumed:
            self._consumed = queues
            self._send_consumed()

    def _send_consumed(self) -> None:
        consumed = sessions_pb2.SessionQueues(queues=[_queue(*each) for each in self._consumed])
        self._send_later(sessions_pb2.MemberMessage(queues=consumed))

    def _send_later(self, message: sessions_pb2.MemberMessage) -> None:
        if self._joined:
            self._outgoing.append(message)
            self._outgoing_changed.set()

    async def leave(self, timeout_s: float) -> None:
        """Leave the group.  Locks are free when this returns, or after the session timeout when the leader cannot be reached."""
        if not self._joined:
            return
        self._left = asyncio.get_running_loop().create_future()
        self._send_later(sessions_pb2.MemberMessage(leave=sessions_pb2.SessionLeave()))
        await wait_up_to(timeout_s, self._left)

    # The stream

    async def run(self) -> None:
        """Stay a member until cancelled, or until the session was left."""
        logged = ""
        while self._left is None or not self._left.done():
            try:
                await self._stream.locate()
                await self._join_and_serve()
            except DledgerError as error:
                is_refusal = isinstance(error, BusyError)
                if error.message != logged and (is_refusal or not (error.retriable or error.refresh_route)):
                    logged = error.message
                    _logger.warning("consumer group %s at %s: %s", self._member.group, self.replica_group, logged)
                self._refused(error if isinstance(error, BusyError) and not self._stream.is_confirmed else None)
                await self._stream.back_off(error)

    def _refused(self, refusal: BusyError | None) -> None:
        was_replaced, self.refusal = self.is_replaced, refusal
        if self.is_replaced and not was_replaced:
            self.members = None  # the one of this name in there is the other one
            self._listener.members_changed()

    async def _join_and_serve(self) -> None:
        stream = self._stream
        stream.open()
        try:
            await self._join()
            reader = asyncio.get_running_loop().create_task(self._read_events(), name=f"session with {self.replica_group}")
            reader.add_done_callback(lambda _: self._outgoing_changed.set())
            try:
                await self._write_messages(reader)
            finally:
                self._joined = False
                self._listener.members_changed()  # the leader of another replica group may have a newer list
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
        finally:
            await stream.close()

    async def _join(self) -> None:
        stream, sent = self._stream, self._consumed
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await stream.write(self._join_message())
                self._welcomed(await self._read())
        except TimeoutError:
            raise UnreachableError(
                f"no response from {stream.address} to a join within {WELCOME_TIMEOUT_S:g} s", address=stream.address
            ) from None
        if self._consumed != sent:  # between the join and its answer
            self._send_consumed()
        stream.confirm()
        if stream.address != self._leader:
            self._leader = stream.address
            self._listener.leader_changed(self.replica_group)

    def _join_message(self) -> bytes:
        member = self._joined_as = self._member
        join = sessions_pb2.SessionJoin(
            group=member.group,
            client_id=member.client_id,
            session_id=member.session_id,
            broadcast=member.broadcast,
            orderly=member.orderly,
            strategy=member.strategy,
            known_members=[each.client_id for each in self.members or ()],
            queues=[_queue(*each) for each in self._consumed],
        )
        for topic, expression in member.subscriptions.items():
            join.subscriptions.add(topic=topic, expression=expression)
        return bytes(sessions_pb2.MemberMessage(join=join).SerializeToString())

    async def _read(self) -> sessions_pb2.MasterMessage:
        message = await self._stream.read()
        self._stream.touch()
        return methods.JOIN_GROUP.parse_response(message, self._stream.address)

    def _welcomed(self, message: sessions_pb2.MasterMessage) -> None:
        """Take over the leader's list of locks: drop those it does not hold, release those not needed, request the others again."""
        if message.WhichOneof("body") != "welcome":
            raise UnreachableError("protocol error: expected SessionWelcome")
        welcome = message.welcome
        self._lease_ms, self._heartbeat_ms = welcome.lease_ms, welcome.heartbeat_ms
        self._sent_ms.clear()
        self._outgoing.clear()
        self._joined, self.refusal = True, None
        held = {(lock.topic, lock.queue_id): lock for lock in welcome.locks}
        for key in [key for key, grant in self.grants.items() if key not in held or held[key].epoch != grant.epoch]:
            del self.grants[key]
        self._granted(lock for key, lock in held.items() if key not in self.grants)
        if self._requested:
            self._send_later(sessions_pb2.MemberMessage(wish=sessions_pb2.LockWish(queues=[_queue(*key) for key in self._requested])))
        self._listener.locks_changed(self.replica_group)
        self._check_reset(welcome.reset_version)

    async def _write_messages(self, reader: asyncio.Task[None]) -> None:
        """Send heartbeats, and what is queued between them, until the reader ends or the member is to join again."""
        next_ms = self._clock.monotonic_ms()
        while not reader.done() and self._joined_as is self._member:
            while self._outgoing:
                await self._stream.write(self._outgoing.pop(0).SerializeToString())
            now_ms = self._clock.monotonic_ms()
            if now_ms >= next_ms:
                next_ms = now_ms + self._heartbeat_ms
                await self._send_heartbeat(now_ms)
                await self._stream.check_leader()
            self._outgoing_changed.clear()
            if not self._outgoing and not reader.done() and self._joined_as is self._member:
                await wait_up_to(max(1, next_ms - self._clock.monotonic_ms()) / 1000, self._outgoing_changed.wait())
                self._log_stand_still(self._clock.monotonic_ms() - next_ms)
        if reader.done():
            reader.result()

    def _log_stand_still(self, late_ms: int) -> None:
        """Warn when nothing ran here for so long that the locks are lost: a listener may do that with every message."""
        if self._member.broadcast or late_ms < self._lease_ms or self._clock.monotonic_ms() < self._quiet_until_ms:
            return
        self._quiet_until_ms = self._clock.monotonic_ms() + QUIET_MS
        text = "consumer group %s at %s: this consumer stood still for %.1f s, so its queues went to others and messages come again; %s"
        why = "the process was suspended or got no CPU, or a listener of dledger_client.aio blocks the event loop"
        _logger.warning(text, self._member.group, self.replica_group, late_ms / 1000, why)

    async def _send_heartbeat(self, now_ms: int) -> None:
        self._heartbeat += 1
        self._sent_ms = {number: sent_ms for number, sent_ms in self._sent_ms.items() if now_ms - sent_ms < self._lease_ms}
        self._sent_ms[self._heartbeat] = now_ms
        heartbeat = sessions_pb2.SessionHeartbeat(number=self._heartbeat, oldest_call_ms=self._listener.oldest_call_ms())
        await self._stream.write(sessions_pb2.MemberMessage(heartbeat=heartbeat).SerializeToString())

    async def _read_events(self) -> None:
        try:
            while True:
                message = await self._read()
                kind = message.WhichOneof("body")
                if kind == "ack":
                    self._acknowledged(message.ack)
                elif kind == "members":
                    self.members = list(message.members.members)
                    self._listener.members_changed()
                elif kind == "granted":
                    self._granted(message.granted.locks)
                    self._listener.locks_changed(self.replica_group)
        except DledgerError:
            if self._left is None:
                raise
        finally:
            if self._left is not None and not self._left.done():
                self._left.set_result(None)

    def _granted(self, locks: Iterable[sessions_pb2.HeldLock]) -> None:
        for lock in locks:
            key = (lock.topic, lock.queue_id)
            if key in self._requested:
                del self._requested[key]
                self.grants[key] = LockGrant(lock.epoch, lock.offset if lock.has_offset else None, lock.generation)
            elif key not in self.grants:
                self._release(key, lock.epoch)

    def _acknowledged(self, ack: sessions_pb2.SessionAck) -> None:
        sent_ms = self._sent_ms.pop(ack.number, None)
        if sent_ms is not None:
            for number in [number for number in self._sent_ms if number < ack.number]:
                del self._sent_ms[number]
            self.lease_until_ms = max(self.lease_until_ms, sent_ms + self._lease_ms)
            self._listener.lease_renewed(self.replica_group)
        self._check_reset(ack.reset_version)

    def _check_reset(self, version: int) -> None:
        known, self._reset_version = self._reset_version, version
        if known is not None and known != version:
            self._listener.offsets_reset(self.replica_group)


def _queue(topic: str, queue_id: int, epoch: int = 0) -> sessions_pb2.QueuePlace:
    return sessions_pb2.QueuePlace(topic=topic, queue_id=queue_id, epoch=epoch)
