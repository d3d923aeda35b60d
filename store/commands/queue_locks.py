"""Commands that lock queues for ordered consumption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group
from store.commands.command import Command, JsonObject

MAX_LOCKED_QUEUES = 10_000  # in one command

TopicQueue = tuple[str, int]  # topic, queue id
LockedQueue = tuple[str, int, int]  # topic, queue id, lock epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LockQueues(Command[tuple[LockedQueue, ...]]):
    """Locks queues for a session; the result names those that it holds now."""

    KIND: ClassVar[str] = "lock_queues"
    group: str
    owner: str
    client: str
    queues: tuple[TopicQueue, ...]

    def encode(self) -> JsonObject:
        # The zeros stand where the epoch of a lock would; they mean nothing.
        return Command.encode(self) | {"queues": [[*queue, 0] for queue in self.queues]}

    @classmethod
    def decode(cls, arguments: JsonObject) -> Self:
        locked = UnlockQueues.decode(arguments)
        queues = [[topic, queue_id] for topic, queue_id, _ in locked.queues]
        return super(LockQueues, cls).decode(arguments | {"queues": queues})

    def check(self) -> None:
        _check_session(self.group, self.owner, len(self.queues))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockQueues(Command[int]):
    """Frees locks of a session, all of them when no queue is named; the result is how many."""

    KIND: ClassVar[str] = "unlock_queues"
    group: str
    owner: str
    queues: tuple[LockedQueue, ...] = ()

    def check(self) -> None:
        _check_session(self.group, self.owner, len(self.queues))


def _check_session(group: str, owner: str, queues: int) -> None:
    check_group(group)
    if not owner or queues > MAX_LOCKED_QUEUES:
        raise InvalidArgumentError(f"expected a session, and at most {MAX_LOCKED_QUEUES} queues to lock")
