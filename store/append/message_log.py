"""From a client's batches to bytes for the log: checking, and stamping once their place is known.

Owns the leader's own state of a term: next queue offsets, producer sequences of the appended tail, topics about to be deleted.  All of it
is thrown away when the term ends; a new term starts from the applied state, once everything older is applied.

Two steps.  ``prepare`` checks a payload's batches one by one: each is accepted or refused whole.  ``PreparedBatches.seal`` runs in log
order, when nothing can come between any more: it gives queue offsets and judges producer sequences for good.  A batch refused that
late, and a duplicate whose original is not committed yet, leave a void record, so that their answer is given when the log says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dledger.runtime.env import Buffer
from dledger_wire.batches.batch import (
    COMMAND_HEADER,
    COMMAND_HEADER_SIZE,
    KIND_COMMAND,
    MAGIC,
    VERSION,
    BatchView,
    check_batch,
    encode_command,
    iter_records,
    stamp_batch,
)
from dledger_wire.check import require
from dledger_wire.errors import (
    BusyError,
    CorruptBatchError,
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotReadyError,
    TopicNotFoundError,
)
from dledger_wire.frames.frame_layout import IPV6_HOST_SIZE
from dledger_wire.frames.timer import MAX_TIMER_DELAY_MS
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from dledger_wire.status import Perm
from store.append.staged_check import check_staged
from store.append.wide_hosts import with_wide_store_hosts
from store.commands.command import Command
from store.commands.consumer_groups import CommitOffsets, ResetOffsets
from store.commands.producers import InitProducer
from store.commands.redelivery import MarkRedriven, MarkSentBack
from store.commands.security import MAX_COPY_BYTES, CopySecurity
from store.commands.topics import DeleteTopic
from store.queues.unit_tags import batch_due_times
from store.settings import StoreSettings
from store.state.log_time import LogTime
from store.state.sequences import QueueKey, SequenceTable, TailSequences
from store.state.state_machine import CommandOutcome
from store.state.topics import Topic, Topics
from store.state.transactions import Transactions

MADE_BY_SERVICES = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})  # by a new group's first master, when its services are on
ANY_SIZE = 1 << 30  # beyond what an entry holds
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
    error: DledgerError | None = None


@dataclass(slots=True)
class _Part:
    """A batch on its way into the log; ``void`` is a duplicate that only waits for its original."""

    batch: BatchView
    topic: Topic
    outcome: BatchOutcome
    void: bool

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def content(self) -> Buffer:
        """What goes into the log, before its stamps."""
        return VOID_RECORD if self.void else self.batch.data

    @property
    def key(self) -> QueueKey:
        return (self.batch.topic, self.batch.queue_id)


class PreparedBatches:
    """A checked payload.  Propose it when ``size_bytes`` is not 0; ``outcomes`` are in the order of the records."""

    def __init__(self, owner: MessageLog, term: int, outcomes: list[BatchOutcome], parts: list[_Part]) -> None:
        self.outcomes = outcomes
        self.size_bytes = sum(part.size for part in parts)
        self._owner = owner
        self._term = term
        self._parts: Sequence[_Part] = parts

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

    def __init__(self, owner: MessageLog, command: Command[ResultT], at_ms: int) -> None:
        self._owner = owner
        self._kind = command.KIND
        self.deletes = command.name if isinstance(command, DeleteTopic) else ""
        self.registers: str | int = command.identity if isinstance(command, InitProducer) else ""
        self._meant = {name: owner.created_pos(name) for name in _topics_meant(command)}
        must_be_known = command.MUST_BE_KNOWN or command.LEVEL > 0
        self._record = encode_command(command.KIND, {**command.encode(), "at_ms": at_ms}, must_be_known=must_be_known)
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
            _write_void(out, 0, self.size_bytes)
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


class MessageLog:
    """The writing side of a store; ``next_offset`` returns a queue's applied end; ``transactions`` refuse half messages
    while too many are open."""

    def __init__(
        self,
        settings: StoreSettings,
        time: LogTime,
        topics: Topics,
        sequences: SequenceTable,
        next_offset: Callable[[QueueKey], int],
        transactions: Transactions,
    ) -> None:
        self._settings = settings
        self._time = time
        self._topics = topics
        self._applied_offset = next_offset
        self._transactions = transactions
        self._sequences = TailSequences(sequences)
        self._term = 0
        self._next_offsets: dict[QueueKey, int] = {}
        self._deleting: dict[str, int] = {}
        self._held_back: Counter[str] = Counter()
        self._commands: dict[int, PreparedCommand[Any]] = {}

    # Terms

    @property
    def term(self) -> int:
        """The term in which this replica accepts batches; 0 while it does not."""
        return self._term

    def become_master(self, term: int) -> None:
        """Accept batches.  Everything in the log must be committed and applied."""
        self.resign()
        self._term = term

    def resign(self) -> None:
        """Refuse batches and forget what was appended in the term that ends."""
        self._term = 0
        self._next_offsets.clear()
        self._sequences.clear()
        self._deleting.clear()

    # Checking

    def prepare(
        self,
        records: Buffer,
        *,
        for_service: bool = False,
        check_writer: Callable[[str], object] = lambda _topic: None,
        check_producer: Callable[[str, str], object] = lambda _name, _owner: None,
    ) -> PreparedBatches:
        """Check a produce payload.  CorruptBatchError when it is no sequence of records; single batches are refused in ``outcomes``.

        ``check_writer`` raises what refuses a batch for a topic; it is asked for every topic that messages are to come to.
        ``check_producer`` does for the name and the owner of a producer id that was registered.

        Permissions and limits are for users: what a service of the broker stores again was accepted once, and is not lost to a topic closed
        or a limit lowered since.
        """
        if not self._term:
            raise NotReadyError("this replica is not the master yet; nothing was stored")
        outcomes: list[BatchOutcome] = []
        parts: list[_Part] = []
        for record in iter_records(records):
            if not isinstance(record, BatchView):
                raise CorruptBatchError("a produce payload holds message batches only", first_bad=-1)
            outcome = BatchOutcome()
            outcomes.append(outcome)
            try:
                if record.sequence is not None:
                    check_producer(*self._sequences.names_of(record.sequence.producer_id))
                part = self._check(record, outcome, check_writer, for_service=for_service)
            except DledgerError as error:
                outcome.error = error
                continue
            if part is not None:
                parts.append(part)
        if not outcomes:
            raise CorruptBatchError("a produce payload without a batch", first_bad=-1)
        return PreparedBatches(self, self._term, outcomes, parts)

    def names_of_producer(self, producer_id: int) -> tuple[str, str]:
        """See ``TailSequences.names_of``."""
        return self._sequences.names_of(producer_id)

    def _check(self, batch: BatchView, outcome: BatchOutcome, check_writer: Callable[[str], object], *, for_service: bool) -> _Part | None:
        """Check one batch; None when it needs no place in the log."""
        if batch.topic not in MADE_BY_SERVICES:
            check_writer(batch.topic)
        if batch.topic in MADE_BY_SERVICES and self._topics.get(batch.topic) is None:
            raise NotReadyError(f"topic {batch.topic} is not created yet; nothing was stored")
        check_batch(batch, self._settings.maxMessageSize if not for_service else ANY_SIZE)
        if batch.sequence is not None:
            # Before what its queue allows now: a refusal says that nothing of the batch is stored.
            known = self._sequences.judge_committed((batch.topic, batch.queue_id), batch.sequence, batch.count)
            if known.duplicate_offset is not None:
                outcome.duplicate, outcome.first_queue_offset = True, known.duplicate_offset
                return None
        topic = self._topics.writable(batch.topic, batch.queue_id, for_service=for_service)
        if batch.topic in self._deleting:
            raise TopicNotFoundError(f"topic {batch.topic!r} is being deleted", topic=batch.topic)
        if batch.topic in MADE_BY_SERVICES:
            self._check_parked(batch, check_writer, for_service=for_service)
        if len(self._settings.store_host_bytes) == IPV6_HOST_SIZE:
            batch = with_wide_store_hosts(batch)
        part = _Part(batch, topic, outcome, void=False)
        if batch.sequence is None:
            return part
        verdict = self._sequences.expect(part.key, batch.sequence, batch.count)
        if verdict.error is not None:
            raise verdict.error
        part.void = verdict.duplicate_offset is not None
        return part

    def _check_parked(self, batch: BatchView, check_writer: Callable[[str], object], *, for_service: bool) -> None:
        """Check a batch for a topic in which messages wait."""
        if batch.topic == TIMER_TOPIC:
            due_times = batch_due_times(batch)  # what does not say when it is due could be applied by no replica
            if not for_service:
                self._check_timers(due_times)
        if not for_service:
            # Rights on the group of a transaction's producers are those on its retry topic.
            check_staged(batch, lambda name: self._perm_of_target(name, check_writer), lambda group: self._check_group(group, check_writer))
        if batch.topic == HALF_TOPIC:
            self._transactions.require_room(self._applied_offset((HALF_TOPIC, 0)))

    def _check_group(self, producer_group: str, check_writer: Callable[[str], object]) -> None:
        check_writer(retry_topic(producer_group))
        self._transactions.require_share(producer_group)

    @contextmanager
    def nothing_new_waits_for(self, topic: str) -> Iterator[None]:
        """Users' messages that are to wait for ``topic`` are refused until the context ends: what waits for it can be counted, and the
        topic deleted when nothing does."""
        self._held_back[topic] += 1
        try:
            yield
        finally:
            self._held_back -= Counter([topic])  # without a row of 0

    def _perm_of_target(self, name: str, check_writer: Callable[[str], object]) -> int | None:
        """What a user's message that is to wait may do with its topic later; None when there is none."""
        check_writer(name)
        if self._held_back[name]:
            raise BusyError(f"topic {name!r} is about to be deleted if nothing waits for it; nothing was stored")
        topic = self._topics.get(name)
        if topic is None or name in self._deleting:
            return None
        return topic.perm | Perm.WRITE if topic.takes_what_waited else topic.perm

    def _check_timers(self, due_times: npt.NDArray[np.int64]) -> None:
        too_late = due_times > self._time.now_ms() + MAX_TIMER_DELAY_MS
        if too_late.any():
            days, first = MAX_TIMER_DELAY_MS // 86_400_000, int(too_late.argmax())
            raise InvalidArgumentError(f"message {first}: to be delivered in more than {days} days; expected at most that", first_bad=first)

    def command(self, command: Command[ResultT]) -> PreparedCommand[ResultT]:
        """A command to propose; refused here when it could never succeed."""
        command.check()
        if not self._term:
            raise NotReadyError("this replica is not the master yet; nothing was stored")
        prepared = PreparedCommand(self, command, self._time.now_ms())
        # Copies of all users and rules were taken by another group of the cluster, one by one.
        limit = MAX_COPY_BYTES if isinstance(command, CopySecurity) else self._settings.maxMessageSize
        if prepared.size_bytes > limit:
            raise InvalidArgumentError(f"command {command.KIND} takes {prepared.size_bytes} bytes; expected at most {limit}")
        return prepared

    # Placing, in log order

    def created_pos(self, topic: str) -> int:
        """Where the log made a topic; -1 when there is none, or a command that deletes it is in the log."""
        found = self._topics.get(topic)
        return found.created_pos if found is not None and topic not in self._deleting else -1

    def place(self, part: _Part, out: bytearray, at: int, log_pos: int, index: int) -> None:
        """Stamp the batch that lies at ``out[at:]``, or void it when it may not be stored after all."""
        batch, outcome = part.batch, part.outcome
        if outcome.error is not None:
            pass  # with what it belongs to
        elif (gone := self.topic_gone(part)) is not None:
            outcome.error = gone
        elif batch.sequence is not None:
            verdict = self._sequences.judge(part.key, batch.sequence, batch.count)
            outcome.error = verdict.error
            if verdict.duplicate_offset is not None:
                outcome.duplicate, outcome.first_queue_offset = True, verdict.duplicate_offset
            elif part.void and verdict.error is None:
                # Its original vanished between the two steps: nothing of it is stored, and its own bytes were left out.
                outcome.error = NotReadyError("the batch this one repeats was not stored; send it again")
        if part.void or outcome.error is not None or outcome.duplicate:
            _write_void(out, at, part.size)
            return
        self._store(part, out, at, log_pos, index)

    def topic_gone(self, part: _Part) -> DledgerError | None:
        """The error for a batch whose topic is not the one it was checked for, or is about to be deleted."""
        name = part.batch.topic
        if self.created_pos(name) == part.topic.created_pos:
            return None
        return TopicNotFoundError(f"topic {name!r} was deleted", topic=name)

    def _store(self, part: _Part, out: bytearray, at: int, log_pos: int, index: int) -> None:
        batch, outcome, key = part.batch, part.outcome, part.key
        first = self._next_offsets.get(key, -1)
        if first < 0:
            first = self._applied_offset(key)
        now_ms = self._time.now_ms()
        self._time.seen(now_ms)
        stamp_batch(
            out, at, batch, log_pos=log_pos, first_queue_offset=first, store_timestamp=now_ms, store_host=self._settings.store_host_bytes
        )
        self._next_offsets[key] = first + batch.count
        if batch.sequence is not None:
            self._sequences.store(index, key, batch.sequence, batch.count, first, now_ms)
        outcome.first_queue_offset = first
        outcome.physical_offset = log_pos + batch.frames_at
        outcome.store_timestamp = now_ms

    def command_placed(self, command: PreparedCommand[Any], pos: int) -> None:
        self._commands[pos] = command
        if command.deletes:
            self._deleting[command.deletes] = self._deleting.get(command.deletes, 0) + 1
        if command.registers:
            self._sequences.registering(command.registers)

    # Applied entries

    def batch_applied(self, producer_id: int, index: int) -> None:
        self._sequences.committed(producer_id, index)

    def command_applied(self, pos: int, term: int, outcome: CommandOutcome) -> None:
        command = self._commands.pop(pos, None)
        if command is not None and command.term == term:
            command.outcome = outcome
            if command.registers:
                self._sequences.registered(command.registers)

    def delete_applied(self, topic: str, *, deleted: bool) -> None:
        """A delete command came through; ``deleted``: there was such a topic."""
        waiting = self._deleting.get(topic, 0)
        if waiting > 1:
            self._deleting[topic] = waiting - 1
        else:
            self._deleting.pop(topic, None)
        if deleted:
            self._sequences.forget_topic(topic)
            for key in [key for key in self._next_offsets if key[0] == topic]:
                del self._next_offsets[key]

    def applied_to(self, end_pos: int) -> None:
        """Everything before ``end_pos`` is applied: commands placed there that were not are gone for good (another leader's log won)."""
        for pos in [pos for pos in self._commands if pos < end_pos]:
            del self._commands[pos]


def _topics_meant(command: Command[Any]) -> list[str]:
    """The topics, as they are now, that a command is about and whose successors it must not touch."""
    if isinstance(command, MarkSentBack):
        return [command.topic]
    if isinstance(command, MarkRedriven):
        return [dlq_topic(command.group)]
    if isinstance(command, ResetOffsets) or (isinstance(command, CommitOffsets) and command.initial):
        return sorted({row.topic for row in command.offsets if row.generation is not None})
    return []


def _write_void(out: bytearray, at: int, size: int) -> None:
    """A command record that does nothing, of any size a batch or ``VOID_RECORD`` has."""
    out[at : at + size] = bytes(size)
    COMMAND_HEADER.pack_into(out, at, MAGIC, size, VERSION, KIND_COMMAND, 0, len(_VOID_BODY))
    out[at + COMMAND_HEADER_SIZE : at + COMMAND_HEADER_SIZE + len(_VOID_BODY)] = _VOID_BODY


__all__ = ["BatchOutcome", "MessageLog", "MessageTooLargeError", "PreparedBatches", "PreparedCommand"]
