"""From a client's batches to bytes for the log: checking, and stamping once their place is known.

Owns the leader's own state of a term: next queue offsets, producer sequences of the appended tail, topics about to be deleted.  All of it
is thrown away when the term ends; a new term starts from the applied state, once everything older is applied.

Two steps.  ``prepare`` checks a payload's batches one by one: each is accepted or refused whole.  ``PreparedBatches.seal`` has them placed
in log order (``place``), which gives them queue offsets and judges producer sequences for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dledger.runtime.env import Buffer
from dledger_wire.batches.batch import BatchView, check_batch, iter_records, stamp_batch
from dledger_wire.errors import BusyError, CorruptBatchError, DledgerError, InvalidArgumentError, NotReadyError, TopicNotFoundError
from dledger_wire.frames.frame_layout import IPV6_HOST_SIZE
from dledger_wire.frames.timer import MAX_TIMER_DELAY_MS
from dledger_wire.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, retry_topic
from dledger_wire.status import Perm
from store.append.prepared import BatchOutcome, Part, PreparedBatches, PreparedCommand, write_void
from store.append.staged_check import check_staged
from store.append.unique_sends import SentPlace, UniqueSends
from store.append.wide_hosts import with_wide_store_hosts
from store.commands.command import Command
from store.commands.security import MAX_COPY_BYTES, CopySecurity
from store.queues.unit_tags import batch_due_times
from store.settings import StoreSettings
from store.state.log_time import LogTime
from store.state.sequences import FRESH, QueueKey, SequenceTable, TailSequences
from store.state.state_machine import CommandOutcome
from store.state.topics import Topics
from store.state.transactions import Transactions

MADE_BY_SERVICES = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC})  # by a new group's first master, when its services are on
ANY_SIZE = 1 << 30  # beyond what an entry holds

ResultT = TypeVar("ResultT")


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
        self.names_of_producer, self.batch_applied = self._sequences.names_of, self._sequences.committed
        self.unique_sends = UniqueSends()
        self.term = 0  # in which this replica accepts batches; 0 while it does not
        self._next_offsets: dict[QueueKey, int] = {}
        self._deleting: dict[str, int] = {}
        self._held_back: Counter[str] = Counter()
        self._commands: dict[int, PreparedCommand[Any]] = {}

    # Terms

    def become_master(self, term: int) -> None:
        """Accept batches.  Everything in the log must be committed and applied."""
        self.resign()
        self.term = term

    def resign(self) -> None:
        """Refuse batches and forget what was appended in the term that ends."""
        self.term = 0
        self._next_offsets.clear()
        self._sequences.clear()
        self.unique_sends.resign()
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
        if not self.term:
            raise NotReadyError("this replica is not the master yet; nothing was stored")
        outcomes: list[BatchOutcome] = []
        parts: list[Part] = []
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
                outcome.error = error.with_traceback(None)  # which would keep this frame, and with it the records
                continue
            if part is not None:
                parts.append(part)
        if not outcomes:
            raise CorruptBatchError("a produce payload without a batch", first_bad=-1)
        return PreparedBatches(self, self.term, outcomes, parts)

    def _check(self, batch: BatchView, outcome: BatchOutcome, check_writer: Callable[[str], object], *, for_service: bool) -> Part | None:
        """Check one batch; None when it needs no place in the log."""
        if batch.topic not in MADE_BY_SERVICES:
            check_writer(batch.topic)
        if batch.topic in MADE_BY_SERVICES and self._topics.get(batch.topic) is None:
            raise NotReadyError(f"topic {batch.topic} is not created yet; nothing was stored")
        check_batch(batch, self._settings.maxMessageSize if not for_service else ANY_SIZE)
        committed, key = FRESH, (batch.topic, batch.queue_id)
        if batch.sequence is not None:
            # Before what its queue allows now: a refusal says that nothing of the batch is stored.
            committed = self._sequences.judge_committed(key, batch.sequence, batch.count)
            if committed.duplicate_offset is not None:
                outcome.duplicate, outcome.first_queue_offset = True, committed.duplicate_offset
                return None
        elif batch.is_unique and (sent := self.unique_sends.stored(batch)) is not None:
            _recognised(outcome, sent)
            return None
        topic = self._topics.writable(batch.topic, batch.queue_id, for_service=for_service)
        if batch.topic in self._deleting:
            raise TopicNotFoundError(f"topic {batch.topic!r} is being deleted", topic=batch.topic)
        if batch.topic in MADE_BY_SERVICES:
            self._check_parked(batch, check_writer, for_service=for_service)
        if len(self._settings.store_host_bytes) == IPV6_HOST_SIZE:
            batch = with_wide_store_hosts(batch)
        part = Part(batch, topic, key, outcome, void=False)
        if batch.sequence is None:
            part.void = batch.is_unique and self.unique_sends.under_way(batch) is not None
            return part
        verdict = self._sequences.expect(key, batch.sequence, batch.count, committed)
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
            text = f"message {first}: to be delivered in more than {days} days; expected at most {days}"
            raise InvalidArgumentError(text, first_bad=first)

    def command(self, command: Command[ResultT]) -> PreparedCommand[ResultT]:
        """A command to propose; refused here when it could never succeed."""
        command.check()
        if not self.term:
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

    def place(self, part: Part, out: bytearray, at: int, log_pos: int, index: int) -> None:
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
        elif batch.is_unique:
            sent = self.unique_sends.under_way(batch) or self.unique_sends.stored(batch)
            if sent is not None:
                _recognised(outcome, sent)
            elif part.void:
                outcome.error = NotReadyError("the message this one repeats was not stored; send it again")
        if part.void or outcome.error is not None or outcome.duplicate:
            write_void(out, at, part.size)
            return
        self._store(part, out, at, log_pos, index)

    def topic_gone(self, part: Part) -> DledgerError | None:
        """The error for a batch whose topic is not the one it was checked for, or is about to be deleted."""
        name = part.batch.topic
        if self.created_pos(name) == part.topic.created_pos:
            return None
        return TopicNotFoundError(f"topic {name!r} was deleted", topic=name)

    def _store(self, part: Part, out: bytearray, at: int, log_pos: int, index: int) -> None:
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
        elif batch.is_unique:
            self.unique_sends.placed(batch, SentPlace(batch.queue_id, first, log_pos + batch.frames_at, now_ms))
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
            self.unique_sends.forget_topic(topic)
            for key in [key for key in self._next_offsets if key[0] == topic]:
                del self._next_offsets[key]

    def applied_to(self, end_pos: int) -> None:
        """Everything before ``end_pos`` is applied: commands placed there that were not are gone for good (another leader's log won)."""
        for pos in [pos for pos in self._commands if pos < end_pos]:
            del self._commands[pos]


def _recognised(outcome: BatchOutcome, sent: SentPlace) -> None:
    """The answer that the send got, or would have got, the first time."""
    outcome.duplicate, outcome.queue_id = True, sent.queue_id
    outcome.first_queue_offset, outcome.physical_offset, outcome.store_timestamp = sent[1:]
