"""Topics as replicated state: queue counts, permission and epoch.

Owns the rules of creating, updating and deleting, and RocketMQ's shape of config/topics.json.  A topic's epoch is the log position of the
command that created it.  A topic deleted and created again is another topic, and nothing logged before belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dledger_wire.errors import InvalidArgumentError, TopicExistsError, TopicNotFoundError, TopicPermissionError, UnsafeShrinkError
from dledger_wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from dledger_wire.status import Perm, unread_queues
from store.commands.command import JsonObject
from store.commands.topics import DRAINED, CreateTopic, DeleteTopic, DeleteTopicIf, TopicResult, UpdateTopic
from store.state.replica_group import ReplicaGroupState
from store.state.state_machine import CommandContext, CommandHandlers

DEFAULT_QUEUES = 4
_READ, _WRITE = int(Perm.READ), int(Perm.WRITE)  # plain numbers: every batch is asked for, and an operator of an enum is a call
_EPOCH_ATTRIBUTE, _GROUPS_ATTRIBUTE = "incarnation", "groups"  # in the file
PRIORITIES = {"message.type": "PRIORITY"}  # RocketMQ's attribute of a topic that has them


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; ``created_pos`` is its epoch.

    ``groups``: every replica group that may have queues of it, as reported to this one; none: unknown.  A client that finds the topic here
    knows by it whether another group is missing from its picture.
    ``priorities``: the number of a queue is the priority of its messages, the highest the most urgent; set when the topic is created.
    """

    name: str
    read_queues: int
    write_queues: int
    perm: int
    created_pos: int
    groups: tuple[str, ...] = ()
    priorities: bool = False

    @property
    def topic_epoch(self) -> str:
        return f"{self.created_pos:016X}"

    @property
    def queues(self) -> int:
        return max(self.read_queues, self.write_queues)

    def queue_of(self, priority: int) -> int:
        """The queue of a priority, in a topic that has them."""
        return max(0, min(priority, self.write_queues - 1))

    @property
    def takes_what_waited(self) -> bool:
        """Whether messages that waited for their time, or their transaction, are stored in it now.

        A topic in several replica groups is left in one of them by forbidding users to write there: what was accepted before is delivered.
        """
        return bool(self.write_queues and (self.perm & Perm.WRITE or len(self.groups) > 1))


