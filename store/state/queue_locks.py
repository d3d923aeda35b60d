"""Locks of orderly consumers, as replicated state: which session may consume a queue for its group, and in which epoch.

Owns the rules and config/queueLocks.json.  An epoch is the place in the log of the command that granted the lock: every later owner has a
higher one, for ever.  A session that asks again for what it holds keeps its epoch.  The grant tells the group's position: commits of
earlier owners stand before it in the log, later ones are refused, so the new owner goes on exactly where the others ended.  When a lock is
to be freed is not decided here but by the master's sessions (``broker/groups/sessions.py``), which send the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group
from store.state.sections import CommandContext, CommandResult, Handler

LOCK, UNLOCK = "lock_queues", "unlock_queues"
MAX_QUEUES = 10_000  # in one command

Queue = tuple[str, int]  # topic, queue id


@dataclass(frozen=True, slots=True)
class QueueLock:
    """Who holds a queue: the session, the client it belongs to, and since which place in the log."""

    owner: str
    client: str
    epoch: int


class QueueLocks:
    """The locks of every group.  Implements ``group_state.Section``; ``grantable`` asks whether (topic, queue) exists."""

    file_name = "queueLocks.json"

    def __init__(self, grantable: Callable[[str, int], bool]) -> None:
        self._grantable = grantable
        self.version = 0  # counts the changes this process has seen
        self._locks: dict[str, dict[Queue, QueueLock]] = {}

    def get(self, group: str, topic: str, queue_id: int) -> QueueLock | None:
        return self._locks.get(group, {}).get((topic, queue_id))

    def epoch(self, group: str, topic: str, queue_id: int) -> int:
        """The current epoch; 0 when nobody holds the queue."""
        lock = self.get(group, topic, queue_id)
        return lock.epoch if lock is not None else 0

    def held_by(self, group: str, owner: str) -> dict[Queue, QueueLock]:
        return {queue: lock for queue, lock in self._locks.get(group, {}).items() if lock.owner == owner}

    def owners(self) -> list[tuple[str, str, str]]:
        """(group, session, client) of everybody who holds something, in the order of the log."""
        found = {(group, lock.owner, lock.client): None for group, locks in self._locks.items() for lock in locks.values()}
        return list(found)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, and its locks with it."""
        for group in list(self._locks):
            self._keep(group, {queue: lock for queue, lock in self._locks[group].items() if queue[0] != topic})

    def _keep(self, group: str, locks: dict[Queue, QueueLock]) -> None:
        self.version += 1
        if locks:
            self._locks[group] = locks
        else:
            self._locks.pop(group, None)

    def handlers(self) -> Mapping[str, Handler]:
        return {LOCK: self._lock, UNLOCK: self._unlock}

    def _lock(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        """Grant what is free, or held by the same session; the rest is left out of the result."""
        group, owner, rows = check_lock(arguments)
        client = str(arguments.get("client", ""))
        locks, granted = dict(self._locks.get(group, {})), []
        for topic, queue_id, _ in rows:
            lock = locks.get((topic, queue_id))
            if lock is None and self._grantable(topic, queue_id):
                lock = locks[topic, queue_id] = QueueLock(owner, client, context.pos)
            if lock is not None and lock.owner == owner:
                granted.append([topic, queue_id, lock.epoch])
        self._keep(group, locks)
        return {"granted": granted}

    def _unlock(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        """Free what the session holds in the epochs named; everything of it when no queue is named."""
        group, owner, rows = check_lock(arguments)
        locks = dict(self._locks.get(group, {}))
        wanted = rows or [(topic, queue_id, lock.epoch) for (topic, queue_id), lock in locks.items() if lock.owner == owner]
        freed = 0
        for topic, queue_id, epoch in wanted:
            lock = locks.get((topic, queue_id))
            if lock is not None and lock.owner == owner and lock.epoch == epoch:
                del locks[topic, queue_id]
                freed += 1
        self._keep(group, locks)
        return {"freed": freed}

    def dump(self) -> dict[str, Any]:
        return {
            "lockTable": {
                group: [[topic, queue_id, lock.owner, lock.client, lock.epoch] for (topic, queue_id), lock in locks.items()]
                for group, locks in self._locks.items()
            }
        }

    def load(self, data: dict[str, Any]) -> None:
        self._locks = {
            group: {(topic, queue_id): QueueLock(owner, client, epoch) for topic, queue_id, owner, client, epoch in rows}
            for group, rows in data["lockTable"].items()
        }


def check_lock(arguments: dict[str, Any]) -> tuple[str, str, list[tuple[str, int, int]]]:
    """(group, session, [(topic, queue, epoch)]) of a command.  InvalidNameError, InvalidArgumentError for one that could never succeed."""
    group, owner, rows = check_group(str(arguments.get("group", ""))), str(arguments.get("owner", "")), arguments.get("queues", [])
    if not owner or not isinstance(rows, list) or len(rows) > MAX_QUEUES:
        raise InvalidArgumentError(f"expected a session, and at most {MAX_QUEUES} queues to lock")
    return group, owner, [(str(topic), int(queue_id), int(epoch)) for topic, queue_id, epoch in rows]
