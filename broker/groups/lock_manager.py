"""Granting and freeing queue locks for the sessions of one term: what is wanted, what is to be freed, and the commands that do it.

Owns the order: what a session releases goes into the log before anything is granted to it.  Commands are safe to repeat, so one with an
unknown outcome is sent again for as long as the term lasts; what a lost term leaves undone, the next master finds in the replicated locks.
What could never be carried out is refused when it is asked for, and what fails holds up its own session only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from broker.context import ServiceContext
from broker.groups.session_table import Session
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.names import check_topic
from store.commands.queue_locks import MAX_LOCKED_QUEUES, LockedQueue, LockQueues, TopicQueue, UnlockQueues

COMMAND_TIMEOUT_S = 5.0
RETRY_S = 0.05

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Release:
    """Locks to free: those named, or all of the session."""

    group: str
    owner: str
    rows: tuple[LockedQueue, ...]
    done: asyncio.Future[None]

    def is_of(self, session: Session) -> bool:
        return (self.group, self.owner) == (session.group, session.session_id)


class LockManager:
    """The locks of one term.  ``granted`` is told what a session got."""

    def __init__(self, context: ServiceContext, granted: Callable[[Session, list[sessions_pb2.HeldLock]], None]) -> None:
        self._context = context
        self._granted = granted
        self._wishes: dict[Session, dict[TopicQueue, None]] = {}
        self._releases: list[_Release] = []
        self._changed = asyncio.Event()

    def wish(self, session: Session, queues: list[TopicQueue]) -> None:
        """Grant these as soon as they are free.  InvalidArgumentError, InvalidNameError for what can never be granted."""
        for topic in {topic: None for topic, _ in queues}:
            check_topic(topic)
        wishes = self._wishes.get(session, {}) | dict.fromkeys(queues)
        if len(wishes) > MAX_LOCKED_QUEUES:
            raise InvalidArgumentError(f"{len(wishes)} queues to lock; expected at most {MAX_LOCKED_QUEUES}")
        self._wishes[session] = wishes
        self._changed.set()

    def forget_wishes(self, session: Session) -> None:
        self._wishes.pop(session, None)

    def release(self, session: Session, places: list[tuple[str, int, int]]) -> None:
        """Free those of these (topic, queue, epoch) that the session holds, and want none of them any more."""
        wishes = self._wishes.get(session, {})
        for topic, queue_id, _ in places:
            wishes.pop((topic, queue_id), None)
        locks, gone = self._context.store.queue_locks, self._gone(session)
        rows: list[LockedQueue] = []
        for place in dict.fromkeys(places):
            topic, queue_id, epoch = place
            lock = locks.get(session.group, topic, queue_id)
            if lock is not None and (lock.owner, lock.epoch) == (session.session_id, epoch) and gone is not None and place not in gone:
                rows.append(place)
        if rows:
            self._free(session, tuple(rows))

    def free(self, session: Session) -> asyncio.Future[None]:
        """Free everything a session has; the future resolves when that is committed."""
        self.forget_wishes(session)
        return self._free(session, ())

    def _free(self, session: Session, rows: tuple[LockedQueue, ...]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._releases.append(_Release(session.group, session.session_id, rows, done))
        self._changed.set()
        return done

    def held(self, session: Session) -> list[sessions_pb2.HeldLock]:
        """What a session holds, as it is told; what is on its way to be freed is lost to it already."""
        gone = self._gone(session)
        if gone is None:
            return []
        locks = self._context.store.queue_locks.held_by(session.group, session.session_id)
        return [self._told(session.group, queue, lock.epoch) for queue, lock in locks.items() if (*queue, lock.epoch) not in gone]

    def _gone(self, session: Session) -> set[tuple[str, int, int]] | None:
        """(topic, queue, epoch) of what is on its way to be freed; None for everything."""
        freed = [release.rows for release in self._releases if release.is_of(session)]
        if () in freed:
            return None
        return {(topic, queue_id, epoch) for rows in freed for topic, queue_id, epoch in rows}

    def _told(self, group: str, queue: TopicQueue, epoch: int) -> sessions_pb2.HeldLock:
        known = self._context.store.consumer_offsets
        offset = known.known_position(group, *queue)
        told = sessions_pb2.HeldLock(topic=queue[0], queue_id=queue[1], epoch=epoch, generation=known.generation(group, *queue))
        told.has_offset, told.offset = offset is not None, offset or 0
        return told

    async def run(self) -> None:
        """Carry out wishes and releases until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._carry_out()
            except DledgerError as error:
                _logger.info("queue locks wait: %s", error.message)
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _carry_out(self) -> None:
        outcomes = await asyncio.gather(*[self._unlock(release) for release in self._releases], return_exceptions=True)
        ready = [session for session in self._wishes if not any(release.is_of(session) for release in self._releases)]
        outcomes += await asyncio.gather(*[self._grant(session) for session in ready], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _unlock(self, release: _Release) -> None:
        command = UnlockQueues(group=release.group, owner=release.owner, queues=release.rows)
        await self._context.command(command, COMMAND_TIMEOUT_S)
        self._releases.remove(release)
        if not release.done.done():
            release.done.set_result(None)

    async def _grant(self, session: Session) -> None:
        locks, group, owner = self._context.store.queue_locks, session.group, session.session_id
        wanted = [queue for queue in self._wishes.get(session, {}) if (lock := locks.get(group, *queue)) is None or lock.owner == owner]
        if not wanted:
            return
        command = LockQueues(group=group, owner=owner, client=session.client_id, queues=tuple(wanted))
        granted = await self._context.command(command, COMMAND_TIMEOUT_S)
        wishes = self._wishes.get(session, {})
        told = []
        for topic, queue_id, epoch in granted:
            wishes.pop((topic, queue_id), None)
            told.append(self._told(group, (topic, queue_id), epoch))
        if not wishes:
            self.forget_wishes(session)
        if told:
            self._granted(session, told)
