"""From committed entries to what is derived from them: queue units, producer sequences, group state.

Owns the order of applying.  Runs alike on every replica and depends on nothing but the entries and the state so far; works from the
batches' arrays only, never from frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.log.entry import RawEntry
from dledger_wire.batches.batch import BatchView, CommandView
from dledger_wire.check import InvariantBrokenError
from dledger_wire.errors import DataDirectoryError, DledgerError
from dledger_wire.frames.frames import frame_positions
from dledger_wire.names import TIMER_TOPIC
from store.append.message_log import MessageLog
from store.append.prepared import VOID
from store.commands.feature_level import GroupLevel, RaiseFeatureLevel
from store.commands.registry import COMMANDS, decode_command
from store.commands.topics import DeleteTopic
from store.log_view import entry_records
from store.queues.queue_table import QueueTable
from store.queues.unit_tags import unit_tags
from store.state.state_machine import CommandContext, CommandOutcome
from store.state.store_state import StoreState
from store.traffic import Traffic


@dataclass(slots=True)
class Applied:
    """How far the state has come along the log."""

    index: int = 0
    term: int = 0
    end_pos: int = 0
    store_ms: int = 0
    messages: int = 0


class Dispatcher:
    """Applies entries one after the other.  ``on_batch`` gets every batch, with its entry's index and its record's position."""

    def __init__(
        self,
        state: StoreState,
        message_log: MessageLog,
        queues: QueueTable,
        traffic: Traffic,
        on_batch: Callable[[int, int, BatchView], None],
    ) -> None:
        self.applied = Applied()
        self._traffic = traffic
        self._on_batch = on_batch
        self._state = state
        self._topics, self._sequences = state.topics, state.sequences
        self._message_log = message_log
        self._queues = queues

    def apply(self, entry: RawEntry) -> None:
        applied = self.applied
        if entry.index != applied.index + 1:
            raise InvariantBrokenError(f"entry {entry.index} applied after {applied.index}")
        for pos, record in entry_records(entry):
            if isinstance(record, BatchView):
                self._apply_batch(entry, pos, record)
            else:
                self._apply_command(entry, pos, record)
        applied.index, applied.term, applied.end_pos = entry.index, entry.term, entry.end_pos

    def _apply_batch(self, entry: RawEntry, pos: int, batch: BatchView) -> None:
        if self._topics.get(batch.topic) is None:
            raise InvariantBrokenError(f"entry {entry.index} holds a batch for topic {batch.topic}, which does not exist")
        key = (batch.topic, batch.queue_id)
        queue = self._queues.obtain(key)
        first = batch.first_queue_offset
        if first != queue.max_offset:
            raise InvariantBrokenError(f"queue {key}: batch at {first} after {queue.max_offset}")
        if batch.count == 1 and batch.topic != TIMER_TOPIC:
            queue.append_one(pos + batch.frames_at, *batch.only_unit())
        else:
            sizes = batch.sizes
            queue.append(pos + batch.frames_at, frame_positions(sizes), sizes, unit_tags(batch))
        self._queues.appended(queue, batch.count)
        self.applied.store_ms = max(self.applied.store_ms, batch.store_timestamp)
        self.applied.messages += batch.count
        self._on_batch(entry.index, pos, batch)
        if self._message_log.term:
            self._traffic.stored(batch)  # by the master alone: the sum over all nodes is what the cluster stored
        made_by = batch.sequence
        if made_by is not None:
            self._sequences.store(key, made_by, batch.count, first, batch.store_timestamp)
            self._message_log.batch_applied(made_by.producer_id, entry.index)
        elif batch.is_unique:
            self._message_log.unique_sends.applied(batch, pos)

    def _apply_command(self, entry: RawEntry, pos: int, record: CommandView) -> None:
        if record.kind == VOID:
            return
        self.applied.store_ms = max(self.applied.store_ms, int(record.arguments.get("at_ms", 0)))
        context = CommandContext(entry.index, entry.term, pos, self.applied.store_ms)
        if record.kind not in COMMANDS:  # skipping it would make this replica differ from those that know it
            text = f"entry {entry.index} of the log: unknown command {record.kind!r}: it is of a newer release, start that one"
            raise DataDirectoryError(text)
        try:
            command = decode_command(record.kind, record.arguments)
        except DledgerError as error:  # malformed: every replica refuses it
            outcome = CommandOutcome(error=error)
        else:
            if isinstance(command, RaiseFeatureLevel):
                self._state.feature_level.require_known(GroupLevel(command.level, command.release))
            outcome = self._state.machine.apply(command, context)
            if isinstance(command, DeleteTopic):
                self._topic_deleted(command.name, deleted=outcome.error is None)
        self._message_log.command_applied(pos, entry.term, outcome)

    def _topic_deleted(self, name: str, *, deleted: bool) -> None:
        self._message_log.delete_applied(name, deleted=deleted)
        if deleted:
            self._queues.drop_topic(name)
            self._traffic.forget_topic(name)
            self._state.forget_topic(name)