class Topics:
    """The topics of a replica group.  Implements ``StateMachineSection``.

    ``undrained(topic, first queue, end)`` returns what is not consumed of these queues as text, ``stored(topic, queues)`` how many messages
    that many queues ever got; they depend on replicated state only.
    """

    file_name = "topics.json"

    def __init__(
        self,
        undrained: Callable[[str, int, int], str] = lambda _name, _first, _end: "",
        stored: Callable[[str, int], int] = lambda _name, _queues: 0,
        replica_group: ReplicaGroupState | None = None,
    ) -> None:
        self._undrained, self._stored = undrained, stored
        self._replica_group = replica_group or ReplicaGroupState()
        self.changed: Callable[[str], None] = lambda _name: None  # called with a topic's name after each change of the table
        self._topics: dict[str, Topic] = {}
        self._counter = 0
        self._counted = (0, 0)  # the counter, and ``own_queues`` then
        self._term = 0
        self._changed_at_ms = 0

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def version(self) -> int:
        return self._counter

    @property
    def own_queues(self) -> int:
        """Write queues of all topics of applications: how much of the cluster's topics this replica group has."""
        if self._counted[0] != self._counter:
            self._counted = self._counter, sum(topic.write_queues for topic in self if not is_system_topic(topic.name))
        return self._counted[1]

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def require(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist", topic=name)
        return topic

    def client_perm(self, topic: Topic) -> int:
        """The topic's permission as clients see it: a replica group that is draining takes nothing new."""
        return topic.perm if self._replica_group.takes_messages else topic.perm & ~Perm.WRITE

    def writable(self, name: str, queue_id: int, *, for_service: bool = False) -> Topic:
        """The topic, if messages may be written to that queue of it; its permission is for users, not ``for_service``."""
        topic = self.require(name)
        if not topic.perm & _WRITE and not for_service:
            raise TopicPermissionError(f"topic {name}: writing is not permitted (perm {topic.perm})", topic=name, perm=topic.perm)
        if not for_service and not self._replica_group.takes_messages:
            text = f"topic {name}: its replica group is {self._replica_group.state} and takes no new messages"
            raise TopicPermissionError(text, topic=name, perm=self.client_perm(topic))
        if queue_id >= topic.write_queues:
            text = f"topic {name}: queue {queue_id}, expected 0 to {topic.write_queues - 1}"
            raise InvalidArgumentError(text, topic=name, queues=topic.write_queues)
        return topic

    def readable(self, name: str, queue_id: int) -> Topic:
        """The topic, if that queue of it may be read."""
        topic = self.require(name)
        if not topic.perm & _READ:
            opens = f": dledger dlq open {name.removeprefix(DLQ_PREFIX)}" if name.startswith(DLQ_PREFIX) else ""
            raise TopicPermissionError(f"topic {name}: reading is not permitted (perm {topic.perm}){opens}", topic=name, perm=topic.perm)
        if not 0 <= queue_id < topic.read_queues:
            raise InvalidArgumentError(f"topic {name}: queue {queue_id}, expected 0 to {topic.read_queues - 1}", topic=name)
        return topic

    def known(self, name: str, queue_id: int) -> Topic:
        """The topic, if it may be read and has that queue, perhaps one that is written to alone."""
        topic = self.readable(name, 0)
        return topic if 0 <= queue_id < topic.queues else self.readable(name, queue_id)

    # Commands

    def register(self, handlers: CommandHandlers) -> None:
        handlers.on(CreateTopic, self._create)
        handlers.on(UpdateTopic, self._update)
        handlers.on(DeleteTopic, self._delete)
        handlers.on(DeleteTopicIf, self._delete_if)

    def _create(self, command: CreateTopic, context: CommandContext) -> TopicResult:
        old = self._topics.get(command.name)
        if old is not None:
            if command.if_not_exists:
                return _result(old, created=False)
            raise TopicExistsError(f"topic {command.name!r} exists", topic=command.name)
        if not is_system_topic(command.name) and not command.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            self._replica_group.require_active("no new topics")  # those of consumer groups are needed until all is consumed
        write_queues = command.write_queues or command.read_queues or DEFAULT_QUEUES
        read_queues = command.read_queues or write_queues
        perm = command.perm or int(Perm.READ_WRITE)
        topic = Topic(command.name, read_queues, write_queues, perm, context.pos, command.groups, command.priorities)
        self._topics[topic.name] = topic
        self._touch(context, topic.name)
        return _result(topic, created=True)

    def _update(self, command: UpdateTopic, context: CommandContext) -> TopicResult:
        old = self.require(command.name)
        topic = replace(
            old,
            read_queues=command.read_queues or old.read_queues,
            write_queues=command.write_queues or old.write_queues,
            perm=command.perm or old.perm,
            groups=command.groups or old.groups,
        )
        if not command.force:
            self._check_shrink(old, topic)
        self._topics[old.name] = topic
        self._touch(context, topic.name)
        return _result(topic, created=False)

    def _check_shrink(self, old: Topic, new: Topic) -> None:
        """Queues go in two steps: first nothing is written to them any more, then, when everything in them is read, they are not read."""
        if new.read_queues >= old.read_queues and new.write_queues <= max(old.write_queues, new.read_queues):
            return
        steps = f"first --write-queues {new.read_queues}, then, when they are drained, --read-queues {new.read_queues}"
        if unread := unread_queues(new.read_queues, new.write_queues):
            raise UnsafeShrinkError(f"topic {old.name}: {unread}; {steps}", topic=old.name)
        if old.write_queues > new.read_queues:
            text = f"topic {old.name}: queues {new.read_queues} to {old.write_queues - 1} still take messages; {steps}"
            raise UnsafeShrinkError(text, topic=old.name)
        left = self._undrained(old.name, new.read_queues, old.read_queues)
        if left:
            raise UnsafeShrinkError(
                f"topic {old.name}: {left}; these messages would be unreachable (--force removes the queues anyway)", topic=old.name
            )

    def _delete(self, command: DeleteTopic, context: CommandContext) -> TopicResult:
        topic = self.require(command.name)
        del self._topics[topic.name]
        self._touch(context, topic.name)
        return _result(topic, created=False)

    def _delete_if(self, command: DeleteTopicIf, context: CommandContext) -> TopicResult:
        topic = self.require(command.name)
        if command.only_if == DRAINED:
            if topic.perm & Perm.WRITE:
                raise UnsafeShrinkError(f"topic {topic.name}: its queues here still take messages; first --perm 4", topic=topic.name)
            left = self._undrained(topic.name, 0, topic.queues)
        else:
            stored = self._stored(topic.name, topic.queues)
            left = f"{stored} messages were stored in it" if stored else ""
        if left:
            raise UnsafeShrinkError(f"topic {topic.name}: {left}", topic=topic.name)
        return self._delete(command, context)

    def _touch(self, context: CommandContext, name: str) -> None:
        self._counter += 1
        self._term, self._changed_at_ms = context.term, context.at_ms
        self.changed(name)

    # Snapshot

    def dump(self) -> JsonObject:
        table = {
            topic.name: {
                "topicName": topic.name,
                "readQueueNums": topic.read_queues,
                "writeQueueNums": topic.write_queues,
                "perm": topic.perm,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": _attributes(topic),
            }
            for topic in self._topics.values()
        }
        version = {"counter": self._counter, "stateVersion": self._term, "timestamp": self._changed_at_ms}
        return {"topicConfigTable": table, "dataVersion": version}

    def load(self, data: JsonObject) -> None:
        self._topics = {
            name: Topic(
                name,
                row["readQueueNums"],
                row["writeQueueNums"],
                row["perm"],
                int(row["attributes"][_EPOCH_ATTRIBUTE], 16),
                tuple(filter(None, row["attributes"].get(_GROUPS_ATTRIBUTE, "").split(","))),
                row["attributes"].items() >= PRIORITIES.items(),
            )
            for name, row in data["topicConfigTable"].items()
        }
        version = data["dataVersion"]
        self._counter, self._term, self._changed_at_ms = version["counter"], version["stateVersion"], version["timestamp"]
        self._counted = (-1, 0)


def _attributes(topic: Topic) -> dict[str, str]:
    attributes = {_EPOCH_ATTRIBUTE: topic.topic_epoch} | (PRIORITIES if topic.priorities else {})
    return attributes | {_GROUPS_ATTRIBUTE: ",".join(topic.groups)} if topic.groups else attributes


def _result(topic: Topic, *, created: bool) -> TopicResult:
    return TopicResult(topic.name, topic.read_queues, topic.write_queues, topic.perm, topic.topic_epoch, created, topic.priorities)
