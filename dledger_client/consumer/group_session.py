"""A consumer's session with the master of one replica group: being a member, hearing of the others, holding locks.

Owns the stream and starts it again, at whoever is master, for as long as the consumer lives; the session's id stays the same, so that
locks survive.  What the consumer wants is kept here and said again after every rejoin.  The lease: a lock may be used until ``lease_ms``
after the last acknowledged heartbeat *left*; whatever the master does, the lock is not given away before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dledger_client.cluster.leader_tracker import LeaderTracker
from dledger_client.cluster.metadata import Router
from dledger_client.cluster.responses import parse
from dledger_client.cluster.retry import JitteredBackoff
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import BusyError, DledgerError, UnreachableError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream

WELCOME_TIMEOUT_S = 1.0
SILENCE_MS = 800  # a master that acknowledges nothing for that long may be one no more
CLOSE_TIMEOUT_S = 1.0
FIRST_HEARTBEAT_MS = 250

_logger = logging.getLogger(__name__)

LockKey = tuple[str, int]  # topic, queue id


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What a consumer tells of itself."""

    group: str
    client_id: str
    session_id: str
    subscriptions: dict[str, str]  # topic -> expression
    broadcast: bool
    orderly: bool
    strategy: str


@dataclass(frozen=True, slots=True)
class LockGrant:
    """A lock, and where the group had come to when it was granted (None: nowhere yet)."""

    epoch: int
    offset: int | None
    generation: int


class SessionListener(Protocol):
    """What a session tells its consumer.  Called on the loop; must not wait."""

    def master_changed(self, group: str) -> None: ...
    def members_changed(self) -> None: ...
    def locks_changed(self, group: str) -> None: ...
    def lease_renewed(self, group: str) -> None: ...
    def positions_reset(self, group: str) -> None: ...


