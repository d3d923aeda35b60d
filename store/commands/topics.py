"""Commands that change topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_topic, is_node_name
from dledger_wire.status import Perm, unread_queues
from store.commands.command import Command, JsonObject, optional

MAX_QUEUES = 1024
MAX_GROUPS = 1024
EMPTY, DRAINED = "empty", "drained"  # when a topic may be deleted


@dataclass(frozen=True, slots=True)
class TopicResult:
    """A topic as the command left it."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    topic_epoch: str
    created: bool
    priorities: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Command[TopicResult]):
    """A queue count of 0 or None means as many as the other one; permission 0 or None means read and write.

    ``groups``: every replica group that has or gets queues of the topic, as operators set it; none: not set.
    ``priorities``: the number of a queue is the priority of its messages.
    """

    KIND: ClassVar[str] = "create_topic"
    name: str
    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    if_not_exists: bool = False
    groups: tuple[str, ...] = optional(())
    priorities: bool = optional(False)

    def check(self) -> None:
        check_topic(self.name)
        _check_topic_fields(self.read_queues, self.write_queues, self.perm)
        _check_groups(self.groups)
        if self.read_queues and (unread := unread_queues(self.read_queues, self.write_queues or 0)):
            raise InvalidArgumentError(f"topic {self.name}: {unread}; expected at least {self.write_queues} read queues", topic=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTopic(Command[TopicResult]):
    """0, and no ``groups``, keep a field as it is.  ``force`` removes queues although they hold messages that were not read."""

    KIND: ClassVar[str] = "update_topic"
    name: str
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    force: bool = False
    groups: tuple[str, ...] = optional(())

    def check(self) -> None:
        _check_topic_fields(self.read_queues, self.write_queues, self.perm)
        _check_groups(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(Command[TopicResult]):
    """Removes a topic with everything that is kept under its name."""

    KIND: ClassVar[str] = "delete_topic"
    name: str

    def encode(self) -> JsonObject:
        # The zeros mean nothing; the first version wrote them.
        return {"name": self.name, "read_queues": 0, "write_queues": 0, "perm": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicIf(DeleteTopic):
    """Removes a topic only if nothing was ever stored in it (EMPTY), or if it takes no writes and every group has read it (DRAINED).

    Not a field of ``DeleteTopic``: a node that does not know of the condition must not delete.
    """

    KIND: ClassVar[str] = "delete_topic_if"
    only_if: str = EMPTY

    def encode(self) -> JsonObject:
        return Command.encode(self)

    def check(self) -> None:
        if self.only_if not in (EMPTY, DRAINED):
            raise InvalidArgumentError(f"only_if {self.only_if!r}: expected {EMPTY} or {DRAINED}")


def _check_groups(groups: tuple[str, ...]) -> None:
    if len(groups) > MAX_GROUPS:
        raise InvalidArgumentError(f"{len(groups)} replica groups of a topic; expected at most {MAX_GROUPS}")
    for group in groups:
        if not is_node_name(group):
            raise InvalidArgumentError(f"replica group {group!r}: expected letters, digits, _ and -, at most 64")


def _check_topic_fields(read_queues: int | None, write_queues: int | None, perm: int | None) -> None:
    for field, count in (("read_queues", read_queues), ("write_queues", write_queues)):
        if not 0 <= (count or 0) <= MAX_QUEUES:
            raise InvalidArgumentError(f"{field} {count!r}: expected 1 to {MAX_QUEUES}")
    if (perm or 0) not in (0, Perm.WRITE, Perm.READ, Perm.READ_WRITE):
        raise InvalidArgumentError(f"perm {perm!r}: expected 2 (write), 4 (read) or 6 (both)")
