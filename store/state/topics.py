"""Topics as replicated state: queue counts, permission and incarnation, changed by commands in the log.

Owns the rules of creating, updating and deleting, and RocketMQ's shape of config/topics.json.  A topic's incarnation is the log position
of the command that created it: a topic deleted and created again is another one, and nothing logged before belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dledger_wire.errors import InvalidArgumentError, TopicExistsError, TopicNotFoundError, TopicPermissionError, UnsafeShrinkError
from dledger_wire.names import check_topic
from dledger_wire.status import Perm
from store.state.sections import CommandContext, CommandResult, Handler

MAX_QUEUES = 1024
DEFAULT_QUEUES = 4
CREATE, UPDATE, DELETE = "create_topic", "update_topic", "delete_topic"
_INCARNATION = "incarnation"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``created_pos`` is its incarnation."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    created_pos: int

    @property
    def incarnation(self) -> str:
        return f"{self.created_pos:016X}"

    @property
    def queues(self) -> int:
        return max(self.read_queues, self.write_queues)


class Topics:
    """The topics of a group.  Implements ``group_state.Section``.

    ``undrained(topic, first queue, upto)`` says what in these queues is not read yet, or nothing; it depends on replicated state only.
    """

    file_name = "topics.json"

    def __init__(self, undrained: Callable[[str, int, int], str] = lambda _name, _first, _upto: "") -> None:
        self._undrained = undrained
        self._topics: dict[str, Topic] = {}
        self._counter = 0
        self._term = 0
        self._changed_at_ms = 0

    def __iter__(self) -> Any:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def version(self) -> int:
        return self._counter

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def require(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist", topic=name)
        return topic

    def writable(self, name: str, queue_id: int, *, for_service: bool = False) -> Topic:
        """The topic, if messages may be written to that queue of it; its permission is for users, not ``for_service``."""
        topic = self.require(name)
        if not topic.perm & Perm.WRITE and not for_service:
            raise TopicPermissionError(f"topic {name}: writing is not permitted (perm {topic.perm})", topic=name, perm=topic.perm)
        if queue_id >= topic.write_queues:
            text = f"topic {name}: queue {queue_id}, expected 0 to {topic.write_queues - 1}"
            raise InvalidArgumentError(text, topic=name, queues=topic.write_queues)
        return topic

    def readable(self, name: str, queue_id: int) -> Topic:
        """The topic, if that queue of it may be read."""
        topic = self.require(name)
        if not topic.perm & Perm.READ:
            raise TopicPermissionError(f"topic {name}: reading is not permitted (perm {topic.perm})", topic=name, perm=topic.perm)
        if not 0 <= queue_id < topic.read_queues:
            raise InvalidArgumentError(f"topic {name}: queue {queue_id}, expected 0 to {topic.read_queues - 1}", topic=name)
        return topic

    # Commands

    def handlers(self) -> Mapping[str, Handler]:
        return {CREATE: self._create, UPDATE: self._update, DELETE: self._delete}

    def _create(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        name = check_topic(str(arguments.get("name", "")))
        old = self._topics.get(name)
        if old is not None:
            if arguments.get("if_not_exists"):
                return _reply(old, created=False)
            raise TopicExistsError(f"topic {name!r} exists", topic=name)
        write_queues = _queues(arguments, "write_queues") or _queues(arguments, "read_queues") or DEFAULT_QUEUES
        read_queues = _queues(arguments, "read_queues") or write_queues
        topic = Topic(name, read_queues, write_queues, _perm(arguments) or int(Perm.READ_WRITE), context.pos)
        self._topics[name] = topic
        self._touch(context)
        return _reply(topic, created=True)

    def _update(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        old = self.require(str(arguments.get("name", "")))
        topic = replace(
            old,
            read_queues=_queues(arguments, "read_queues") or old.read_queues,
            write_queues=_queues(arguments, "write_queues") or old.write_queues,
            perm=_perm(arguments) or old.perm,
        )
        if not arguments.get("force"):
            self._check_shrink(old, topic)
        self._topics[old.name] = topic
        self._touch(context)
        return _reply(topic, created=False)

    def _check_shrink(self, old: Topic, new: Topic) -> None:
        """Queues go in two steps: first nothing is written to them any more, then, when everything in them is read, they are not read."""
        if new.read_queues >= old.read_queues and new.write_queues <= max(old.write_queues, new.read_queues):
            return
        steps = f"first --write-queues {new.read_queues}, then, when they are drained, --read-queues {new.read_queues}"
        if new.write_queues > new.read_queues:
            text = f"topic {old.name}: queues {new.read_queues} to {new.write_queues - 1} would be written to and not read; {steps}"
            raise UnsafeShrinkError(text, topic=old.name)
        if old.write_queues > new.read_queues:
            text = f"topic {old.name}: queues {new.read_queues} to {old.write_queues - 1} still take messages; {steps}"
            raise UnsafeShrinkError(text, topic=old.name)
        left = self._undrained(old.name, new.read_queues, old.read_queues)
        if left:
            raise UnsafeShrinkError(f"topic {old.name}: {left}; that would be left behind (--force does it)", topic=old.name)

    def _delete(self, arguments: dict[str, Any], context: CommandContext) -> CommandResult:
        topic = self.require(str(arguments.get("name", "")))
        del self._topics[topic.name]
        self._touch(context)
        return _reply(topic, created=False)

    def _touch(self, context: CommandContext) -> None:
        self._counter += 1
        self._term, self._changed_at_ms = context.term, context.at_ms

    # Snapshot

    def dump(self) -> dict[str, Any]:
        table = {
            topic.name: {
                "topicName": topic.name,
                "readQueueNums": topic.read_queues,
                "writeQueueNums": topic.write_queues,
                "perm": topic.perm,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": {_INCARNATION: topic.incarnation},
            }
            for topic in self._topics.values()
        }
        version = {"counter": self._counter, "stateVersion": self._term, "timestamp": self._changed_at_ms}
        return {"topicConfigTable": table, "dataVersion": version}

    def load(self, data: dict[str, Any]) -> None:
        self._topics = {
            name: Topic(name, row["readQueueNums"], row["writeQueueNums"], row["perm"], int(row["attributes"][_INCARNATION], 16))
            for name, row in data["topicConfigTable"].items()
        }
        version = data["dataVersion"]
        self._counter, self._term, self._changed_at_ms = version["counter"], version["stateVersion"], version["timestamp"]


def check_arguments(kind: str, arguments: dict[str, Any]) -> None:
    """Refuse a topic command that could never succeed, before it is logged."""
    name = str(arguments.get("name", ""))
    if kind == CREATE:
        check_topic(name)
    _queues(arguments, "read_queues")
    _queues(arguments, "write_queues")
    _perm(arguments)


def _queues(arguments: dict[str, Any], field: str) -> int:
    """A queue count; 0 when it is not given."""
    count = arguments.get(field) or 0
    if not isinstance(count, int) or not 0 <= count <= MAX_QUEUES:
        raise InvalidArgumentError(f"{field} {count!r}: expected 1 to {MAX_QUEUES}")
    return count


def _perm(arguments: dict[str, Any]) -> int:
    """A permission; 0 when it is not given."""
    perm = arguments.get("perm") or 0
    if not isinstance(perm, int) or perm not in (0, Perm.WRITE, Perm.READ, Perm.READ_WRITE):
        raise InvalidArgumentError(f"perm {perm!r}: expected 2 (write), 4 (read) or 6 (both)")
    return perm


def _reply(topic: Topic, *, created: bool) -> CommandResult:
    return {
        "name": topic.name,
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "perm": topic.perm,
        "incarnation": topic.incarnation,
        "created": created,
    }
