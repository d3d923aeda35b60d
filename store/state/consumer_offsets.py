"""Offsets of consumer groups as replicated state: they are committed through the log, so every later leader has them.

Owns RocketMQ's shape of config/consumerOffset.json (``TOPIC@GROUP`` -> queue -> offset), with a second table of generations.  An offset
is the next message to read.

- A commit never moves a group back, because commits of a slow consumer arrive late.  Only a reset moves it back.
- A reset begins a new generation of the offset.  Commits of an older generation are refused: a consumer that has not seen the reset cannot
  undo it, nor commit into a topic that was deleted and created again.
- A locked queue takes commits of the lock's owner only (``queue_locks.py``).
- An *initial* commit says where a group begins in a topic.  It counts only while the group has no offset in the topic, for all queues or
  none, whichever member holds locks.  A queue without an offset in a topic that was begun is therefore a queue that was added later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from dledger_wire.errors import DledgerError, OffsetsResetError, StaleLockError, TopicNotFoundError
from store.commands.command import JsonObject
from store.commands.consumer_groups import CommitOffsets, DeleteOffsets, OffsetRow, OffsetsResult, RefusedOffset, ResetOffsets
from store.state.json_pieces import encode
from store.state.row_table import RowTable
from store.state.state_machine import CommandContext, CommandHandlers

KNOWN_DELETIONS = 10_000

GroupTopic = tuple[str, str]


class ConsumerOffsets:
    """The offsets of every group.  Implements ``StateMachineSection``.

    ``created_pos``: returns where in the log a topic was created (None: no such topic).  ``locked``: returns the lock epoch of (group,
    topic, queue), 0 for none.  ``on_commit`` gets (group, topic, queue, offset, time) of every commit, ``on_reset`` (group, topic, queue);
    of a reset both are called, in this order: ``on_reset`` first.
    """

    file_name = "consumerOffset.json"

    def __init__(
        self,
        created_pos: Callable[[str], int | None],
        locked: Callable[[str, str, int], int] = lambda *_: 0,
        *,
        on_commit: Callable[[str, str, int, int, int], None] = lambda *_: None,
        on_reset: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:
        self._created_pos = created_pos
        self._locked = locked
        self._on_commit = on_commit
        self._on_reset = on_reset
        self._offsets: RowTable[GroupTopic, dict[int, int]] = RowTable(dict, _encoded)
        self._generations: RowTable[GroupTopic, dict[int, int]] = RowTable(dict, _encoded)
        self._reset_versions: dict[str, int] | None = None  # by group; None: to be made of the generations
        self._deleted: dict[str, int] = {}  # of the newest deletions that this process applied

    def groups(self) -> list[str]:
        """Every group that has committed something, by name."""
        return sorted({group for group, _ in self._offsets})

    def of_groups(self, groups: Collection[str] | None) -> dict[str, dict[str, Mapping[int, int]]]:
        """Group -> topic -> queue -> offset of these groups, or of all (None); those that have no position are not in it."""
        found: dict[str, dict[str, Mapping[int, int]]] = {}
        for (group, topic), queues in self._offsets.items():
            if groups is None or group in groups:
                found.setdefault(group, {})[topic] = queues
        return found

    def readers(self) -> dict[str, list[str]]:
        """Topic -> the groups that have a position in it."""
        found: dict[str, list[str]] = {}
        for group, topic in sorted(self._offsets):
            found.setdefault(topic, []).append(group)
        return found

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """The next message a group reads in a queue; 0 for one it never committed."""
        return self.known_position(group, topic, queue_id) or 0

    def known_position(self, group: str, topic: str, queue_id: int) -> int | None:
        """The same; None for a queue the group never committed."""
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def has_begun(self, group: str, topic: str) -> bool:
        """Whether the group has a position in any queue of the topic: in the others it begins at 0 then."""
        return bool(self._offsets.get((group, topic)))

    def generation(self, group: str, topic: str, queue_id: int) -> int:
        """Where in the log the position was last reset, or else the topic was made."""
        return (self._generations.get((group, topic)) or {}).get(queue_id) or self._created_pos(topic) or 0

    def reset_version(self, group: str) -> int:
        """Grows with every reset of any position of the group.  It is asked for with each heartbeat of each member."""
        if self._reset_versions is None:
            found: dict[str, int] = {}
            for (name, _), queues in self._generations.items():
                found[name] = max((found.get(name, 0), *queues.values()))
            self._reset_versions = found
        return self._reset_versions.get(group, 0)

    def deleted_at(self, group: str) -> int:
        """The log index at which a group was last deleted; 0 when it was not, or long ago.  Not replicated, only known everywhere."""
        return self._deleted.get(group, 0)

    def unread(self, topic: str, ends: Mapping[int, int]) -> str:
        """What of a topic's queues, whose ends are given, some group that reads the topic has not read; empty when there is nothing."""
        readers = sorted(group for group, read in self._offsets if read == topic)
        for queue_id, end in ends.items():
            if end and not readers:
                return f"queue {queue_id} holds {end} messages, and no consumer group reads this topic"
            for group in readers:
                left = end - self.position(group, topic, queue_id)
                if left > 0:
                    return f"group {group} has not read {left} messages of queue {queue_id}"
        return ""

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: one created later starts without readers."""
        for table in (self._offsets, self._generations):
            for key in [key for key in table if key[1] == topic]:
                table.pop(key)
        self._reset_versions = None

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(CommitOffsets, self._commit)
        handlers.on(ResetOffsets, self._reset)
        handlers.on(DeleteOffsets, self._delete)

    def _commit(self, command: CommitOffsets, context: CommandContext) -> OffsetsResult:
        group, rows = command.group, command.offsets
        self._check_topics(rows)
        if command.initial:
            rows = tuple(row for row in rows if not self._offsets.get((group, row.topic)))
        refused: list[RefusedOffset] = []
        for row in rows:
            problem = None if command.initial else self._refusal(group, row)
            if problem is not None:
                refused.append(RefusedOffset(row.topic, row.queue_id, problem.code, problem.message))
                continue
            self.advance(group, row.topic, row.queue_id, row.offset, context.at_ms)
        return OffsetsResult(group, len(rows) - len(refused), tuple(refused))

    def advance(self, group: str, topic: str, queue_id: int, offset: int, at_ms: int) -> None:
        """The group has consumed what is before ``offset``: a commit that is not refused."""
        queues = self._offsets.change((group, topic), dict)
        queues[queue_id] = max(offset, queues.get(queue_id, 0))
        self._on_commit(group, topic, queue_id, offset, at_ms)

    def _refusal(self, group: str, row: OffsetRow) -> DledgerError | None:
        where = f"group {group}: {row.topic}/{row.queue_id}"
        epoch = self._locked(group, row.topic, row.queue_id)
        if row.lock_epoch != epoch:
            return StaleLockError(f"{where}: commit in epoch {row.lock_epoch or 'none'}, the current one is {epoch or 'none'}")
        if row.generation is not None and row.generation != self.generation(group, row.topic, row.queue_id):
            return OffsetsResetError(f"{where}: the position was reset meanwhile")
        return None

    def _reset(self, command: ResetOffsets, context: CommandContext) -> OffsetsResult:
        group = command.group
        self._check_topics(command.offsets)
        self._reset_versions = None
        for row in command.offsets:
            self._offsets.change((group, row.topic), dict)[row.queue_id] = row.offset
            self._generations.change((group, row.topic), dict)[row.queue_id] = context.pos
            self._on_reset(group, row.topic, row.queue_id)
            self._on_commit(group, row.topic, row.queue_id, row.offset, context.at_ms)
        return OffsetsResult(group, len(command.offsets))

    def _delete(self, command: DeleteOffsets, context: CommandContext) -> OffsetsResult:
        """Forget a group: all its offsets, and the generations of its resets.

        What it sent back is forgotten in queues with an offset only.  This cannot change, since logs have the command already: the master
        gives the group an offset in the others first (``broker/groups/group_settings.py``).
        """
        group = command.group
        queues = [(topic, queue_id) for (name, topic), offsets in self._offsets.items() if name == group for queue_id in offsets]
        for table in (self._offsets, self._generations):
            for key in [key for key in table if key[0] == group]:
                table.pop(key)
        self._reset_versions = None
        for topic, queue_id in queues:
            self._on_reset(group, topic, queue_id)
        self._deleted.pop(group, None)
        self._deleted[group] = context.index
        if len(self._deleted) > KNOWN_DELETIONS:
            del self._deleted[next(iter(self._deleted))]
        return OffsetsResult(group, len(queues))

    def _check_topics(self, rows: tuple[OffsetRow, ...]) -> None:
        for row in rows:
            if self._created_pos(row.topic) is None:
                raise TopicNotFoundError(f"topic {row.topic!r} does not exist", topic=row.topic)

    def dump(self) -> JsonObject:
        return {"offsetTable": _dumped(self._offsets), "generationTable": _dumped(self._generations)}

    def capture(self) -> JsonObject:
        return {"offsetTable": self._offsets.capture(), "generationTable": self._generations.capture()}

    def load(self, data: JsonObject) -> None:
        self._offsets.load(_loaded(data["offsetTable"]))
        self._generations.load(_loaded(data.get("generationTable", {})))
        self._reset_versions = None


def _encoded(key: GroupTopic, queues: dict[int, int]) -> bytes:
    group, topic = key
    return encode({f"{topic}@{group}": queues})[1:-1]


def _dumped(table: RowTable[GroupTopic, dict[int, int]]) -> dict[str, dict[str, int]]:
    return {f"{topic}@{group}": {str(queue_id): value for queue_id, value in queues.items()} for (group, topic), queues in table.items()}


def _loaded(data: dict[str, dict[str, int]]) -> Iterator[tuple[GroupTopic, dict[int, int]]]:
    for name, queues in data.items():
        topic, _, group = name.partition("@")
        yield (group, topic), {int(queue_id): value for queue_id, value in queues.items()}
