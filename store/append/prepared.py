"""What a master proposes: checked batches and commands, which become bytes once their place in the log is known.

``seal`` runs in log order, when nothing can come between any more.  A batch refused that late, and a duplicate whose original is not
committed yet, leave a void record, so that their answer is given when the log says so.  ``MessageLog`` makes these, and holds the state of
the term by which they are judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from dledger.runtime.env import Buffer
from dledger_wire.batches.batch import COMMAND_HEADER, COMMAND_HEADER_SIZE, KIND_COMMAND, MAGIC, VERSION, BatchView, encode_command
from dledger_wire.check import require
from dledger_wire.errors import DledgerError, NotReadyError, TopicNotFoundError
from dledger_wire.names import dlq_topic
from store.commands.command import Command
from store.commands.consumer_groups import CommitOffsets, ResetOffsets
from store.commands.pop import LeaseMessages, MarkDeadLetters
from store.commands.producers import InitProducer
from store.commands.redelivery import MarkRedriven, MarkSentBack
from store.commands.topics import DeleteTopic
from store.state.sequences import QueueKey
from store.state.state_machine import CommandOutcome
from store.state.topics import Topic

VOID = "void"
_VOID_BODY = b'{"kind":"void"}'
VOID_RECORD = encode_command(VOID, {})

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class BatchOutcome:
    """What became of one batch.  Offsets count once the entry it went into is committed; ``error`` at once."""

    first_queue_offset: int = 0
    physical_offset: int = 0
    store_timestamp: int = 0
    duplicate: bool = False
    queue_id: int = 0  # of a duplicate that was recognised by its UNIQ_KEY: it may have been sent to another queue
    error: DledgerError | None = None


@dataclass(slots=True)
class Part:
    """A batch on its way into the log; ``void`` is a duplicate that only waits for its original."""

    batch: BatchView
    topic: Topic
    key: QueueKey
    outcome: BatchOutcome
    void: bool

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def content(self) -> Buffer:
        """What goes into the log, before its stamps."""
        return VOID_RECORD if self.void else self.batch.data


class TermState(Protocol):
    """The state of a term, by which what is proposed in it is judged and placed: ``MessageLog``."""

    def created_pos(self, topic: str) -> int: ...

    def topic_gone(self, part: Part) -> DledgerError | None: ...

    def place(self, part: Part, out: bytearray, at: int, log_pos: int, index: int) -> None: ...

    def command_placed(self, command: PreparedCommand[Any], pos: int) -> None: ...


class PreparedBatches:
    """A checked payload.  Propose it when ``size_bytes`` is not 0; ``outcomes`` are in the order of the records."""

    def __init__(self, owner: TermState, term: int, outcomes: list[BatchOutcome], parts: list[Part]) -> None:
        self.outcomes = outcomes
        self.size_bytes = sum(part.size for part in parts)
        self._owner = owner
        self._term = term
        self._parts: Sequence[Part] = parts

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        """Topic, bytes and messages of each batch that is to be stored, before they are placed."""
        return ((part.batch.topic, part.batch.size, part.batch.count) for part in self._parts if not part.void)

    @property
    def refusal(self) -> DledgerError | None:
        """Why one of the batches may not be placed in the log after what is in it now: its topic is gone, or about to go."""
        return next((error for part in self._parts if (error := self._owner.topic_gone(part)) is not None), None)

    def seal(self, pos: int, index: int, term: int, *, refusal: DledgerError | None = None) -> Sequence[Buffer]:
        """The records as they go into the log at ``pos``, in one buffer; with ``refusal`` none of them is stored."""
        require(term == self._term, "a payload prepared in term %d is sealed in term %d", self._term, term)
        parts, self._parts = self._parts, ()
        out = bytearray().join([part.content for part in parts])  # the one copy; place() works within it
        at = 0
        for part in parts:
            if refusal is not None:
                part.outcome.error = refusal
            self._owner.place(part, out, at, pos + at, index)
            at += part.size
        return (out,)


class PreparedCommand(Generic[ResultT]):
    """A command to propose; ``result`` returns what it did, once it is applied.

    A mark about a topic's messages, and where a group begins in it, is only for the topic that there is now.  When that is deleted first,
    it would be taken for one of a topic made again: it leaves a void record instead (``refusal``).
    """

    def __init__(self, owner: TermState, command: Command[ResultT], at_ms: int) -> None:
        self._owner = owner
        self._kind = command.KIND
        self.deletes = command.name if isinstance(command, DeleteTopic) else ""
        self.registers: str | int = command.identity if isinstance(command, InitProducer) else ""
        self._meant = {name: owner.created_pos(name) for name in _topics_meant(command)}
        self._record = encode_command(command.KIND, {**command.encode(), "at_ms": at_ms})
        self.size_bytes = len(self._record)
        self.term = 0
        self.outcome: CommandOutcome | None = None

    @property
    def refusal(self) -> DledgerError | None:
        """Why it may not be placed in the log after what is in it now."""
        for name, created_pos in self._meant.items():
            if created_pos < 0 or created_pos != self._owner.created_pos(name):
                return TopicNotFoundError(f"topic {name!r} was deleted", topic=name)
        return None

    def seal(self, pos: int, index: int, term: int, *, refusal: DledgerError | None = None) -> Sequence[Buffer]:
        """The record as it goes into the log at ``pos``; with ``refusal`` one that does nothing."""
        self.term = term
        if (refusal := refusal or self.refusal) is not None:
            self.outcome = CommandOutcome(error=refusal)
            out = bytearray(self.size_bytes)
            write_void(out, 0, self.size_bytes)
            return (out,)
        self._owner.command_placed(self, pos)
        return (self._record,)

    def result(self) -> ResultT:
        """The result, once the proposal's future has resolved; raises what the command was refused with."""
        outcome = self.outcome
        require(outcome is not None, "command %s is not applied", self._kind)
        if outcome is None:
            raise NotReadyError("the command is not applied")
        if outcome.error is not None:
            raise outcome.error
        return cast(ResultT, outcome.result)


def _topics_meant(command: Command[Any]) -> list[str]:
    """The topics, as they are now, that a command is about and whose successors it must not touch."""
    if isinstance(command, MarkSentBack | LeaseMessages | MarkDeadLetters):
        return [command.topic]
    if isinstance(command, MarkRedriven):
        return [dlq_topic(command.group)]
    if isinstance(command, ResetOffsets) or (isinstance(command, CommitOffsets) and command.initial):
        return sorted({row.topic for row in command.offsets if row.generation is not None})
    return []


def write_void(out: bytearray, at: int, size: int) -> None:
    """A command record that does nothing, of any size a batch or ``VOID_RECORD`` has."""
    out[at : at + size] = bytes(size)
    COMMAND_HEADER.pack_into(out, at, MAGIC, size, VERSION, KIND_COMMAND, 0, len(_VOID_BODY))
    out[at + COMMAND_HEADER_SIZE : at + COMMAND_HEADER_SIZE + len(_VOID_BODY)] = _VOID_BODY
