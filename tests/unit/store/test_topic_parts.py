"""A topic that lies in several replica groups, as one group's state has it: the groups it was told of, and deletion under a condition."""

from __future__ import annotations

import pytest

from dledger_wire.errors import DledgerError, InvalidArgumentError, UnsafeShrinkError
from store.commands.topics import DRAINED, EMPTY, CreateTopic, DeleteTopic, DeleteTopicIf, UpdateTopic
from store.state.state_machine import CommandContext, CommandHandlers
from store.state.topics import Topics


class State:
    """Topics with what their queues hold."""

    def __init__(self) -> None:
        self.left, self.ever = "", 0
        self.topics = Topics(lambda _name, _first, _end: self.left, lambda _name, _queues: self.ever)
        self._handlers = CommandHandlers()
        self.topics.register(self._handlers)
        self._pos = 0

    def apply(self, command: CreateTopic | UpdateTopic | DeleteTopic) -> None:
        self._pos += 100
        decoded = type(command).decode(command.encode())
        assert decoded == command
        self._handlers.apply(decoded, CommandContext(self._pos, 1, self._pos, self._pos))


def test_a_part_is_deleted_for_sure_only_while_nothing_was_stored_in_it() -> None:
    state = State()
    state.apply(CreateTopic(name="t", read_queues=2, write_queues=2))
    state.ever = 3
    with pytest.raises(UnsafeShrinkError, match="3 messages were stored in it"):
        state.apply(DeleteTopicIf(name="t", only_if=EMPTY))
    assert state.topics.get("t") is not None
    state.ever = 0
    state.apply(DeleteTopicIf(name="t", only_if=EMPTY))
    assert state.topics.get("t") is None


def test_a_part_goes_away_when_nobody_writes_to_it_and_everybody_has_read_it() -> None:
    state = State()
    state.apply(CreateTopic(name="t", read_queues=2, write_queues=2))
    with pytest.raises(UnsafeShrinkError, match="still take messages; first --perm 4"):
        state.apply(DeleteTopicIf(name="t", only_if=DRAINED))
    state.apply(UpdateTopic(name="t", perm=4))
    state.left = "group audit has not read 2 messages of queue 1"
    with pytest.raises(UnsafeShrinkError, match="group audit has not read 2 messages"):
        state.apply(DeleteTopicIf(name="t", only_if=DRAINED))
    state.left = ""
    state.apply(DeleteTopicIf(name="t", only_if=DRAINED))
    assert state.topics.get("t") is None


def test_the_replica_groups_of_a_topic_are_kept_over_changes_and_snapshots() -> None:
    state = State()
    state.apply(CreateTopic(name="t", read_queues=2, write_queues=2, groups=("g0", "g1")))
    state.apply(CreateTopic(name="old", read_queues=3, write_queues=3))
    state.apply(CreateTopic(name="rmq_sys_own", read_queues=5, write_queues=5))
    state.apply(UpdateTopic(name="t", write_queues=4, read_queues=4))
    assert state.topics.require("t").groups == ("g0", "g1")
    assert state.topics.own_queues == 7
    state.apply(UpdateTopic(name="t", groups=("g0", "g1", "g2")))
    again = Topics()
    again.load(state.topics.dump())
    assert (again.require("t").groups, again.require("old").groups) == (("g0", "g1", "g2"), ())
    assert again.own_queues == state.topics.own_queues == 7


def test_priorities_are_kept_over_changes_and_snapshots() -> None:
    state = State()
    state.apply(CreateTopic(name="urgent", read_queues=3, write_queues=3, priorities=True))
    state.apply(CreateTopic(name="plain", read_queues=3, write_queues=3))
    state.apply(UpdateTopic(name="urgent", write_queues=4, read_queues=4, perm=4, groups=("g0",)))
    again = Topics()
    again.load(state.topics.dump())
    for topics in (state.topics, again):
        assert [(topic.name, topic.priorities) for topic in topics] == [("urgent", True), ("plain", False)]


@pytest.mark.parametrize(
    "command",
    [
        CreateTopic(name="t", read_queues=2, write_queues=6),
        DeleteTopicIf(name="t", only_if="never"),
        CreateTopic(name="t", groups=("a b",)),
        UpdateTopic(name="t", groups=("g",) * 1025),
    ],
)
def test_nonsense_is_refused_before_it_is_proposed(command: CreateTopic | UpdateTopic | DeleteTopic) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        command.check()
    assert isinstance(raised.value, DledgerError)
