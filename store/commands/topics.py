"""Commands that change topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_topic
from dledger_wire.status import Perm
from store.commands.command import Command, Fields, JsonObject, without_none

MAX_QUEUES = 1024


@dataclass(frozen=True, slots=True)
class TopicResult:
    """A topic as the command left it."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    topic_epoch: str
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Command[TopicResult]):
    """A queue count of 0 or None means as many as the other one; permission 0 or None means read and write."""

    KIND: ClassVar[str] = "create_topic"
    name: str
    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    if_not_exists: bool = False

    def encode(self) -> JsonObject:
        fields = {"name": self.name, "read_queues": self.read_queues, "write_queues": self.write_queues, "perm": self.perm}
        return without_none(fields) | {"if_not_exists": self.if_not_exists}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(
            name=fields.text("name"),
            read_queues=fields.optional_integer("read_queues"),
            write_queues=fields.optional_integer("write_queues"),
            perm=fields.optional_integer("perm"),
            if_not_exists=fields.flag("if_not_exists"),
        )

    def check(self) -> None:
        check_topic(self.name)
        _check_topic_fields(self.read_queues, self.write_queues, self.perm)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTopic(Command[TopicResult]):
    """0 keeps a field as it is.  ``force`` removes queues although they hold messages that were not read."""

    KIND: ClassVar[str] = "update_topic"
    name: str
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    force: bool = False

    def encode(self) -> JsonObject:
        return {
            "name": self.name,
            "read_queues": self.read_queues,
            "write_queues": self.write_queues,
            "perm": self.perm,
            "force": self.force,
        }

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(
            name=fields.text("name"),
            read_queues=fields.integer("read_queues"),
            write_queues=fields.integer("write_queues"),
            perm=fields.integer("perm"),
            force=fields.flag("force"),
        )

    def check(self) -> None:
        _check_topic_fields(self.read_queues, self.write_queues, self.perm)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(Command[TopicResult]):
    """Removes a topic with everything that is kept under its name."""

    KIND: ClassVar[str] = "delete_topic"
    name: str

    def encode(self) -> JsonObject:
        # The zeros mean nothing; the first version wrote them.
        return {"name": self.name, "read_queues": 0, "write_queues": 0, "perm": 0}

    @classmethod
    def decode(cls, fields: Fields) -> Self:
        return cls(name=fields.text("name"))


def _check_topic_fields(read_queues: int | None, write_queues: int | None, perm: int | None) -> None:
    for field, count in (("read_queues", read_queues), ("write_queues", write_queues)):
        if not 0 <= (count or 0) <= MAX_QUEUES:
            raise InvalidArgumentError(f"{field} {count!r}: expected 1 to {MAX_QUEUES}")
    if (perm or 0) not in (0, Perm.WRITE, Perm.READ, Perm.READ_WRITE):
        raise InvalidArgumentError(f"perm {perm!r}: expected 2 (write), 4 (read) or 6 (both)")
