"""Granting and freeing queue locks for the sessions of one term: what is wanted, what is to be freed, and the commands that do it.

Owns the order: what is released goes into the log before anything is granted.  Commands are safe to repeat, so one with an unknown outcome
is sent again for as long as the term lasts; what a lost term leaves undone, the next master finds in the replicated locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.services.face import ServiceFace
from broker.services.session_table import Session
from dledger_wire._pb import sessions_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from store.queue_locks import LOCK, MAX_QUEUES, UNLOCK, Queue

COMMAND_TIMEOUT_S = 5.0
RETRY_S = 0.05

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Release:
    """Locks to free: those named, or all of the session."""

    group: str
    owner: str
    rows: list[list[Any]]
    done: asyncio.Future[None]


class LockKeeper:
    """The locks of one term.  ``granted`` is told what a session got."""

    def __init__(self, face: ServiceFace, granted: Callable[[Session, list[sessions_pb2.HeldLock]], None]) -> None:
        self._face = face
        self._granted = granted
        self._wishes: dict[Session, dict[Queue, None]] = {}
        self._releases: list[_Release] = []
        self._changed = asyncio.Event()

    def wish(self, session: Session, queues: list[Queue]) -> None:
        """Grant these as soon as they are free."""
        wishes = self._wishes.setdefault(session, {})
        wishes.update(dict.fromkeys(queues))
        if len(wishes) > MAX_QUEUES:
            raise InvalidArgumentError(f"{len(wishes)} queues to lock; expected at most {MAX_QUEUES}")
        self._changed.set()

    def forget_wishes(self, session: Session) -> None:
        self._wishes.pop(session, None)

    def release(self, session: Session, places: list[tuple[str, int, int]]) -> None:
        """Free these (topic, queue, epoch), and want none of them any more."""
        wishes = self._wishes.get(session, {})
        for topic, queue_id, _ in places:
            wishes.pop((topic, queue_id), None)
        held = [[topic, queue_id, epoch] for topic, queue_id, epoch in places if epoch]
        if held:
            self._free(session, held)

    def free(self, session: Session) -> asyncio.Future[None]:
        """Free everything a session has; the future resolves when that is committed."""
        self.forget_wishes(session)
        return self._free(session, [])

    def _free(self, session: Session, rows: list[list[Any]]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._releases.append(_Release(session.group, session.session_id, rows, done))
        self._changed.set()
        return done

    def held(self, session: Session) -> list[sessions_pb2.HeldLock]:
        """What a session holds, as it is told; what is on its way to be freed is lost to it already."""
        group, owner = session.group, session.session_id
        freed = [release.rows for release in self._releases if (release.group, release.owner) == (group, owner)]
        if [] in freed:
            return []
        gone = [row for rows in freed for row in rows]
        locks = self._face.store.queue_locks.held_by(group, owner)
        return [self._told(group, queue, lock.epoch) for queue, lock in locks.items() if [*queue, lock.epoch] not in gone]

    def _told(self, group: str, queue: Queue, epoch: int) -> sessions_pb2.HeldLock:
        known = self._face.store.consumer_offsets
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
        releases = list(self._releases)
        await _all([self._unlock(release) for release in releases])
        await _all([self._grant(session) for session in list(self._wishes)])

    async def _unlock(self, release: _Release) -> None:
        arguments = {"group": release.group, "owner": release.owner, "queues": release.rows}
        await self._face.command(UNLOCK, arguments, COMMAND_TIMEOUT_S)
        self._releases.remove(release)
        if not release.done.done():
            release.done.set_result(None)

    async def _grant(self, session: Session) -> None:
        locks, group, owner = self._face.store.queue_locks, session.group, session.session_id
        wanted = [queue for queue in self._wishes.get(session, {}) if (lock := locks.get(group, *queue)) is None or lock.owner == owner]
        if not wanted:
            return
        rows = [[topic, queue_id, 0] for topic, queue_id in wanted]
        result = await self._face.command(
            LOCK, {"group": group, "owner": owner, "client": session.client_id, "queues": rows}, COMMAND_TIMEOUT_S
        )
        wishes = self._wishes.get(session, {})
        told = []
        for topic, queue_id, epoch in result["granted"]:
            wishes.pop((topic, queue_id), None)
            told.append(self._told(group, (topic, queue_id), epoch))
        if not wishes:
            self.forget_wishes(session)
        if told:
            self._granted(session, told)


async def _all(work: list[Any]) -> None:
    """Run everything at once; the first error is raised when all have ended."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
