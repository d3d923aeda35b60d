"""Queue locks for the sessions of one term: what members requested, what is to be freed, and the commands that do it.

Owns the order: what a session releases goes into the log before anything is granted to it.  Commands are safe to repeat, so one with an
unknown outcome is sent again for as long as the term lasts; what a lost term leaves undone, the next master finds in the replicated locks.
A request that can never be granted is refused at once, and a command that fails delays its own session only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from broker.context import ServiceContext
from broker.groups.session_table import Session
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.names import check_topic
from store.commands.command import Command
from store.commands.queue_locks import MAX_LOCKED_QUEUES, LockedQueue, LockQueues, TopicQueue, UnlockQueues

COMMAND_TIMEOUT_S = 5.0
RETRY_S = 0.05

_logger = logging.getLogger(__name__)

T = TypeVar("T")
ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Release:
    """Locks to free: those named, or with no name all of the session."""

    group: str
    owner: str
    queues: tuple[LockedQueue, ...]
    done: asyncio.Future[None]

    def is_of(self, session: Session) -> bool:
        return (self.group, self.owner) == (session.group, session.session_id)


class LockManager:
    """The locks of one term.  ``on_granted`` is called with what a session got."""

    def __init__(self, context: ServiceContext, on_granted: Callable[[Session, list[sessions_pb2.HeldLock]], None]) -> None:
        self._context = context
        self._on_granted = on_granted
        self._requests: dict[Session, dict[TopicQueue, None]] = {}
        self._releases: list[_Release] = []
        self._changed = asyncio.Event()

    def request(self, session: Session, queues: list[TopicQueue]) -> None:
        """Grant these queues as soon as they are free.  InvalidArgumentError, InvalidNameError for what can never be granted."""
        for topic in {topic: None for topic, _ in queues}:
            check_topic(topic)
        requested = self._requests.get(session, {}) | dict.fromkeys(queues)
        if len(requested) > MAX_LOCKED_QUEUES:
            raise InvalidArgumentError(f"{len(requested)} queues to lock; expected at most {MAX_LOCKED_QUEUES}")
        self._requests[session] = requested
        self._changed.set()

    def withdraw_requests(self, session: Session) -> None:
        self._requests.pop(session, None)

    def release(self, session: Session, queues: list[LockedQueue]) -> None:
        """Free those of these (topic, queue, epoch) that the session holds, and withdraw its requests for them."""
        requested = self._requests.get(session, {})
        for topic, queue_id, _ in queues:
            requested.pop((topic, queue_id), None)
        locks, releasing = self._context.store.queue_locks, self._releasing(session)
        held: list[LockedQueue] = []
        for queue in dict.fromkeys(queues):
            topic, queue_id, epoch = queue
            lock = locks.get(session.group, topic, queue_id)
            is_owner = lock is not None and (lock.owner, lock.epoch) == (session.session_id, epoch)
            if is_owner and releasing is not None and queue not in releasing:
                held.append(queue)
        if held:
            self._free(session, tuple(held))

    def free(self, session: Session) -> asyncio.Future[None]:
        """Free everything a session has; the future resolves when that is committed."""
        self.withdraw_requests(session)
        return self._free(session, ())

    def _free(self, session: Session, queues: tuple[LockedQueue, ...]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._releases.append(_Release(session.group, session.session_id, queues, done))
        self._changed.set()
        return done

    def held(self, session: Session) -> list[sessions_pb2.HeldLock]:
        """What a session holds, without what is being released."""
        releasing = self._releasing(session)
        if releasing is None:
            return []
        locks = self._context.store.queue_locks.held_by(session.group, session.session_id)
        return [self._held_lock(session.group, queue, lock.epoch) for queue, lock in locks.items() if (*queue, lock.epoch) not in releasing]

    def _releasing(self, session: Session) -> set[LockedQueue] | None:
        """What is being released; None for everything."""
        releases = [release.queues for release in self._releases if release.is_of(session)]
        if () in releases:
            return None
        return {queue for queues in releases for queue in queues}

    def _held_lock(self, group: str, queue: TopicQueue, epoch: int) -> sessions_pb2.HeldLock:
        known = self._context.store.consumer_offsets
        offset = known.known_position(group, *queue)
        lock = sessions_pb2.HeldLock(topic=queue[0], queue_id=queue[1], epoch=epoch, generation=known.generation(group, *queue))
        lock.has_offset, lock.offset = offset is not None, offset or 0
        return lock

    async def run(self) -> None:
        """Commit requests and releases until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._commit_all()
            except DledgerError as error:
                _logger.info("lock requests deferred: %s", error.message)
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _commit_all(self) -> None:
        outcomes = await asyncio.gather(*[self._unlock(release) for release in self._releases], return_exceptions=True)
        ready = [session for session in self._requests if not any(release.is_of(session) for release in self._releases)]
        outcomes += await asyncio.gather(*[self._grant(session) for session in ready], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _unlock(self, release: _Release) -> None:
        def command(queues: tuple[LockedQueue, ...]) -> UnlockQueues:
            return UnlockQueues(group=release.group, owner=release.owner, queues=queues)

        await self._in_parts(release.queues, command)
        self._releases.remove(release)
        if not release.done.done():
            release.done.set_result(None)

    async def _in_parts(self, queues: tuple[T, ...], command: Callable[[tuple[T, ...]], Command[ResultT]]) -> list[ResultT]:
        """Send a command for these queues, and one for each half of them if all in one are more than maxMessageSize allows."""
        try:
            return [await self._context.command(command(queues), COMMAND_TIMEOUT_S)]
        except InvalidArgumentError:
            if len(queues) < 2:
                raise
        half = len(queues) // 2
        return await self._in_parts(queues[:half], command) + await self._in_parts(queues[half:], command)

    async def _grant(self, session: Session) -> None:
        locks, group, owner = self._context.store.queue_locks, session.group, session.session_id
        free = [queue for queue in self._requests.get(session, {}) if (lock := locks.get(group, *queue)) is None or lock.owner == owner]
        if not free:
            return

        def command(queues: tuple[TopicQueue, ...]) -> LockQueues:
            return LockQueues(group=group, owner=owner, client=session.client_id, queues=queues)

        granted = [queue for part in await self._in_parts(tuple(free), command) for queue in part]
        requested = self._requests.get(session, {})
        held = []
        for topic, queue_id, epoch in granted:
            requested.pop((topic, queue_id), None)
            held.append(self._held_lock(group, (topic, queue_id), epoch))
        if not requested:
            self.withdraw_requests(session)
        if held:
            self._on_granted(session, held)
