"""Commands that change the settings and the offsets of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dledger_wire.errors import InvalidArgumentError
from dledger_wire.names import check_group
from store.commands.command import Command, JsonObject, Row, optional

MAX_RETRY_QUEUES = 1024
MAX_RETRIES = 1000
MAX_OFFSET = (1 << 63) - 1  # RocketMQ's tools read it as a signed number
MAX_OFFSETS = 10_000  # in one command


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """One group's settings, with RocketMQ's names and defaults."""

    groupName: str
    consumeEnable: bool = True
    retryQueueNums: int = 1
    retryMaxTimes: int = 16
    consumeMessageOrderly: bool = False  # of messages acknowledged one by one: those of a message group come one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSubscriptionGroup(Command[SubscriptionGroup]):
    """Changes a group's settings; None keeps one as it is."""

    KIND: ClassVar[str] = "put_subscription_group"
    groupName: str
    consumeEnable: bool | None = None
    retryQueueNums: int | None = None
    retryMaxTimes: int | None = None
    consumeMessageOrderly: bool | None = None

    def changes(self) -> JsonObject:
        """The settings that change, by name."""
        return {name: value for name, value in self.encode().items() if name != "groupName"}

    def check(self) -> None:
        check_group(self.groupName)
        _check_range("retryQueueNums", self.retryQueueNums, 1, MAX_RETRY_QUEUES)
        _check_range("retryMaxTimes", self.retryMaxTimes, 0, MAX_RETRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroup(Command[SubscriptionGroup]):
    """Returns a group to the default settings."""

    KIND: ClassVar[str] = "delete_subscription_group"
    groupName: str


@dataclass(frozen=True, slots=True)
class OffsetRow(Row):
    """The next offset a group reads in a queue.  ``generation`` None: any; ``lock_epoch`` 0: the sender holds no lock."""

    topic: str
    queue_id: int
    offset: int
    generation: int | None = None
    lock_epoch: int = 0

    def encode(self) -> list[str | int | None]:
        row: list[str | int | None] = [self.topic, self.queue_id, self.offset]
        return row if self.generation is None and not self.lock_epoch else [*row, self.generation, self.lock_epoch]

    @classmethod
    def decode(cls, row: tuple[Any, ...]) -> OffsetRow:
        topic, queue_id, offset, *more = row
        generation, lock_epoch = more or (None, 0)
        return cls(str(topic), int(queue_id), int(offset), None if generation is None else int(generation), int(lock_epoch))

    def check(self) -> None:
        if self.queue_id < 0 or not 0 <= self.offset <= MAX_OFFSET:
            text = f"topic {self.topic}: queue {self.queue_id}, offset {self.offset}; expected none below 0 or over {MAX_OFFSET}"
            raise InvalidArgumentError(text)


@dataclass(frozen=True, slots=True)
class RefusedOffset:
    """A row that was not committed, and the error."""

    topic: str
    queue_id: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class OffsetsResult:
    """How many queues changed, and what was refused."""

    group: str
    count: int
    refused: tuple[RefusedOffset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets(Command[OffsetsResult]):
    """Moves a group forward.  ``initial``: where the group begins in topics that it has no offsets in."""

    KIND: ClassVar[str] = "commit_offsets"
    group: str
    offsets: tuple[OffsetRow, ...]
    initial: bool = optional(False)

    def check(self) -> None:
        _check_offsets(self.group, self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsets(Command[OffsetsResult]):
    """Moves a group to any offsets, and begins a new generation of them."""

    KIND: ClassVar[str] = "reset_offsets"
    group: str
    offsets: tuple[OffsetRow, ...]

    def check(self) -> None:
        _check_offsets(self.group, self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets(Command[OffsetsResult]):
    """Forgets all offsets of a group."""

    KIND: ClassVar[str] = "delete_offsets"
    group: str

    def check(self) -> None:
        check_group(self.group)


def _check_offsets(group: str, offsets: tuple[OffsetRow, ...]) -> None:
    check_group(group)
    if not 0 < len(offsets) <= MAX_OFFSETS:
        raise InvalidArgumentError(f"expected 1 to {MAX_OFFSETS} offsets to commit")
    for row in offsets:
        row.check()


def _check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidArgumentError(f"{name} {value!r}: expected {low} to {high}")
