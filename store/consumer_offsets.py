"""Where consumer groups have come to, as replicated state: committed through the log, so that every later master knows it.

Owns the rules and RocketMQ's shape of config/consumerOffset.json (``TOPIC@GROUP`` -> queue -> offset).  An offset is the next message to
read.  A commit never takes a group back: answers of a slow consumer come late; going back is a reset, which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dledger_wire.errors import InvalidArgumentError, TopicNotFoundError
from dledger_wire.names import check_group
from store.group_state import CommandContext, CommandResult, Handler

COMMIT, RESET = "commit_offsets", "reset_offsets"
MAX_OFFSETS = 10_000  # in one command

GroupTopic = tuple[str, str]


class ConsumerOffsets:
    """The positions of every group.  Implements ``group_state.Section``; ``topic_exists`` asks the topics' section."""

    file_name = "consumerOffset.json"

    def __init__(self, topic_exists: Callable[[str], bool]) -> None:
        self._topic_exists = topic_exists
        self.on_reset: Callable[[str, str, int], None] | None = None  # told of every queue that a group was taken elsewhere in
        self._offsets: dict[GroupTopic, dict[int, int]] = {}

    def groups(self) -> list[str]:
        """Every group that has committed something, by name."""
        return sorted({group for group, _ in self._offsets})

    def of(self, group: str) -> dict[str, dict[int, int]]:
        """Topic -> queue -> offset of one group; empty for one nobody knows."""
        return {topic: dict(queues) for (name, topic), queues in self._offsets.items() if name == group}

    def position(self, group: str, topic: str, queue_id: int) -> int:
        """The next message a group reads in a queue; 0 for one it never committed."""
        return self._offsets.get((group, topic), {}).get(queue_id, 0)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: one made again starts without readers."""
        for key in [key for key in self._offsets if key[1] == topic]:
            del self._offsets[key]

    def handlers(self) -> Mapping[str, Handler]:
        return {COMMIT: self._commit, RESET: self._reset}

    def _commit(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        return self._set(arguments, back=False)

    def _reset(self, arguments: dict[str, Any], _context: CommandContext) -> CommandResult:
        return self._set(arguments, back=True)

    def _set(self, arguments: dict[str, Any], *, back: bool) -> CommandResult:
        group, offsets = check_offsets(arguments)
        for topic, _, _ in offsets:
            if not self._topic_exists(topic):
                raise TopicNotFoundError(f"topic {topic!r} does not exist", topic=topic)
        for topic, queue_id, offset in offsets:
            queues = self._offsets.setdefault((group, topic), {})
            queues[queue_id] = offset if back else max(offset, queues.get(queue_id, 0))
            if back and self.on_reset is not None:
                self.on_reset(group, topic, queue_id)
        return {"group": group, "count": len(offsets)}

    def dump(self) -> dict[str, Any]:
        table = {
            f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in queues.items()}
            for (group, topic), queues in self._offsets.items()
        }
        return {"offsetTable": table}

    def load(self, data: dict[str, Any]) -> None:
        self._offsets.clear()
        for name, queues in data["offsetTable"].items():
            topic, _, group = name.partition("@")
            self._offsets[group, topic] = {int(queue_id): offset for queue_id, offset in queues.items()}


def check_offsets(arguments: dict[str, Any]) -> tuple[str, list[tuple[str, int, int]]]:
    """(group, [(topic, queue, offset)]) of a command.  InvalidNameError, InvalidArgumentError for one that could never succeed."""
    group = check_group(str(arguments.get("group", "")))
    rows = arguments.get("offsets")
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_OFFSETS:
        raise InvalidArgumentError(f"expected 1 to {MAX_OFFSETS} offsets to commit")
    offsets = []
    for topic, queue_id, offset in rows:
        if queue_id < 0 or offset < 0:
            raise InvalidArgumentError(f"topic {topic}: queue {queue_id}, offset {offset}; expected none below 0")
        offsets.append((str(topic), int(queue_id), int(offset)))
    return group, offsets
