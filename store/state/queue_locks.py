"""Locks of orderly consumers, as replicated state: which session may consume a queue for its group, and in which epoch.

Owns the rules and config/queueLocks.json.  An epoch is the place in the log of the command that granted the lock: every later owner has a
higher one, for ever.  A session that asks again for what it holds keeps its epoch.  The grant contains the group's offset: commits of
earlier owners stand before it in the log, later ones are refused, so the new owner goes on exactly where the others ended.  When a lock is
to be freed is not decided here but by the master's sessions (``broker/groups/sessions.py``), which send the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from store.commands.command import JsonObject
from store.commands.queue_locks import LockedQueue, LockQueues, TopicQueue, UnlockQueues
from store.state.state_machine import CommandContext, CommandHandlers


@dataclass(frozen=True, slots=True)
class QueueLock:
    """The holder of a queue: the session, the client it belongs to, and since which place in the log."""

    owner: str
    client: str
    epoch: int


class QueueLocks:
    """The locks of every group.  Implements ``StateMachineSection``; ``grantable`` asks whether (topic, queue) exists.

    ``on_grant`` gets (group, topic, queue) of every lock that begins.
    """

    file_name = "queueLocks.json"

    def __init__(self, grantable: Callable[[str, int], bool], on_grant: Callable[[str, str, int], None] = lambda *_: None) -> None:
        self._grantable, self._on_grant = grantable, on_grant
        self.version = 0  # counts the changes this process has seen
        self._locks: dict[str, dict[TopicQueue, QueueLock]] = {}

    def get(self, group: str, topic: str, queue_id: int) -> QueueLock | None:
        return self._locks.get(group, {}).get((topic, queue_id))

    def epoch(self, group: str, topic: str, queue_id: int) -> int:
        """The current epoch; 0 when the queue is not locked."""
        lock = self.get(group, topic, queue_id)
        return lock.epoch if lock is not None else 0

    def held_by(self, group: str, owner: str) -> dict[TopicQueue, QueueLock]:
        return {queue: lock for queue, lock in self._locks.get(group, {}).items() if lock.owner == owner}

    def owners(self) -> list[tuple[str, str, str]]:
        """(group, session, client) of every holder, in the order of the log."""
        found = {(group, lock.owner, lock.client): None for group, locks in self._locks.items() for lock in locks.values()}
        return list(found)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, and its locks with it."""
        for group in list(self._locks):
            self._keep(group, {queue: lock for queue, lock in self._locks[group].items() if queue[0] != topic})

    def _keep(self, group: str, locks: dict[TopicQueue, QueueLock]) -> None:
        self.version += 1
        if locks:
            self._locks[group] = locks
        else:
            self._locks.pop(group, None)

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(LockQueues, self._lock)
        handlers.on(UnlockQueues, self._unlock)

    def _lock(self, command: LockQueues, context: CommandContext) -> tuple[LockedQueue, ...]:
        """Grant what is free, or held by the same session."""
        locks = dict(self._locks.get(command.group, {}))
        granted: list[LockedQueue] = []
        for topic, queue_id in command.queues:
            lock = locks.get((topic, queue_id))
            if lock is None and self._grantable(topic, queue_id):
                lock = locks[topic, queue_id] = QueueLock(command.owner, command.client, context.pos)
                self._on_grant(command.group, topic, queue_id)
            if lock is not None and lock.owner == command.owner:
                granted.append((topic, queue_id, lock.epoch))
        self._keep(command.group, locks)
        return tuple(granted)

    def _unlock(self, command: UnlockQueues, _context: CommandContext) -> int:
        """Free what the session holds in the epochs named; all its locks when no queue is named."""
        owner, locks = command.owner, dict(self._locks.get(command.group, {}))
        held = [(topic, queue_id, lock.epoch) for (topic, queue_id), lock in locks.items() if lock.owner == owner]
        freed = 0
        for topic, queue_id, epoch in command.queues or held:
            lock = locks.get((topic, queue_id))
            if lock is not None and lock.owner == owner and lock.epoch == epoch:
                del locks[topic, queue_id]
                freed += 1
        self._keep(command.group, locks)
        return freed

    def dump(self) -> JsonObject:
        return {
            "lockTable": {
                group: [[topic, queue_id, lock.owner, lock.client, lock.epoch] for (topic, queue_id), lock in locks.items()]
                for group, locks in self._locks.items()
            }
        }

    def load(self, data: JsonObject) -> None:
        self._locks = {
            group: {(topic, queue_id): QueueLock(owner, client, epoch) for topic, queue_id, owner, client, epoch in rows}
            for group, rows in data["lockTable"].items()
        }
