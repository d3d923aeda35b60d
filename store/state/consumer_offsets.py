"""Where consumer groups have come to, as replicated state: committed through the log, so that every later master knows it.

Owns the rules and RocketMQ's shape of config/consumerOffset.json (``TOPIC@GROUP`` -> queue -> offset), with a second table of the
generations.  An offset is the next message to read.  A commit never takes a group back: answers of a slow consumer come late; going back
is a reset, which says so and begins a new generation of the position: commits that name an older one are refused, so that no consumer
undoes a reset it has not heard of, nor commits into a topic made anew under the name it knows.  A queue that is locked takes commits of
its owner only (``queue_locks.py``).

An *initial* commit says where a group begins in a topic.  Its rows count only while the group has no position in the topic, all of them or
none, whoever holds locks: so what is begun is begun once, and a queue without a position in a topic begun is one that was added since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dledger_wire.errors import DledgerError, InvalidArgumentError, OffsetsResetError, StaleLockError, TopicNotFoundError
from dledger_wire.names import check_group
from store.state.sections import CommandContext, CommandResult, Handler

COMMIT, RESET, DELETE_OFFSETS = "commit_offsets", "reset_offsets", "delete_offsets"
MAX_OFFSET = (1 << 63) - 1  # RocketMQ's tools read it as a signed number
MAX_OFFSETS = 10_000  # in one command

GroupTopic = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Position:
    """One row of a command.  ``generation`` None: of one who does not care; ``epoch`` 0: of one who holds no lock."""

    topic: str
    queue_id: int
    offset: int
    generation: int | None = None
    epoch: int = 0


class ConsumerOffsets:
    """The positions of every group.  Implements ``group_state.Section``; ``created_pos`` asks the topics' section where in the log a
    topic was made (None: there is none), ``locked`` the locks' for the epoch of (group, topic, queue), 0 for none."""

    file_name = "consumerOffset.json"

    def __init__(self, created_pos: Callable[[str], int | None], locked: Callable[[str, str, int], int] = lambda *_: 0) -> None:
        self._created_pos = created_pos
        self._locked = locked
        self.on_commit: Callable[[str, str, int, int, int], None] | None = None  # told of every commit: group, topic, queue, offset, time
        self.on_reset: Callable[[str, str, int], None] | None = None  # told of every queue that a group was taken elsewhere in
        self._offsets: dict[GroupTopic, dict[int, int]] = {}
        self._generations: dict[GroupTopic, dict[int, int]] = {}

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

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """The next message a group reads in a queue; 0 for one it never committed."""
        return self._offsets.get((group, topic), {}).get(queue_id, 0)

    def known_position(self, group: str, topic: str, queue_id: int) -> int | None:
        """The same; None for a queue the group never committed."""
        return self._offsets.get((group, topic), {}).get(queue_id)

    def generation(self, group: str, topic: str, queue_id: int) -> int:
        """Where in the log the position was last reset, or else the topic was made."""
        return self._generations.get((group, topic), {}).get(queue_id) or self._created_pos(topic) or 0

    def reset_version(self, group: str) -> int:
        """Grows with every reset of any position of the group."""
        found = (max(queues.values()) for (name, _), queues in self._generations.items() if name == group and queues)
        return max(found, default=0)

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
        """The topic was deleted: one made again starts without readers."""
        for table in (self._offsets, self._generations):
            for key in [key for key in table if key[1] == topic]:
                del table[key]

    def handlers(self) -> Mapping[str, Handler]:
        return {COMMIT: self._commit, RESET: self._reset, DELETE_OFFSETS: self._delete}

    def _commit(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        group, positions = self._checked(arguments)
        initial, refused = bool(arguments.get("initial")), []
        if initial:
            positions = [each for each in positions if not self._offsets.get((group, each.topic))]
        for each in positions:
            problem = None if initial else self._refusal(group, each)
            if problem is not None:
                refused.append([each.topic, each.queue_id, problem.code, problem.message])
                continue
            queues = self._offsets.setdefault((group, each.topic), {})
            queues[each.queue_id] = max(each.offset, queues.get(each.queue_id, 0))
            if self.on_commit is not None:
                self.on_commit(group, each.topic, each.queue_id, each.offset, context.at_ms)
        return {"group": group, "count": len(positions) - len(refused), "refused": refused}

    def _refusal(self, group: str, each: Position) -> DledgerError | None:
        place = f"group {group}: {each.topic}/{each.queue_id}"
        epoch = self._locked(group, each.topic, each.queue_id)
        if each.epoch != epoch:
            return StaleLockError(f"{place}: commit in epoch {each.epoch or 'none'}, the current one is {epoch or 'none'}")
        if each.generation is not None and each.generation != self.generation(group, each.topic, each.queue_id):
            return OffsetsResetError(f"{place}: the position was reset meanwhile")
        return None

    def _reset(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        group, positions = self._checked(arguments)
        for each in positions:
            self._offsets.setdefault((group, each.topic), {})[each.queue_id] = each.offset
            self._generations.setdefault((group, each.topic), {})[each.queue_id] = context.pos
            if self.on_reset is not None:
                self.on_reset(group, each.topic, each.queue_id)
        return {"group": group, "count": len(positions), "refused": []}

    def _delete(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        """Forget a group: every position it has, and what its resets left.  It begins anew should it come again."""
        group = check_group(str(arguments.get("group", "")))
        places = [(topic, queue_id) for (name, topic), queues in self._offsets.items() if name == group for queue_id in queues]
        for table in (self._offsets, self._generations):
            for key in [key for key in table if key[0] == group]:
                del table[key]
        if self.on_reset is not None:
            for topic, queue_id in places:
                self.on_reset(group, topic, queue_id)
        return {"group": group, "count": len(places), "refused": []}

    def _checked(self, arguments: dict[str, Any]) -> tuple[str, list[Position]]:
        group, positions = check_offsets(arguments)
        for each in positions:
            if self._created_pos(each.topic) is None:
                raise TopicNotFoundError(f"topic {each.topic!r} does not exist", topic=each.topic)
        return group, positions

    def dump(self) -> dict[str, Any]:
        return {"offsetTable": _dumped(self._offsets), "generationTable": _dumped(self._generations)}

    def load(self, data: dict[str, Any]) -> None:
        self._offsets = _loaded(data["offsetTable"])
        self._generations = _loaded(data.get("generationTable", {}))


def _dumped(table: dict[GroupTopic, dict[int, int]]) -> dict[str, dict[str, int]]:
    return {f"{topic}@{group}": {str(queue_id): value for queue_id, value in queues.items()} for (group, topic), queues in table.items()}


def _loaded(data: dict[str, dict[str, int]]) -> dict[GroupTopic, dict[int, int]]:
    table = {}
    for name, queues in data.items():
        topic, _, group = name.partition("@")
        table[group, topic] = {int(queue_id): value for queue_id, value in queues.items()}
    return table


def check_offsets(arguments: dict[str, Any]) -> tuple[str, list[Position]]:
    """The group and the rows of a command.  InvalidNameError, InvalidArgumentError for one that could never succeed."""
    group = check_group(str(arguments.get("group", "")))
    rows = arguments.get("offsets")
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_OFFSETS:
        raise InvalidArgumentError(f"expected 1 to {MAX_OFFSETS} offsets to commit")
    positions = []
    for topic, queue_id, offset, *more in rows:
        if queue_id < 0 or not 0 <= offset <= MAX_OFFSET:
            raise InvalidArgumentError(f"topic {topic}: queue {queue_id}, offset {offset}; expected none below 0 or over {MAX_OFFSET}")
        generation, epoch = more or (None, 0)
        positions.append(Position(str(topic), int(queue_id), int(offset), None if generation is None else int(generation), int(epoch)))
    return group, positions