class GroupSession:
    """One consumer's session with one replica group.  ``members`` None: not told yet."""

    def __init__(self, router: Router, group: str, profile: MemberInfo, events: SessionListener) -> None:
        self.group = group
        self.members: list[sessions_pb2.GroupMember] | None = None
        self.grants: dict[LockKey, LockGrant] = {}
        self.lease_until_ms = -1
        self._router, self._profile, self._events = router, profile, events
        self._clock = router.clock
        self._wishes: dict[LockKey, None] = {}
        self._queues: list[tuple[str, int, int]] = []
        self._outgoing: list[sessions_pb2.MemberMessage] = []
        self._news = asyncio.Event()
        self._attending = False
        self._left: asyncio.Future[None] | None = None
        self._sent_ms: dict[int, int] = {}
        self._number = 0
        self._heard_ms = 0
        self._lease_ms, self._heartbeat_ms = 0, FIRST_HEARTBEAT_MS
        self._reset_version: int | None = None
        self._leader = LeaderTracker(router, group)
        self._master = ""
        self.refusal: BusyError | None = None  # why the master did not take us the last time: the client id is in use

    # What the consumer wants

    @property
    def has_lease(self) -> bool:
        """Whether the locks may be used now.  May be asked from any thread."""
        return self._clock.monotonic_ms() < self.lease_until_ms

    @property
    def is_attending(self) -> bool:
        """Whether a master hears us, as far as we know."""
        return self._attending

    def wish(self, place: LockKey) -> None:
        """Ask for a lock; ``grants`` has it when it is there."""
        if place not in self._wishes and place not in self.grants:
            self._wishes[place] = None
            self._say(sessions_pb2.MemberMessage(wish=sessions_pb2.LockWish(queues=[_place(*place)])))

    def release(self, place: LockKey) -> None:
        """Give a lock back, or the wish for it up.  Nothing of the queue may be in use any more."""
        self._wishes.pop(place, None)
        grant = self.grants.pop(place, None)
        epoch = grant.epoch if grant is not None else 0
        self._say(sessions_pb2.MemberMessage(release=sessions_pb2.LockRelease(queues=[_place(*place, epoch)])))

    def report(self, queues: Iterable[tuple[str, int, int]]) -> None:
        """Tell the others what is consumed here now: (topic, queue, epoch)."""
        queues = sorted(queues)
        if queues != self._queues:
            self._queues = queues
            told = sessions_pb2.SessionQueues(queues=[_place(*each) for each in queues])
            self._say(sessions_pb2.MemberMessage(queues=told))

    def _say(self, message: sessions_pb2.MemberMessage) -> None:
        if self._attending:
            self._outgoing.append(message)
            self._news.set()

    async def leave(self, timeout_s: float) -> None:
        """End in order: locks are free when this returns (or the master could not be reached in time, and will see to it)."""
        if not self._attending:
            return
        self._left = asyncio.get_running_loop().create_future()
        self._say(sessions_pb2.MemberMessage(leave=sessions_pb2.SessionLeave()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._left

    # The stream

    async def run(self) -> None:
        """Attend until cancelled, or until the session was left."""
        pauses, attempt, told = JitteredBackoff(self._router.random), 0, ""
        while self._left is None or not self._left.done():
            try:
                await self._attend(await self._leader.address())
                attempt = 0
            except DledgerError as error:
                if error.message != told and (isinstance(error, BusyError) or not (error.retriable or error.refresh_route)):
                    told = error.message
                    _logger.warning("consumer group %s at %s: %s", self._profile.group, self.group, told)
                self.refusal = error if isinstance(error, BusyError) and not self._heard_ms else None
                attempt = 1 if self._heard_ms else attempt + 1
                self._heard_ms = 0
                await asyncio.sleep(pauses.pause_ms(attempt, busy=isinstance(error, BusyError)) / 1000)

    async def _attend(self, address: str) -> None:
        stream = methods.JOIN_GROUP.open(self._router.channel(address))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                await stream.write(self._join())
                self._welcomed(await self._read(stream, address))
            if address != self._master:
                self._master = address
                self._events.master_changed(self.group)
        except TimeoutError:
            await _close(stream)
            raise UnreachableError(f"{address} welcomed nobody in time", address=address) from None
        except BaseException:
            await _close(stream)
            raise
        self._leader.answered()
        reader = loop.create_task(self._listen(stream, address), name=f"hear the master of {self.group}")
        reader.add_done_callback(lambda _: self._news.set())
        try:
            await self._speak(stream, address, reader)
        finally:
            self._attending = False
            self._events.members_changed()  # another replica group's master may know better now
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await _close(stream)

    def _join(self) -> bytes:
        profile = self._profile
        join = sessions_pb2.SessionJoin(
            group=profile.group,
            client_id=profile.client_id,
            session_id=profile.session_id,
            broadcast=profile.broadcast,
            orderly=profile.orderly,
            strategy=profile.strategy,
            known_members=[member.client_id for member in self.members or ()],
            queues=[_place(*each) for each in self._queues],
        )
        for topic, expression in profile.subscriptions.items():
            join.subscriptions.add(topic=topic, expression=expression)
        return bytes(sessions_pb2.MemberMessage(join=join).SerializeToString())

    async def _read(self, stream: ByteStream, address: str) -> sessions_pb2.MasterMessage:
        message = await stream.read()
        if message is None:
            raise UnreachableError(f"{address}: the session's stream ended", address=address)
        self._heard_ms = self._clock.monotonic_ms()
        return parse(sessions_pb2.MasterMessage, message, address)

    def _welcomed(self, message: sessions_pb2.MasterMessage) -> None:
        """What is not held any more is lost; what is held and neither used nor wanted is given back; what is wanted is asked for again."""
        if message.WhichOneof("body") != "welcome":
            raise UnreachableError("a session that does not begin with a welcome")
        welcome = message.welcome
        self._lease_ms, self._heartbeat_ms = welcome.lease_ms, welcome.heartbeat_ms
        self._sent_ms.clear()
        self._outgoing.clear()
        self._attending, self.refusal = True, None
        held = {(lock.topic, lock.queue_id): lock for lock in welcome.locks}
        for place in [place for place, grant in self.grants.items() if place not in held or held[place].epoch != grant.epoch]:
            del self.grants[place]
        self._granted(lock for place, lock in held.items() if place not in self.grants)
        if self._wishes:
            self._say(sessions_pb2.MemberMessage(wish=sessions_pb2.LockWish(queues=[_place(*place) for place in self._wishes])))
        self._events.locks_changed(self.group)
        self._heard_reset(welcome.reset_version)

    async def _speak(self, stream: ByteStream, address: str, reader: asyncio.Task[None]) -> None:
        next_ms = self._clock.monotonic_ms()
        while not reader.done():
            while self._outgoing:
                await stream.write(self._outgoing.pop(0).SerializeToString())
            now_ms = self._clock.monotonic_ms()
            if now_ms >= next_ms:
                next_ms = now_ms + self._heartbeat_ms
                self._number += 1
                self._sent_ms = {number: at_ms for number, at_ms in self._sent_ms.items() if now_ms - at_ms < self._lease_ms}
                self._sent_ms[self._number] = now_ms
                await stream.write(
                    sessions_pb2.MemberMessage(heartbeat=sessions_pb2.SessionHeartbeat(number=self._number)).SerializeToString()
                )
                await self._look_for_another_master(address)
            self._news.clear()
            if not self._outgoing and not reader.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(1, next_ms - self._clock.monotonic_ms()) / 1000):
                        await self._news.wait()
        reader.result()

    async def _look_for_another_master(self, address: str) -> None:
        """A paused or cut-off master keeps its connections; one that nobody knows a successor of may only be slow."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._heard_ms < SILENCE_MS:
            return
        try:
            view = await self._router.find_leader(self.group)
        except DledgerError:
            return
        if view.leader_address != address:
            raise UnreachableError(f"{address} is silent and {view.leader_address} leads now", address=address)

    async def _listen(self, stream: ByteStream, address: str) -> None:
        try:
            while True:
                message = await self._read(stream, address)
                kind = message.WhichOneof("body")
                if kind == "ack":
                    self._acknowledged(message.ack)
                elif kind == "members":
                    self.members = list(message.members.members)
                    self._events.members_changed()
                elif kind == "granted":
                    self._granted(message.granted.locks)
                    self._events.locks_changed(self.group)
        except DledgerError:
            if self._left is None:
                raise
        finally:
            if self._left is not None and not self._left.done():
                self._left.set_result(None)

    def _granted(self, locks: Iterable[sessions_pb2.HeldLock]) -> None:
        for lock in locks:
            place = (lock.topic, lock.queue_id)
            if place in self._wishes:
                del self._wishes[place]
                self.grants[place] = LockGrant(lock.epoch, lock.offset if lock.has_offset else None, lock.generation)
            elif place not in self.grants:
                self._say(sessions_pb2.MemberMessage(release=sessions_pb2.LockRelease(queues=[_place(*place, lock.epoch)])))

    def _acknowledged(self, ack: sessions_pb2.SessionAck) -> None:
        sent_ms = self._sent_ms.pop(ack.number, None)
        if sent_ms is not None:
            for number in [number for number in self._sent_ms if number < ack.number]:
                del self._sent_ms[number]
            self.lease_until_ms = max(self.lease_until_ms, sent_ms + self._lease_ms)
            self._events.lease_renewed(self.group)
        self._heard_reset(ack.reset_version)

    def _heard_reset(self, version: int) -> None:
        known, self._reset_version = self._reset_version, version
        if known is not None and known != version:
            self._events.positions_reset(self.group)


def _place(topic: str, queue_id: int, epoch: int = 0) -> sessions_pb2.QueuePlace:
    return sessions_pb2.QueuePlace(topic=topic, queue_id=queue_id, epoch=epoch)


async def _close(stream: ByteStream) -> None:
    with contextlib.suppress(TimeoutError, DledgerError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await stream.close()
